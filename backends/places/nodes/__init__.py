"""Engines on other machines: the gateway's end, and the program that listens there."""
