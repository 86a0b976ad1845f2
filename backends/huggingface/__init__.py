"""Reads Hugging Face folders' files, for every engine that loads such folders. Knows no engine."""
