"""Models that other servers run, asked over HTTP in OpenAI's words, or in Anthropic's.

wire.py       what is sent
shapes.py     how each kind of server is asked for an answer's shape
sse.py        bytes of a stream to the payloads of its events, within limits
reading.py    payloads to what the model said, whatever the other server's habits
messages/     Anthropic's Messages
calls.py      tool calls with broken indexes, put in order
http1.py      HTTP/1.1 for httpx, over a parser in C
posting.py    requests whose heads are written once
replicas.py   which of several servers is asked next, and which one rests
refusals.py   what another server's error tells a client
relay.py      one request: replica after replica until an answer begins
lists.py      what its servers say that they have
upstream.py   one configured upstream: its client, its replicas, its models
roster.py     all of one configuration
fleet.py      those there are now, looked after
"""
