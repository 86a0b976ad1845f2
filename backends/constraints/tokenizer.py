"""A loaded model's vocabulary in llguidance's form, alike for every engine.

It is made of what each engine reports of its tokens: their bytes, which of them are control tokens,
which end a generation, and how a text is tokenized. The last is what makes forced tokens those that
the model's own tokenizer makes of their text.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from llguidance import LLTokenizer

from backends.protocol import ModelInfo

# Written before a text that is tokenized alone, so that no tokenizer takes its beginning for that
# of a document and puts a space there; the tokens it takes are left out again.
_MARK = "\x02"


class Vocabulary(Protocol):
    """The part of `engine.Engine` that describes tokens; any thread may call it."""

    @property
    def info(self) -> ModelInfo: ...

    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]: ...

    def piece(self, token: int) -> bytes: ...

    def ends(self, token: int) -> bool: ...


class _Spelled:
    """What `LLTokenizer` takes for a tokenizer (llguidance's `TokenizerWrapper`)."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        size = vocabulary.info.vocab_size
        self.ends = [token for token in range(size) if vocabulary.ends(token)]
        self.eos_token_id = next(iter(self.ends), size - 1)
        self.special_token_ids = sorted({*self.ends, *control_tokens(vocabulary).values()})
        self.tokens = [vocabulary.piece(token) for token in range(size)]
        for token in self.special_token_ids:  # an end token may have no text
            self.tokens[token] = self.tokens[token] or b"<token-%d>" % token
        self._tokenized = _context_free(vocabulary)

    def __call__(self, text: str | bytes) -> list[int]:
        whole = text.decode(errors="replace") if isinstance(text, bytes) else text
        return list(self._tokenized(whole))


class Tokenizing(Protocol):
    """What both an engine and a container report of their vocabulary."""

    @property
    def info(self) -> ModelInfo: ...

    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]: ...


def control_tokens(vocabulary: Tokenizing) -> dict[str, int]:
    """The control tokens that a grammar has to name as such (`<[id]>`), by their texts. A
    vocabulary marks runs of spaces and the like in the same way as a turn's marker: those are text.
    """
    markers = filter(_is_marker, vocabulary.info.special.control)
    found = {text: vocabulary.tokenize(text, special=True) for text in markers}
    return {text: tokens[0] for text, tokens in found.items() if len(tokens) == 1}


def _is_marker(text: str) -> bool:
    return len(text) > 2 and (text[0], text[-1]) in {("<", ">"), ("[", "]")}


def _context_free(vocabulary: Vocabulary) -> Callable[[str], Sequence[int]]:
    """Tokenizes a text as one that stands after others."""
    mark = vocabulary.tokenize(_MARK, special=False)

    def tokenized(text: str) -> Sequence[int]:
        tokens = vocabulary.tokenize(_MARK + text, special=False)
        if tokens[: len(mark)] == mark:
            return tokens[len(mark) :]
        return vocabulary.tokenize(text, special=False)

    return tokenized


class GrammarTokenizer:
    """Of one model. Made on a worker thread: llguidance keeps the GIL for 2 to 3 us a token."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        spelled = _Spelled(vocabulary)
        self.size = vocabulary.info.vocab_size
        self.ends = spelled.ends
        self.tokens = LLTokenizer(
            spelled,  # type: ignore[arg-type]  # it is asked for by its attributes
            n_vocab=self.size,
            eos_token=self.ends or None,
        )
