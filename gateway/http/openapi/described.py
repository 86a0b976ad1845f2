"""How a route is described beside what Litestar knows of it."""

from collections.abc import Mapping
from typing import Any

import msgspec

DEFAULT = "default"  # the configured default model, by the name that it always has


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """`takes`: its JSON body, a type or a `models.Body`, or with `takes_file` a file as it is;
    `gives`: its JSON answer, any of these; `events`: what a stream of it tells, as server-sent
    events or, with `lines`, as lines of JSON; `query`: a struct of parameters that Litestar doesn't
    know of; `examples`: bodies by what they show, each of which a server with a default model, one
    that embeds and one that ranks answers with `status`; `text`: the type of an answer that is no
    JSON.
    """

    takes: Any = None
    takes_file: bool = False
    gives: tuple[Any, ...] = ()
    events: tuple[Any, ...] = ()
    lines: bool = False
    query: type[msgspec.Struct] | None = None
    text: str | None = None
    status: int = 200
    examples: Mapping[str, Mapping[str, Any]] = {}

    def kinds(self) -> tuple[Any, ...]:
        """All models that it refers to."""
        taken = () if self.takes is None else (self.takes,)
        return (*taken, *self.gives, *self.events)
