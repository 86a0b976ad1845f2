"""An engine's vocabulary as a `Tokenizer`; every byte that a text may have, to try it."""

from collections.abc import Sequence
from typing import Protocol

from backends.contract.protocol import (
    ModelContainer,
)


class Vocabulary(Protocol):
    """What engines read texts with. `ends`: the tokens that end a generation."""

    @property
    def ends(self) -> frozenset[int]: ...

    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]: ...

    def detokenize(self, tokens: Sequence[int]) -> str: ...

    def piece(self, token: int) -> bytes: ...


class VocabularyTokenizer:
    """A `Tokenizer` made of a vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokenize = vocabulary.tokenize
        self.detokenize = vocabulary.detokenize
        self.piece = vocabulary.piece
        self.ends = vocabulary.ends.__contains__


# What UTF-8 has: ASCII, what goes on a character, what begins one of two to four bytes.
EVERY_BYTE = "".join(
    map(
        chr,
        (
            *(*range(0xC0), *range(0x80, 0x800, 0x40)),
            *(0x800, *range(0x1000, 0x10000, 0x1000)),
            *(0x10000, *range(0x40000, 0x110000, 0x40000)),
        ),
    )
)


def try_vocabulary(container: ModelContainer) -> tuple[int, ...]:
    """Every token to text, and every byte to tokens, which are returned: in a process that may
    die of what native code makes of a broken vocabulary.
    """
    container.detokenize(range(container.info.vocab_size))
    return container.tokenize(EVERY_BYTE, special=True)
