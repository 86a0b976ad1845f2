"""What one result of `ExLlamaV2DynamicGenerator.iterate` says about tokens.

Its text is not used: stop strings, characters and limits are `backends.transcript`'s. But the
generator holds tokens back with their text, while a character is incomplete or a banned string may
be coming.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

Result = Mapping[str, Any]


class Drawn(msgspec.Struct, frozen=True):
    """New tokens of one job; how many were drawn in vain; whether its limit ended it."""

    tokens: list[int]
    in_vain: int
    at_limit: bool


def read(result: Result) -> Drawn:
    """`result` is one of the stage "streaming"."""
    tokens = _ids(result, "token_ids")
    in_vain = len(_ids(result, "suppressed_tokens"))
    if in_vain:
        # exllamav2 0.3.2 gives suppressed tokens out with the others: its rewind_checkpoint means
        # to restore held_tokens, but writes held_token.
        tokens = tokens[:-in_vain]
    reason = result.get("eos_reason")
    if reason == "stop_token":  # then nothing was emitted; the stop token is the last one held
        tokens += _ids(result.get("held", {}), "token_ids")
    return Drawn(tokens, in_vain, at_limit=reason == "max_new_tokens")


def _ids(result: Result, name: str) -> list[int]:
    """A tensor of the shape (1, n), as a list."""
    found = result.get(name)
    return [] if found is None else [int(token) for token in found[0].tolist()]
