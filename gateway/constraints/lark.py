"""Lark grammars as llguidance has them (its docs/syntax.md), from what a client wrote: Lark, or
llama.cpp's GBNF by llguidance's converter.

GBNF's notation: llama.cpp's grammars/README.md. The converter doesn't read escapes by number, and
takes `.` for anything but a new line, so both are written otherwise before.
"""

import re
from collections.abc import Iterable

from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import gbnf_to_lark

from gateway.constraints.limits import (
    CHOICE_LENGTH,
    CHOICES,
    CHOICES_LENGTH,
    GRAMMAR_LENGTH,
    GRAMMAR_LINES,
    GRAMMAR_RULES,
    GROUP_DEPTH,
    REGEX_LENGTH,
)
from gateway.errors import InvalidRequest

INLINE_SCHEMA = "%json"  # would be compiled without the limits of `reading` and `effort`


def regex_rule(pattern: str, field: str) -> str:
    r"""The grammar of what `pattern` matches as a whole. `\d` is an ASCII digit."""
    REGEX_LENGTH.check(len(pattern), field)
    return f"start: /{regex_to_lark(_whole(pattern, field), 'd')}/"


def lark_grammar(text: str, field: str) -> str:
    """A client's grammar: GBNF where it has rules like that, else Lark."""
    GRAMMAR_LENGTH.check(len(text), field)
    text = _whole(text, field)
    if RULE in text:
        return lark_of_gbnf(text, field)
    GRAMMAR_LINES.check(sum(":" in line for line in text.splitlines()), field)
    if INLINE_SCHEMA in text:
        message = (
            f"{field}: {INLINE_SCHEMA} is not taken; send the schema as one, or as a structural tag"
        )
        raise InvalidRequest(message, param=field)
    return text


def choices_rule(texts: tuple[str, ...], field: str) -> str:
    """The grammar of one of `texts`."""
    if not texts:
        raise InvalidRequest(f"{field}: at least one choice is needed.", param=field)
    CHOICES.check(len(texts), field)
    CHOICE_LENGTH.check(max(map(len, texts)), field)
    CHOICES_LENGTH.check(sum(map(len, texts)), field)
    return f"start: {choice(literal(_whole(text, field)) for text in dict.fromkeys(texts))}"


def literal(text: str) -> str:
    """`text` as a string of a Lark grammar. Escapes are JSON's."""
    return f'"{"".join(map(_escaped, text))}"'


def choice(options: Iterable[str]) -> str:
    """One of some expressions."""
    return " | ".join(options)


def _whole(text: str, field: str) -> str:
    """`text`, which has no half of a surrogate pair. JSON can spell one; it is no character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        message = f"{field}: has half a surrogate pair, which is no character."
        raise InvalidRequest(message, param=field) from None
    return text


def _escaped(character: str) -> str:
    """Lark's lexer takes no control characters, and an escape is right for any other but the plain
    ones; outside the basic plane it is a pair of surrogates.
    """
    if character.isascii() and character.isprintable() and character not in '"\\':
        return character
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


RULE = "::="
# A literal, a class, a comment, any character, a parenthesis. Each ends at the end of the text at
# the latest, so that nothing is read twice.
PART = re.compile(r'(?s)"(?:[^"\\]|\\.?)*"?|\[(?:[^\]\\]|\\.?)*\]?|#[^\n]*|[.()]')
ESCAPE = re.compile(
    r"(?s)\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)|[\x00-\x1f\x7f]"
)
ANY_CHARACTER = "[\\x00-\U0010ffff]"


def lark_of_gbnf(text: str, field: str) -> str:
    """The Lark grammar. Raises InvalidRequest with the converter's message."""
    GRAMMAR_RULES.check(text.count(RULE), field)
    GROUP_DEPTH.check(_depth(text), field)
    try:
        return gbnf_to_lark(PART.sub(_plainer, text))
    except (Exception, RecursionError) as error:  # noqa: BLE001 - it raises bare `Exception`
        raise InvalidRequest(f"{field}: not a GBNF grammar: {error}", param=field) from None


def _depth(text: str) -> int:
    depth = deepest = 0
    for part in PART.findall(text):
        depth += (part == "(") - (part == ")")
        deepest = max(deepest, depth)
    return deepest


def _plainer(part: re.Match[str]) -> str:
    text = part.group()
    if text == ".":
        return ANY_CHARACTER
    return ESCAPE.sub(_character, text) if text[0] in '"[' else text


def _character(escape: re.Match[str]) -> str:
    digits = next(filter(None, escape.groups()), None)
    if digits is not None:
        return _spelled(int(digits, 16))
    return escape.group() if escape.group()[0] == "\\" else _spelled(ord(escape.group()))


def _spelled(code: int) -> str:
    r"""`\x41` where the converter reads that; else the character itself."""
    if code < 0x80:
        return f"\\x{code:02x}"
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise InvalidRequest(f"\\U{code:08x} is no character")
    return chr(code)
