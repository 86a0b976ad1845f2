"""The HTTP layer, on Litestar: routes, keys, event streams, the error envelope. Nothing below knows
of HTTP.

routes/             which path does what, one file for each API
routing.py          a module's routes: what each takes and gives, by its signature
openapi.py          the API's documentation
page.py             the console's files
gauges.py           the console's numbers, now and in the last hour
publishing.py       what changes in the console's lists, written into …
feed.py             … its event stream
services.py         the services that routes use; entries of the model lists
auth.py             API keys to rights; without keys: requests that a web page may have caused
exchange.py         one answer on its way to one client, as an ASGI response
sse.py              bodies and streams on an ASGI connection; progress of a load or a download
detached.py         answers that outlive their connection: kept streams, in the background, polled
request_record.py   the record of one request
metrics.py          … of all of them
errors.py           every error as the envelope

Smaller ones hold what a request keeps in memory, trace it, or record it for the inspector.
"""
