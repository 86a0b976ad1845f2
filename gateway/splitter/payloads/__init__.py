"""Payload parsers: one file a syntax. Each reads calls from a Reader and delivers them to a Calls."""
