"""From a shape to its grammar.

It takes milliseconds for what clients send and is bounded for what they shouldn't, so it belongs
into a worker thread; llguidance lets other threads run meanwhile. Same shape, same result: what it
gives can be kept.
"""

from gateway.constraints.gbnf import RULE, lark_of_gbnf
from gateway.constraints.grammars import Entry, ShapeGrammar, proven
from gateway.constraints.json_schema import schema_grammar
from gateway.constraints.lark import choice, literal, regex
from gateway.constraints.limits import (
    CHOICE_LENGTH,
    CHOICES,
    CHOICES_LENGTH,
    GRAMMAR_LENGTH,
    REGEX_LENGTH,
)
from gateway.errors import InvalidRequest
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
            return _of_lark(name, _regex(pattern, field), field)
        case Grammar(text=text, field=field):
            return _of_lark(name, _lark(text, field), field)
        case Choices(texts=texts, field=field):
            return _of_lark(name, _choices(texts, field), field)
        case StructuralTags(field=field):
            raise InvalidRequest(f"{field}: structural tags are not taken.", param=field)


def _of_lark(name: str, lark: str, field: str) -> ShapeGrammar:
    entry: Entry = {"name": name, "lark_grammar": lark}
    return ShapeGrammar(name=name, entries=proven((entry,), field))


def _regex(pattern: str, field: str) -> str:
    REGEX_LENGTH.check(len(pattern), field)
    return f"start: {regex(_whole(pattern, field))}"


def _lark(text: str, field: str) -> str:
    GRAMMAR_LENGTH.check(len(text), field)
    text = _whole(text, field)
    return lark_of_gbnf(text, field) if RULE in text else text


def _choices(texts: tuple[str, ...], field: str) -> str:
    if not texts:
        raise InvalidRequest(f"{field}: at least one choice is needed.", param=field)
    CHOICES.check(len(texts), field)
    CHOICE_LENGTH.check(max(map(len, texts)), field)
    CHOICES_LENGTH.check(sum(map(len, texts)), field)
    return f"start: {choice(literal(_whole(text, field)) for text in dict.fromkeys(texts))}"


def _whole(text: str, field: str) -> str:
    """`text`, which has no half of a surrogate pair. JSON can spell one; it is no character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        message = f"{field}: has half a surrogate pair, which is no character."
        raise InvalidRequest(message, param=field) from None
    return text
