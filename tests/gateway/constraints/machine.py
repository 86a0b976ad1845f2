"""A grammar run over bytes, as an engine runs it over tokens."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from llguidance import LLMatcher

from backends.contract.conversation import JsonSchema, Shape
from backends.contract.grammar_limits import parser_limits
from gateway.constraints.compiling import grammar_of
from gateway.constraints.grammars import ShapeGrammar, byte_tokenizer

END = byte_tokenizer().eos_token
CORPUS = Path(__file__).parent / "schemas.jsonl.gz"


class Machine:
    """What a grammar takes and what it may write."""

    def __init__(self, text: str) -> None:
        self.matcher = LLMatcher(byte_tokenizer(), text, log_level=0, limits=parser_limits())
        assert not self.matcher.is_error(), self.matcher.get_error()

    def takes(self, text: str) -> bool:
        self.matcher.reset()
        written = list(text.encode())
        taken = self.matcher.try_consume_tokens(written)
        return bool(taken == len(written) and self.matcher.is_accepting())

    def begins(self, text: str) -> bool:
        """Whether `text` is the beginning of one that it takes."""
        self.matcher.reset()
        written = list(text.encode())
        return self.matcher.try_consume_tokens(written) == len(written)

    def writes(self, random: Random, longest: int = 2_000) -> str | None:
        """A text at random; None where it isn't at an end after `longest` bytes."""
        self.matcher.reset()
        written = bytearray()
        while len(written) < longest:
            token = random.choice(self._allowed())
            if token == END:
                return written.decode()
            self.matcher.consume_token(token)
            written.append(token)
        return None

    def _allowed(self) -> list[int]:
        if self.matcher.is_stopped():
            return [END]
        mask = self.matcher.compute_bitmask()
        found = [token for token in range(END + 1) if mask[token // 8] >> (token % 8) & 1]
        # Text may be anything: ASCII is enough. What ends a text is likelier, so that it ends.
        plain = [token for token in found if token < 128 or token == END] or found
        return plain + 4 * [token for token in plain if token == END or token in b'"}]']


def machine(shape: Shape) -> Machine:
    return Machine(grammar_of(shape).text)


def schema(document: Any, *, strict: bool = False) -> ShapeGrammar:
    return grammar_of(JsonSchema(schema=json.dumps(document).encode(), strict=strict))


def of_schema(document: Any) -> Machine:
    return Machine(schema(document).text)


class Case(msgspec.Struct, frozen=True):
    """A schema from the field."""

    id: str
    schema: Any
    valid: list[Any]
    invalid: list[Any]


def cases() -> Iterator[Case]:
    lines = gzip.decompress(CORPUS.read_bytes()).splitlines()
    return (msgspec.json.decode(line, type=Case) for line in lines)
