"""The splitter's state machine as a table: what every marker does in each phase."""

from collections.abc import Mapping
from enum import Enum, auto
from functools import lru_cache
from typing import TypeAlias

import msgspec

from gateway.splitter.reading import Markers
from gateway.splitter.syntax import Format, Headers, Syntax


class Phase(Enum):
    """What the text at hand is."""

    CONTENT = auto()
    REASONING = auto()


class PhaseChange(Enum):
    """What a marker does, other than begin a call."""

    OPEN_REASONING = auto()
    CLOSE_REASONING = auto()
    OPEN_SHELL = auto()  # the answer proper begins
    CLOSE_SHELL = auto()  # and ends


Action: TypeAlias = PhaseChange | Syntax | Headers


class PhaseTable(msgspec.Struct, frozen=True):
    """One phase: its markers and what they do."""

    markers: Markers
    actions: Mapping[str, Action]


def _table(actions: Mapping[str, Action]) -> PhaseTable:
    return PhaseTable(Markers(tuple(actions)), actions)


@lru_cache(maxsize=256)
def phase_tables(format: Format, *, parse_tools: bool) -> Mapping[Phase, PhaseTable]:
    """The machine for a format. Of two entries for a text the later one counts."""
    opens, closes = _reasoning(format)
    ends = format.headers.body_ends if format.headers is not None else ()
    shells = _steps(format.shell_opens, PhaseChange.OPEN_SHELL)
    shells |= _steps((*format.shell_closes, *ends), PhaseChange.CLOSE_SHELL)
    syntaxes = format.syntaxes if parse_tools else ()
    calls: dict[str, Action] = {opener: syntax for syntax in syntaxes for opener in syntax.openers}
    inside = shells if format.special_tokens else {}
    if format.calls_end_reasoning:
        inside = inside | calls
    return {
        Phase.CONTENT: _table({**closes, **opens, **shells, **calls}),
        Phase.REASONING: _table({**inside, **opens, **closes}),
    }


def reasoning_ends(format: Format, *, parse_tools: bool) -> tuple[str, ...]:
    """All that ends reasoning, however the family writes it, calls included."""
    actions = phase_tables(format, parse_tools=parse_tools)[Phase.REASONING].actions
    return tuple(text for text, it in actions.items() if it is not PhaseChange.OPEN_REASONING)


def _reasoning(format: Format) -> tuple[dict[str, Action], dict[str, Action]]:
    """What opens reasoning and what closes it. With headers it is they that open."""
    if (headers := format.headers) is not None:
        opens: dict[str, Action] = dict.fromkeys(headers.openers, headers)
        return opens, _steps(headers.body_ends, PhaseChange.CLOSE_REASONING)
    if format.reasoning is None:
        return {}, {}
    return (
        _steps(format.reasoning.opens, PhaseChange.OPEN_REASONING),
        _steps(format.reasoning.closes, PhaseChange.CLOSE_REASONING),
    )


def _steps(texts: tuple[str, ...], step: PhaseChange) -> dict[str, Action]:
    return dict.fromkeys(texts, step)
