"""From a shape to its grammar.

It takes milliseconds for what clients send and is bounded for what they shouldn't, so it belongs
into a worker thread; llguidance lets other threads run meanwhile. Same shape, same result: what it
gives can be kept.
"""

from gateway.constraints.grammars import Entry, ShapeGrammar, proven
from gateway.constraints.json_schema import schema_grammar
from gateway.constraints.lark import choices_rule, lark_grammar, regex_rule
from gateway.constraints.structural_tags import tags_grammar
from gateway.shapes import (
    Choices,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    Shape,
    StructuralTags,
)


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
        case Regex(pattern=pattern, field=field):
            return _of_lark(name, regex_rule(pattern, field), field)
        case Grammar(text=text, field=field):
            return _of_lark(name, lark_grammar(text, field), field)
        case Choices(texts=texts, field=field):
            return _of_lark(name, choices_rule(texts, field), field)
        case StructuralTags():
            return tags_grammar(shape, name)


def _of_lark(name: str, lark: str, field: str) -> ShapeGrammar:
    entry: Entry = {"name": name, "lark_grammar": lark}
    return ShapeGrammar(name=name, entries=proven((entry,), field))
