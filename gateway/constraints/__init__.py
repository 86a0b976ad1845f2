"""From what a client asks of an answer's shape to a grammar of llguidance, and the check of the
finished answer. It knows no event loop, no HTTP and no engine.
"""
