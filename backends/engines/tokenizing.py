"""An engine's vocabulary as a `Tokenizer`, and what a model is by its files and its vocabulary;
every byte that a text may have, to try it.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from backends.contract.catalog import ModelFiles
from backends.contract.protocol import ModelContainer, ModelInfo, SpecialTokens
from config.values import alike


class Vocabulary(ABC):
    """What engines read texts with. `ends`: the tokens that end a generation. A token's text is
    bytes, because it may hold a part of a character.
    """

    longest_token_bytes: int
    special: SpecialTokens
    adds_bos: bool
    ends: frozenset[int]

    def __init__(self, size: int) -> None:
        self.size = size
        self._pieces: dict[int, bytes] = {}

    @abstractmethod
    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
        """`special`: the texts of control tokens become those tokens. Adds no bos."""

    @abstractmethod
    def _read_piece(self, token: int) -> bytes:
        """As `piece`."""

    def piece(self, token: int) -> bytes:
        """The token's bytes, control tokens included; nothing for an id that isn't known."""
        text = self._pieces.get(token)
        if text is None:
            text = self._read_piece(token)
            if 0 <= token < self.size:
                self._pieces[token] = text
        return text

    def detokenize(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self.piece, tokens)).decode(errors="replace")


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
