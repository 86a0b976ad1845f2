"""Models that other servers run, over HTTP with OpenAI's API, or Anthropic's.

wire.py       request bodies; structured output in each kind of server's fields
events.py     bytes to server-sent events, within limits
reading.py    answers in every server's spelling; tool calls put in order
vectors.py    vectors and scores
messages.py   Anthropic's Messages
http1.py      HTTP/1.1 for httpx, over a parser in C
replicas.py   which of several servers is asked next, and which one is out
faults.py     errors of another server in our words
refusals.py   another server's error as the client gets it
relay.py      one request: replica after replica until an answer begins
lists.py      its servers' model lists
loading.py    loads and unloads of a Roundhouse's models
upstream.py   one configured upstream: its client, its replicas, its models
fleet.py      all of one configuration; those there are now: probes, lists, connections
"""
