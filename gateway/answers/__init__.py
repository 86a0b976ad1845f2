"""From a request to an answer: lease, render, tokenize, generate, split, in one context manager."""
