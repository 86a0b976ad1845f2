"""Anthropic's Messages API, spoken to an upstream.

body.py         what is sent
reading.py      what is said, streamed or whole
signatures.py   thinking that is sent back has to be signed by who thought it
"""
