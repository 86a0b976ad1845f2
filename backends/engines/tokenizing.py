"""An engine's vocabulary as a `Tokenizer`, and what a model is by its files and its vocabulary;
every byte that a text may have, to try it.
"""

from collections.abc import Sequence
from typing import Protocol

from backends.contract.catalog import ModelFiles
from backends.contract.protocol import ModelContainer, ModelInfo, SpecialTokens
from config.values import alike


class Vocabulary(Protocol):
    """What engines read texts with. `ends`: the tokens that end a generation."""

    size: int
    longest_token_bytes: int
    special: SpecialTokens
    adds_bos: bool

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


def known_info(
    files: ModelFiles, vocabulary: Vocabulary, *, length: int, together: int
) -> ModelInfo:
    """What is known of a model before its engine is asked: `length` tokens for one job, `together`
    jobs at a time.
    """
    return alike(ModelInfo, files)(
        layers={},  # by device: where they lie isn't known
        context_length=length,
        max_concurrent=together,
        vocab_size=vocabulary.size,
        longest_token_bytes=vocabulary.longest_token_bytes,
        special=vocabulary.special,
        adds_bos=vocabulary.adds_bos,
        tokenizer_path=str(files.path),
    )


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
