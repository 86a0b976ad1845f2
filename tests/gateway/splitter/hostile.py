"""Texts that are meant to be slow to split, made from the format table, and what they cost.

    python -m tests.gateway.splitter.hostile [--size 1000000] [--format kimi_k2] [--share 0.01]

Where a parser may stand is found by cutting a call, as the family writes it, after each of its
parts; what follows there for ever is each of the awkward fills, each marker of the format, whole
and cut, and the call itself. So a new entry of the table is attacked without a line here. There are
some 270,000 such outputs; the share of them is drawn by a seed. Each is measured at a quarter of
the size first, so that the growth shows. What takes longest is printed, and then what grows most.
"""

import argparse
import random
import re
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import msgspec

from gateway.splitter import FORMATS, Format, Splitter
from gateway.splitter.splitter import phase_tables
from gateway.terms.request import Tool
from tests.gateway.splitter.renderers import RENDERERS

TOKEN = 4  # characters of a piece
NOTE = Tool(
    name="write_note",
    parameters={
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "size": {"type": "object", "properties": {"width": {"type": "number"}}},
        },
    },
)
CALL: tuple[str, dict[str, Any]] = ("write_note", {"title": "a", "tags": ["b"], "size": {"w": 1}})
EMPTY: tuple[str, dict[str, Any]] = ("write_note", {})
FILLS = (
    " ", "\n", "a", "7", "-", "=", ".", ":", ",", "<", "</", "[", "{", "(", "]", "}", '"', "'",
    "\\", '\\"', "\\n", "\\ud83d", "\x00", "é", "a ", "a=", 'a="', "a: ", '"a":', '{"a":', "[[],",
    "<a>", "f(),", "f(a=", "```", "1e9", "0x", "= ", "_", "\u3000",
)  # fmt: skip


class Hostile(msgspec.Struct, frozen=True):
    """An output: `begin`, then `fill` again and again."""

    format: str
    begin: str
    fill: str
    in_reasoning: bool = False
    with_tools: bool = True

    def seconds(self, size: int) -> float:
        """The CPU time that `size` characters of it take in small pieces."""
        text = (self.begin + self.fill * (size // len(self.fill) + 1))[:size]
        pieces = [text[at : at + TOKEN] for at in range(0, size, TOKEN)]
        splitter = Splitter(
            FORMATS[self.format],
            in_reasoning=self.in_reasoning,
            tools=[NOTE] if self.with_tools else [],
        )
        begin = time.process_time()
        for piece in pieces:
            splitter.feed(piece)
        splitter.finish("length")
        return time.process_time() - begin


def hostile(id: str) -> list[Hostile]:
    """All hostile outputs of a format."""
    entry = FORMATS[id]
    own = markers(entry)
    cut = {text[:end] for text in own for end in (1, len(text) // 2, len(text) - 1) if end > 0}
    near = [*sorted(cut), *(f"{text[:-1]}x" for text in own)]
    opens = [*(entry.reasoning.opens if entry.reasoning is not None else ()), *entry.shell_opens]
    return [
        *(Hostile(id, "", fill, with_tools=False) for fill in (*own, *near)),
        *(Hostile(id, "", fill, in_reasoning=True) for fill in (*FILLS, *own, *near)),
        *(Hostile(id, text, fill) for text in ("", *opens) for fill in (*FILLS, *own, *near)),
        *(Hostile(id, text, fill) for text in states(id) for fill in (*FILLS, *own, *near)),
        *(Hostile(id, text, fill) for text in states(id) for fill in (*calls(id), text)),
    ]


def markers(format: Format) -> list[str]:
    """Everything that means something in a format, in a phase or in a call."""
    tables = phase_tables(format, parse_tools=True).values()
    found = {text for actions in tables for text in actions}
    found.update(texts_of(format.syntaxes))
    if format.headers is not None:
        found.update((*format.headers.ends, *format.headers.inner, *format.headers.starts))
    return sorted(found - {""})


def texts_of(value: Any) -> Iterator[str]:
    """All texts in a part of the table."""
    match value:
        case str():
            yield value
        case tuple():
            for each in value:
                yield from texts_of(each)
        case msgspec.Struct():
            yield from texts_of(msgspec.structs.astuple(value))
        case _:
            pass


def calls(id: str) -> list[str]:
    """Whole calls as the family writes them, where that is known."""
    return [RENDERERS[id]([call]) for call in (CALL, EMPTY)] if id in RENDERERS else []


def states(id: str) -> list[str]:
    """A call cut after each of its parts."""
    return [
        call[: found.end()]
        for call in calls(id)[:1]
        for found in re.finditer(r"\w+|\s+|[^\w\s]", call)
    ]


def drawn(share: float, only: list[str] | None = None) -> list[Hostile]:
    """A share of the outputs of every format, or of some."""
    chance = random.Random(20261122)
    found = []
    for name in only or FORMATS:
        every = hostile(name)
        found += chance.sample(every, max(1, round(len(every) * share)))
    return found


def measured(case: Hostile, size: int) -> tuple[float, float, Hostile]:
    """The CPU time in seconds, and how many times that of a quarter of the size it is."""
    small = case.seconds(size // 4)
    large = case.seconds(size)
    return large, large / max(small, 1e-3), case


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--format", action="append", choices=sorted(FORMATS))
    parser.add_argument("--share", type=float, default=0.001)
    parser.add_argument("--shown", type=int, default=20)
    wanted = parser.parse_args()
    cases = drawn(wanted.share, wanted.format)
    with ProcessPoolExecutor() as pool:
        found = list(pool.map(partial(measured, size=wanted.size), cases, chunksize=20))
    print(f"{len(cases)} outputs, {sum(seconds for seconds, _, _ in found):.0f} s")  # noqa: T201 — a script
    show(sorted(found, key=lambda each: each[0], reverse=True)[: wanted.shown])
    show(sorted(found, key=lambda each: each[1], reverse=True)[: wanted.shown])


def show(found: list[tuple[float, float, Hostile]]) -> None:
    """Prints what was measured."""
    for seconds, growth, case in found:
        print(f"{seconds:8.3f} s  x {growth:5.1f}  {case}")  # noqa: T201 — a script


if __name__ == "__main__":
    main()
