"""Answers that are checked when they are whole."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from msgspec.structs import replace

from gateway.events import Content, Delta, Finished

Check: TypeAlias = Callable[[str], Awaitable[str | None]]  # a content -> what is wrong with it


class Checked:
    """Deltas of one choice, whose last one tells what `check` says of the whole content, unless it
    was cut or calls tools.
    """

    def __init__(self, check: Check) -> None:
        self._check = check
        self._content: list[str] = []

    async def of(self, delta: Delta) -> Delta:
        """`delta`, whose `Finished` says how the whole content misses what was asked for."""
        self._content += [event.text for event in delta.events if isinstance(event, Content)]
        match delta.events:
            case (*before, Finished(reason="stop") as finished):
                fault = await self._check("".join(self._content))
                return replace(delta, events=(*before, replace(finished, fault=fault)))
        return delta
