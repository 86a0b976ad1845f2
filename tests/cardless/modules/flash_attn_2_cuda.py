"""exllamav2 imports it, to see that it is there."""
