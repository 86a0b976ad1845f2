"""llama.cpp's GBNF as a Lark grammar, by llguidance's converter.

Its notation: llama.cpp's grammars/README.md. The converter doesn't read escapes by number, and
takes `.` for anything but a new line, so both are written otherwise before.
"""

import re

from llguidance.gbnf_to_lark import gbnf_to_lark

from gateway.constraints.limits import GRAMMAR_RULES, GROUP_DEPTH
from gateway.errors import InvalidRequest

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
