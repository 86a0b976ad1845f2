"""The store of computed beginnings: conversations' cells outlive their slots, models and servers.

`shelf` decides (pure), `store` acts: memory, threads, the clock; `files` is the disk tier. An
engine knows `beginnings` alone: it takes a sequence out as bytes, and puts one back.
"""
