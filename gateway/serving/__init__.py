"""Builds the application, and serves it."""
