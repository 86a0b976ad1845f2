"""Anthropic's Messages API, spoken to an upstream.

body.py         request bodies
reading.py      answers, streamed or whole
signatures.py   thinking that is sent back has to be signed by its model
"""
