"""What an API key may do, what it has used, and what is stored for it."""
