"""Floor 6: Litestar. Routes, keys, event streams, the error envelope. Nothing below knows of HTTP.

*_routes.py   which path does what, by API
services.py   what a route works with
auth.py       who holds which key
origins.py    without keys: what a web page may not make a browser send
exchange.py   one answer on its way to one client, as an ASGI response
errand.py     a load or a download on its way, likewise
stream.py     server-sent events on an ASGI connection
account.py    what became of one request
metrics.py    … of all of them
cards.py      what the model lists tell
problems.py   every error as the envelope
plain.py      small bodies
"""
