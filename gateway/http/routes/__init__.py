"""The routes, one file for each API. A route decodes, calls, and encodes."""
