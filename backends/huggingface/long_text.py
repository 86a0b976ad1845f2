"""A long text to tokens section by section, with exactly the tokens of the whole.

`Tokenizer.encode` holds the GIL from its first character to its last and takes some 200 bytes of
memory for one of text; `encode_batch` lets go of the GIL. So a section is a batch of one, its
memory is given back before the next one's, and other threads run meanwhile.

A text may be cut where no token can cross and nothing on one side changes how the other is read:
behind a letter, where a space or a punctuation mark follows. Whether that holds for a tokenizer is
not looked up but tried at every cut: the text around it must give the tokens of its two halves.
"""

import re
from collections.abc import Callable
from collections.abc import Set as AbstractSet

import msgspec
from tokenizers import Tokenizer

SECTION = 1 << 15  # characters
AROUND = 256  # characters on each side of a cut that is tried
TRIES = 64  # cuts that fail one after another before the rest is taken as a whole
_STRIDE = 1 << 16  # characters searched without letting other threads run
# A letter before white space or a mark; never before a digit, a letter or a combining character.
_PLACE = re.compile(r"[^\W\d_](?=[\s!-/:-@\[-`{-~、。，！？：；「」…—])")

Pairs = AbstractSet[tuple[int, int]]


class Cut(msgspec.Struct, frozen=True):
    """A section ends before character `end`, the next begins at `start`: one later where the
    tokenizer puts a space before every text by itself.
    """

    end: int
    start: int


class LongText:
    """For `tokenizer`. `pairs`: the neighbouring bytes inside all of its tokens, asked for when
    the first long text comes. `section`: the least characters of one.
    """

    def __init__(
        self, tokenizer: Tokenizer, pairs: Callable[[], Pairs], section: int = SECTION
    ) -> None:
        self._tokenizer = tokenizer
        self._pairs = pairs
        self._section = section

    def tokenize(self, text: str) -> tuple[int, ...]:
        """As the tokenizer does with the whole; adds nothing to it."""
        if len(text) <= self._section:
            return tuple(self._encode(text))
        tokens: list[int] = []
        start = 0
        while start < len(text):
            cut = self._cut(text, start + self._section)
            tokens += self._encode(text[start : cut.end])
            start = cut.start
        return tuple(tokens)

    def _encode(self, text: str) -> list[int]:
        [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def _cut(self, text: str, wanted: int) -> Cut:
        """The first place at `wanted` or behind it, or the text's end."""
        whole, tries = Cut(len(text), len(text)), 0
        while wanted < len(text):
            found = _PLACE.search(text, wanted - 1, wanted + _STRIDE)
            if found is None:
                wanted += _STRIDE
                continue
            wanted = found.end() + 1
            if (cut := self._tried(text, found.end())) is not None:
                return cut
            tries += 1
            if tries == TRIES:
                break
        return whole

    def _tried(self, text: str, place: int) -> Cut | None:
        before, after = text[place - 1].encode(), text[place].encode()
        if (before[-1], after[0]) in self._pairs():
            return None
        left, right = text[max(0, place - AROUND) : place], text[place : place + AROUND]
        together, first = self._encode(left + right), self._encode(left)
        if together == first + self._encode(right):
            return Cut(place, place)
        if text[place] == " " and together == first + self._encode(right[1:]):
            return Cut(place, place + 1)
        return None
