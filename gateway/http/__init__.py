"""Floor 6: Litestar. Routes, keys, event streams, the error envelope. Nothing below knows of HTTP.

*_routes.py   which path does what, by API
services.py the services that routes use auth.py API keys to rights origins.py without keys:
requests that a web page may have caused exchange.py one answer on its way to one client, as an ASGI
response errand.py a load or a download on its way, likewise stream.py server-sent events on an ASGI
connection account.py the record of one request metrics.py … of all of them cards.py entries of the
model lists problems.py every error as the envelope plain.py small bodies
"""
