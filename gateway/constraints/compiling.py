"""From a shape to its grammar, and the check of a text that was generated without that grammar.

Compiling takes milliseconds for usual shapes and is bounded for hostile ones, so it belongs into a
worker thread, as the check does; llguidance lets other threads run meanwhile. Same shape, same
result: what it gives can be kept. The check is linear in the text, and given up after `SECONDS`.
"""

import time

from llguidance import LLMatcher

from backends.contract.conversation import (
    Choices,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    Shape,
    StructuralTags,
)
from backends.contract.grammar_limits import parser_limits
from gateway.constraints.checking import SECONDS, fault_of, unchecked
from gateway.constraints.grammars import (
    Check,
    Entry,
    ShapeGrammar,
    byte_tokenizer,
    choices_rule,
    proven,
    regex_rule,
)
from gateway.constraints.json_schema import schema_grammar
from gateway.constraints.lark_reading import ending_lark
from gateway.constraints.reading import read
from gateway.constraints.structural_tags import tags_grammar
from gateway.terms.errors import InvalidRequest


def grammar_of(shape: Shape, name: str = "answer") -> ShapeGrammar:
    """The grammar of `shape`, called `name`.

    Raises InvalidRequest that names the client's field: it is not a schema, a regex, a grammar; it
    is too large; it allows nothing; or it is strict and can't be enforced.
    """
    match shape:
        case JsonObject(field=field):
            return schema_grammar(JsonSchema(schema=b'{"type":"object"}', field=field), name)
        case JsonSchema():
            return schema_grammar(shape, name)
        case StructuralTags():
            return tags_grammar(shape, name)
        case _:
            entry: Entry = {"name": name, "lark_grammar": lark_of(shape)}
            return ShapeGrammar(name=name, entries=proven((entry,), shape.field))


def lark_of(shape: Regex | Grammar | Choices) -> str:
    """The rules of a shape that isn't JSON, not compiled yet. Raises InvalidRequest."""
    match shape:
        case Regex(pattern=pattern, field=field):
            return regex_rule(pattern, field)
        case Grammar(text=text, field=field):
            return ending_lark(text, field)
        case Choices(texts=texts, field=field):
            return choices_rule(texts, field)


AT_ONCE = 4_096  # bytes between two reads of the clock


def fault_unconstrained(shape: Shape, text: str) -> str | None:
    """How `text` misses `shape`, or why that can't be decided; None where it has it."""
    try:
        match shape:
            case JsonObject(field=field):
                return fault_of(Check(read(b'{"type": "object"}', field).check), text)
            case JsonSchema(schema=schema, field=field):
                return fault_of(Check(read(schema, field).check), text)
        return _fault(grammar_of(shape), text)
    except InvalidRequest as error:
        return unchecked(error.message)


def _fault(grammar: ShapeGrammar, text: str) -> str | None:
    """By the grammar that would have constrained it here, byte by byte."""
    matcher = LLMatcher(byte_tokenizer(), grammar.text, log_level=0, limits=parser_limits())
    until, written = time.thread_time() + SECONDS, text.encode()
    for start in range(0, len(written), AT_ONCE):
        some = list(written[start : start + AT_ONCE])
        taken = matcher.try_consume_tokens(some)
        if matcher.is_error():
            return unchecked("the check takes too long")
        if taken < len(some):
            return f"it isn't of the shape from byte {start + taken} on"
        if time.thread_time() > until:
            return unchecked("the check takes too long")
    return None if matcher.is_accepting() else "it ends before its shape is whole"
