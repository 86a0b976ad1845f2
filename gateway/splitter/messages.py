"""Messages with a header that says what their body is: harmony (gpt-oss) and Muse.

Harmony's header: `<|start|>assistant to=functions.N<|channel|>commentary
<|constrain|>json<|message|>`, each part optional, in several orders (OpenAI Harmony Response
Format).
"""

import re
from typing import TypeAlias

import msgspec

from gateway.splitter.calls import Calls
from gateway.splitter.phases import Phase
from gateway.splitter.reading import LONGEST, Parsing, Reader
from gateway.splitter.syntax import Headers

_WORDS = re.compile(r"[^<\n]*")


class Called(msgspec.Struct, frozen=True):
    """The body is the arguments of this function."""

    name: str


class Dropped(msgspec.Struct, frozen=True):
    """The body is for a builtin tool of the model's maker, which are not available here."""


Destination: TypeAlias = Phase | Called | Dropped


def read(reader: Reader, headers: Headers, opener: str) -> Parsing[str]:
    """The whole header; "" if the output ended in it. Raises Malformed if it is none.

    A header of more than `LONGEST` parts is none.
    """
    parts = [opener]
    for _ in range(LONGEST):
        parts.append((yield from reader.run(_WORDS)))
        if not (yield from reader.peek()):
            return ""
        parts.append((yield from reader.expect(headers.end, *headers.inner)))
        if parts[-1] == headers.end:
            return "".join(parts)
    raise reader.fault(f"a header of more than {LONGEST} parts")


def destination(headers: Headers, head: str, calls: Calls) -> Destination:
    """Where the body of a message goes."""
    if found := re.search(headers.recipient, head):
        return Called(found[1])
    if found := re.search(headers.foreign, head):
        return Called(found[1]) if calls.knows(found[1]) else Dropped()
    found = re.search(headers.channel, head)
    reasons = found is not None and found[1] in headers.reasoning
    return Phase.REASONING if reasons else Phase.CONTENT
