"""Grammars as llguidance takes them: what of a shape they don't carry, the limits on what clients
send, whether llguidance can compile and run them, and texts, regexes and client grammars written
in its Lark (its docs/syntax.md).

The compile itself is bounded by the fuel of `backends.contract.grammar_limits`.
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, TypeAlias

import msgspec
from llguidance import LLMatcher, LLTokenizer, regex_to_lark
from llguidance.gbnf_to_lark import gbnf_to_lark

from backends.contract.grammar_limits import parser_limits
from gateway.constraints.lark import literal, one_of
from gateway.terms.errors import InvalidRequest


class Limit(msgspec.Struct, frozen=True):
    """At most `most` of `what`."""

    most: int
    what: str

    def check(self, amount: int, field: str) -> None:
        """Raises InvalidRequest that names `field` where it is more."""
        if amount > self.most:
            message = f"at most {self.most:,} {self.what} are taken, got {amount:,}."
            raise InvalidRequest.at(field, message)


REGEX_LENGTH = Limit(8_192, "characters of a regex")
GRAMMAR_LENGTH = Limit(65_536, "characters of a grammar")
# A compiler goes from rule to rule by recursion; 3,000 are more than a thread's stack of 8 MB.
GRAMMAR_LINES = Limit(1_024, "lines with a rule of a grammar")
GRAMMAR_RULES = Limit(512, "rules of a grammar")  # the converter compares each with each
GROUP_DEPTH = Limit(64, "nested groups of a grammar")
CHOICES = Limit(1_024, "choices")
CHOICE_LENGTH = Limit(8_192, "characters of a choice")
CHOICES_LENGTH = Limit(131_072, "characters of all choices")
TAGS = Limit(128, "tags or inner grammars of structural tags")
REPEATS = Limit(10_000, "repetitions")

SCHEMA_BYTES = Limit(524_288, "bytes of a schema")
SCHEMA_NODES = Limit(10_000, "values in a schema")
SCHEMA_DEPTH = Limit(64, "levels of nesting in a schema")
SCHEMA_DEFINITIONS = Limit(512, "definitions that a schema refers to")
SCHEMA_LEVELS = Limit(400, "levels of a schema, one inside another or referred to")
SCHEMA_DATA = Limit(2_000, "values inside lists and objects of enum and const")
SCHEMA_EFFORT = Limit(4_000_000, "units of work to compile a schema")

BYTES = (1 << 256) - 1  # as a mask of the tokens of `byte_tokenizer`
STEPS = 16  # bytes of a text that are tried: the first shows most of what has too many ways
NO_WAY = "NoExtension"  # llguidance's error for a grammar that no text can begin
Entry: TypeAlias = Mapping[str, Any]  # {"name", and "json_schema" or "lark_grammar"}


class Relaxation(msgspec.Struct, frozen=True):
    """A keyword that the grammar doesn't carry.

    `place`: of the schema it stands in, `$.properties.size`. `became`: what the grammar has
    instead. `checked`: the check of the finished answer sees to it.
    """

    place: str
    keyword: str
    became: str
    checked: bool = True

    def __str__(self) -> str:
        later = "checked afterwards" if self.checked else "not checked"
        return f'{self.place}: "{self.keyword}" relaxed to {self.became}, {later}'


class Check(msgspec.Struct, frozen=True):
    """What the finished answer has to satisfy: a schema of draft 2020-12 whose references all lead
    to its own `$defs`.
    """

    schema: Mapping[str, Any] | bool


class ShapeGrammar(msgspec.Struct, frozen=True):
    """A shape, compiled.

    `entries` belong into `{"grammars": [...]}`; the first is called `name`, and a Lark grammar
    beside them refers to it with `@name`. The others are named after it. `closed`: objects without
    further properties, of which their schema says nothing.
    """

    name: str
    entries: tuple[Entry, ...]
    relaxed: tuple[Relaxation, ...] = ()
    closed: tuple[Relaxation, ...] = ()
    check: Check | None = None

    @property
    def text(self) -> str:
        """The whole as llguidance takes it, where nothing stands around it."""
        return grammar_text(self.entries)


class CompileBudget:
    """Processor time that may be spent on what one client sent. It is asked between two compiles;
    none of them takes long, see the limits above and `backends.contract.grammar_limits`.
    """

    def __init__(self, seconds: float = 1.0) -> None:
        self._until = time.thread_time() + seconds

    def check(self, field: str) -> None:
        """Raises InvalidRequest where it is spent."""
        if time.thread_time() > self._until:
            raise InvalidRequest.at(field, "takes too long to compile.")


@lru_cache(maxsize=1)
def byte_tokenizer() -> LLTokenizer:
    """Each byte is a token, by its own number; those behind them are special."""
    return LLTokenizer("byte", slices=[])


def grammar_text(entries: Sequence[Entry]) -> str:
    """Llguidance's JSON; the first entry is where a text begins."""
    return msgspec.json.encode({"grammars": entries}).decode()


