"""Floor 6: Litestar. Routes, keys, event streams, the error envelope. Nothing below knows of HTTP.

routes.py     which path does what
doorman.py    who holds which key
exchange.py   one answer on its way to one client, as an ASGI response
stream.py     server-sent events on an ASGI connection
problems.py   every error as the envelope
plain.py      small bodies
"""
