"""Other machines, found by Ray: it says which there are, and our own sockets carry what models say.

gateway ──pipe──▶ control: the one process that imports Ray
                  ──Ray──▶ a supervisor on each node, which listens for gateways there
        ──TCP────────────▶ that listener (`backends.places.nodes`): loads, prompts, tokens
"""
