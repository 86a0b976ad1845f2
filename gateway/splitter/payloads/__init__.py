"""Payload parsers: one file a syntax. Each reads calls from a Reader and delivers them to a Calls."""

from gateway.splitter.calls import Calls
from gateway.splitter.payloads import json_calls
from gateway.splitter.reading import Parsing, Reader
from gateway.splitter.syntax import JsonCalls, Syntax


def parse(reader: Reader, calls: Calls, syntax: Syntax, opener: str) -> Parsing[None]:
    """Reads calls of `syntax` after `opener`, which may be "". Raises Malformed where the text fits no call."""
    match syntax:
        case JsonCalls():
            yield from json_calls.parse(reader, calls, syntax)
