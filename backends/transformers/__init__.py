"""transformers in the process: Hugging Face folders, with continuous batching."""
