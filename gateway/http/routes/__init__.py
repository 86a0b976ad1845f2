"""What the server answers to, one file for each API. A route decodes, asks, and encodes."""
