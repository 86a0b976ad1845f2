"""A shape's grammar as llguidance takes it, what of the shape it doesn't carry, and whether
llguidance can compile it.
"""

import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from backends.constraints.limits import parser_limits
from gateway.errors import InvalidRequest

END = 256  # the token after those of the bytes
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
    none of them takes long, see `limits` and `backends.constraints.limits`.
    """

    def __init__(self, seconds: float = 1.0) -> None:
        self._until = time.thread_time() + seconds

    def check(self, field: str) -> None:
        """Raises InvalidRequest where it is spent."""
        if time.thread_time() > self._until:
            raise InvalidRequest(f"{field}: takes too long to compile.", param=field)


class _Bytes:
    """A vocabulary of the 256 bytes and an end, as llguidance asks a tokenizer for it."""

    eos_token_id = END
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids = (END,)

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


@lru_cache(maxsize=1)
def byte_tokenizer() -> LLTokenizer:
    """Each byte is a token, by its own number."""
    return LLTokenizer(TokenizerWrapper(_Bytes()), slices=[])


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
        raise InvalidRequest(f"{field}: {brief(messages[0])}", param=field)
    # It warns of special tokens, which a vocabulary of bytes doesn't have.
    return tuple(entries) if messages else runnable(entries, field)


def runnable(entries: Sequence[Entry], field: str) -> tuple[Entry, ...]:
    """`entries`, which llguidance can run: some limits it only meets when it has a vocabulary."""
    text = grammar_text(entries)
    matcher = LLMatcher(byte_tokenizer(), text, log_level=0, limits=parser_limits())
    matcher.compute_bitmask()
    if matcher.is_error():
        message = matcher.get_error()
        why = "no text satisfies it" if message.startswith(NO_WAY) else brief(message)
        raise InvalidRequest(f"{field}: {why}", param=field)
    return tuple(entries)


def brief(message: str) -> str:
    """What is wrong in one line, without the excerpts of the grammar that follow it."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    reasons = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    line = reasons[0] if reasons else lines[0]
    return line if len(line) <= 300 else line[:300] + "…"