def fault(entries: Sequence[Entry]) -> str | None:
    """Why llguidance can't compile it, its own message; None where it can.

    What depends on the model's vocabulary (special tokens) is only seen where that is known.
    """
    refused, messages = LLMatcher.validate_grammar_with_warnings(
        grammar_text(entries), limits=parser_limits()
    )
    return messages[0] if refused else None


def proven(entries: Sequence[Entry], field: str) -> tuple[Entry, ...]:
    """`entries`, which llguidance can compile and run. Raises InvalidRequest with its message."""
    text = grammar_text(entries)
    refused, messages = LLMatcher.validate_grammar_with_warnings(text, limits=parser_limits())
    if refused:
        raise InvalidRequest.at(field, brief(messages[0]))
    # It warns of special tokens, which a vocabulary of bytes doesn't have.
    return tuple(entries) if messages else runnable(entries, field)


def runnable(entries: Sequence[Entry], field: str) -> tuple[Entry, ...]:
    """`entries`, which llguidance can run: some limits it only meets when it has a vocabulary."""
    text = grammar_text(entries)
    matcher = LLMatcher(byte_tokenizer(), text, log_level=0, limits=parser_limits())
    for _ in range(STEPS):
        allowed = int.from_bytes(matcher.compute_bitmask(), "little") & BYTES
        if matcher.is_error() or not allowed:
            break
        matcher.consume_token((allowed & -allowed).bit_length() - 1)
    if matcher.is_error():
        message = matcher.get_error()
        why = "no text satisfies it" if message.startswith(NO_WAY) else brief(message)
        raise InvalidRequest.at(field, why)
    return tuple(entries)


def brief(message: str) -> str:
    """What is wrong in one line, without the excerpts of the grammar that follow it."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    reasons = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    line = reasons[0] if reasons else lines[0]
    return line if len(line) <= 300 else line[:300] + "…"


class UnusablePattern(Exception):
    """The engine doesn't have such a regex, or gave up on it."""


class Pattern:
    """A regex of a JSON schema (ECMA-262's), or a format that the engine knows, ready to be
    searched for anywhere in a text.

    By llguidance's engine, in linear time, since the grammar has it from there: Python's `re` would
    take exponential time for some, and hold all threads.
    """

    def __init__(self, pattern: str, format: str = "") -> None:
        wanted = {"format": format} if format else {"pattern": pattern}
        text = grammar_text(({"json_schema": {"type": "string", **wanted}},))
        self._matcher = LLMatcher(byte_tokenizer(), text, log_level=0, limits=parser_limits())
        if self._matcher.is_error():
            raise UnusablePattern(f"the pattern {pattern!r:.200} can't be used: {self._why()}")

    def found_in(self, text: str) -> bool:
        """Raises UnusablePattern where the engine gives up."""
        self._matcher.reset()
        # As JSON, with as few escapes as it allows.
        written = list(msgspec.json.encode(text).replace(b"\x7f", b"\\u007f"))
        taken = self._matcher.try_consume_tokens(written)
        if self._matcher.is_error():
            raise UnusablePattern(f"a pattern takes too long: {self._why()}")
        return taken == len(written) and self._matcher.is_accepting()

    def _why(self) -> str:
        return brief(self._matcher.get_error())


# An escape, a class, which ends at the end of the text at the latest, or any character.
PATTERN_PART = re.compile(r"(?s)\\.|\[(?:[^\]\\]|\\.)*+\]?|.")


