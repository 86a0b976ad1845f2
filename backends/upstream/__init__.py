"""Models that other servers run, over HTTP with OpenAI's API, or Anthropic's.

wire.py       request bodies
shapes.py     structured output in each kind of server's fields
sse.py        bytes of a stream to the payloads of its events, within limits
reading.py    payloads to events, in every server's spelling
messages/     Anthropic's Messages
calls.py      tool calls with broken indexes, put in order
http1.py      HTTP/1.1 for httpx, over a parser in C
posting.py    requests whose heads are written once
replicas.py   which of several servers is asked next, and which one is out
refusals.py   another server's error as the client gets it
relay.py      one request: replica after replica until an answer begins
lists.py      its servers' model lists
upstream.py   one configured upstream: its client, its replicas, its models
roster.py     all of one configuration
fleet.py      those there are now: probes, lists, connections
"""
