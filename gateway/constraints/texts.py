"""The check of a finished text that nobody here held to its shape. Linear in the text, and given up
after `SECONDS`; it belongs into a worker thread.
"""

import time

from llguidance import LLMatcher

from backends.grammar_limits import parser_limits
from gateway.constraints.checking import SECONDS, Unchecked, fault_of
from gateway.constraints.compiling import grammar_of
from gateway.constraints.grammars import Check, ShapeGrammar, byte_tokenizer
from gateway.constraints.reading import read
from gateway.errors import InvalidRequest
from gateway.shapes import JsonObject, JsonSchema, Shape

AT_ONCE = 4_096  # bytes between two looks at the clock


def fault_elsewhere(shape: Shape, text: str) -> str | None:
    """How `text` misses `shape`, or why that can't be told; None where it has it."""
    try:
        match shape:
            case JsonObject(field=field):
                return fault_of(Check(read(b'{"type": "object"}', field).check), text)
            case JsonSchema(schema=schema, field=field):
                return fault_of(Check(read(schema, field).check), text)
        return _fault(grammar_of(shape), text)
    except InvalidRequest as error:
        return str(Unchecked(error.message))


def _fault(grammar: ShapeGrammar, text: str) -> str | None:
    """By the grammar that would have held it here, byte by byte."""
    matcher = LLMatcher(byte_tokenizer(), grammar.text, log_level=0, limits=parser_limits())
    until, written = time.thread_time() + SECONDS, text.encode()
    for start in range(0, len(written), AT_ONCE):
        some = list(written[start : start + AT_ONCE])
        taken = matcher.try_consume_tokens(some)
        if matcher.is_error():
            return str(Unchecked("the check takes too long"))
        if taken < len(some):
            return f"it isn't of the shape from byte {start + taken} on"
        if time.thread_time() > until:
            return str(Unchecked("the check takes too long"))
    return None if matcher.is_accepting() else "it ends before its shape is whole"
