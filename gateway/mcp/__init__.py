"""Tools of MCP servers, run for models: sessions, who may use what, and answers in rounds of a
model and its tools.

The library (the extra `mcp`) is imported in this folder alone, when a server is first asked for.
"""