def lookaheads(pattern: str) -> list[tuple[bool, str]]:
    """The patterns of which a text must have each (True) or must not (False), which together say
    the same as `pattern`; empty where it has no lookaheads at its beginning, the only place where
    the engine, which has none, can do without.
    """
    if not pattern.startswith(("^(?=", "^(?!")):
        return []
    at, parts = 1, []
    while pattern.startswith(("(?=", "(?!"), at):
        end = _closing(pattern, at)
        if end is None:
            return []
        parts.append((pattern[at + 2] == "=", f"^(?:{pattern[at + 3 : end]})"))
        at = end + 1
    if any(depth == 0 and character == "|" for depth, character, _ in _outside(pattern, at)):
        return []
    return [*parts, (True, f"^{pattern[at:]}")]


def _closing(pattern: str, start: int) -> int | None:
    """Where the parenthesis that opens at `start` closes."""
    outside = _outside(pattern, start)
    return next((at for depth, character, at in outside if depth == 0 and character == ")"), None)


def _outside(pattern: str, start: int) -> Iterator[tuple[int, str, int]]:
    """Each character from `start` on that is no escape and in no class, with the depth of groups
    after it and its place.
    """
    depth = 0
    for part in PATTERN_PART.finditer(pattern, start):
        if len(character := part[0]) == 1:
            depth += (character == "(") - (character == ")")
            yield depth, character, part.start()


INLINE_SCHEMA = "%json"  # would be compiled without the limits of `reading` and `effort`


def regex_rule(pattern: str, field: str) -> str:
    r"""The grammar of what `pattern` matches as a whole. `\d` is an ASCII digit."""
    REGEX_LENGTH.check(len(pattern), field)
    return f"start: /{regex_to_lark(pattern, 'd')}/"


def lark_grammar(text: str, field: str) -> str:
    """A client's grammar: GBNF where it has rules like that, else Lark."""
    GRAMMAR_LENGTH.check(len(text), field)
    if RULE in text:
        return lark_of_gbnf(text, field)
    GRAMMAR_LINES.check(sum(":" in line for line in text.splitlines()), field)
    if INLINE_SCHEMA in text:
        message = f"{INLINE_SCHEMA} is not taken; send the schema as one, or as a structural tag"
        raise InvalidRequest.at(field, message)
    return text


def choices_rule(texts: tuple[str, ...], field: str) -> str:
    """The grammar of one of `texts`."""
    if not texts:
        raise InvalidRequest.at(field, "at least one choice is needed.")
    CHOICES.check(len(texts), field)
    CHOICE_LENGTH.check(max(map(len, texts)), field)
    CHOICES_LENGTH.check(sum(map(len, texts)), field)
    return f"start: {one_of(map(literal, texts))}"


RULE = "::="
# A literal, a class, a comment, any character, a parenthesis. Each ends at the end of the text at
# the latest, so that nothing is read twice.
PART = re.compile(r'(?s)"(?:[^"\\]|\\.?)*"?|\[(?:[^\]\\]|\\.?)*\]?|#[^\n]*|[.()]')
ESCAPE = re.compile(
    r"(?s)\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)|[\x00-\x1f\x7f]"
)
ANY_CHARACTER = "[\\x00-\U0010ffff]"


def lark_of_gbnf(text: str, field: str) -> str:
    """The Lark grammar, by llguidance's converter, whose message InvalidRequest is raised with.

    The converter doesn't read escapes by number, and takes `.` for anything but a new line, so both
    are written otherwise before (llama.cpp's grammars/README.md has the notation).
    """
    GRAMMAR_RULES.check(text.count(RULE), field)
    depths = accumulate((part == "(") - (part == ")") for part in PART.findall(text))
    GROUP_DEPTH.check(max(depths, default=0), field)
    try:
        return gbnf_to_lark(PART.sub(_plainer, text))
    except (Exception, RecursionError) as error:  # noqa: BLE001 - it raises bare `Exception`
        raise InvalidRequest.at(field, f"not a GBNF grammar: {error}") from None


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
        raise InvalidRequest(f"\\U{code:08x} is not a character")
    return chr(code)
