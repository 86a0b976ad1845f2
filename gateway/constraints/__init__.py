"""Structured output: from a requested shape to a grammar of llguidance, and the check of the
finished answer. It knows no event loop, no HTTP and no engine.
"""
