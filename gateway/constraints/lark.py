"""Texts of a Lark grammar as llguidance has it (its docs/syntax.md)."""

from collections.abc import Iterable

from llguidance import regex_to_lark


def literal(text: str) -> str:
    """`text` as a string of a Lark grammar. Escapes are JSON's."""
    return f'"{"".join(map(_escaped, text))}"'


def regex(pattern: str) -> str:
    r"""`pattern` as a regex of a Lark grammar. `\d` is an ASCII digit."""
    return f"/{regex_to_lark(pattern, 'd')}/"


def choice(options: Iterable[str]) -> str:
    """One of some expressions."""
    return " | ".join(options)


def _escaped(character: str) -> str:
    """Lark's lexer takes no control characters, and an escape is right for any other but the plain
    ones; outside the basic plane it is a pair of surrogates.
    """
    if character.isascii() and character.isprintable() and character not in '"\\':
        return character
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
