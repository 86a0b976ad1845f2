"""The splitter's machine as a table: in each phase, what every marker does. Built from a format's data."""

import re
from collections.abc import Mapping
from enum import Enum, auto
from functools import lru_cache
from typing import TypeAlias

import msgspec

from gateway.splitter.markers import Markers
from gateway.splitter.syntax import Format, Syntax


class Phase(Enum):
    """What the text at hand is."""

    CONTENT = auto()
    REASONING = auto()


class Step(Enum):
    """What a marker does, other than begin a call."""

    OPEN_REASONING = auto()
    CLOSE_REASONING = auto()
    OPEN_SHELL = auto()  # the answer proper begins
    CLOSE_SHELL = auto()  # and ends


Action: TypeAlias = Step | Syntax


class PhaseTable(msgspec.Struct, frozen=True):
    """One phase: its markers and their actions. `look` finds text that the phase can't deliver at once."""

    markers: Markers
    actions: Mapping[str, Action]
    look: re.Pattern[str]


def _table(actions: Mapping[str, Action]) -> PhaseTable:
    markers = Markers(tuple(actions))
    first = f"[{re.escape(markers.first)}]|" if markers.first else ""
    return PhaseTable(markers, actions, re.compile(first + r"\s\Z"))


@lru_cache(maxsize=256)
def phase_tables(format: Format, *, parse_tools: bool) -> Mapping[Phase, PhaseTable]:
    """The machine for a format."""
    shells: dict[str, Action] = {
        **dict.fromkeys(format.shell_opens, Step.OPEN_SHELL),
        **dict.fromkeys(format.shell_closes, Step.CLOSE_SHELL),
    }
    syntaxes = format.syntaxes if parse_tools else ()
    calls: dict[str, Action] = {opener: syntax for syntax in syntaxes for opener in syntax.openers}
    opens: dict[str, Action] = {}
    closes: dict[str, Action] = {}
    if format.reasoning is not None:
        opens = dict.fromkeys(format.reasoning.opens, Step.OPEN_REASONING)
        closes = dict.fromkeys(format.reasoning.closes, Step.CLOSE_REASONING)
    inside = {**(shells if format.special_tokens else {}), **(calls if format.calls_end_reasoning else {})}
    return {
        Phase.CONTENT: _table({**shells, **calls, **closes, **opens}),
        Phase.REASONING: _table({**inside, **opens, **closes}),
    }
