"""The rights of an API key, its usage, and what is stored for it."""
