"""What results of a generator's `iterate` say about tokens.

Their text is not used: stop strings, characters and limits are `backends.transcript`'s. But the
generator holds tokens back with their text, while a character is incomplete or a banned string may
be coming; where a stop token then ends a job, nothing was emitted and all that was held stands in
`held`, the stop token last.
"""

from collections.abc import Mapping
from typing import Any

Result = Mapping[str, Any]


def told(result: Result, name: str) -> list[Any]:
    """What a result of the stage "streaming" says about each of its new tokens: a tensor of the
    shape (1, n, …), as a list.
    """
    parts = [result]
    if result.get("eos_reason") == "stop_token":
        parts.append(result.get("held", {}))
    return [value for part in parts if name in part for value in part[name][0].tolist()]


def at_limit(result: Result) -> bool:
    """Whether the job ended because it had written as much as it was allowed to."""
    return bool(result.get("eos_reason") == "max_new_tokens")
