"""Payload parsers, one file a syntax: each reads from a Reader and delivers to a Calls."""
