"""The reading of texts for a model that makes vectors or ranks: which tokens stand around them."""

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from backends.contract.encoder import EncoderInput, room_of_each
from backends.contract.protocol import Reading

Tokenize: TypeAlias = Callable[[str], tuple[int, ...]]  # texts of control tokens are plain text


class EncoderReader(msgspec.Struct, eq=False):
    """Texts, as a model reads them."""

    _tokenize: Tokenize
    _reading: Reading

    def read(self, text: str, most: int | None = None) -> EncoderInput:
        """See `EncoderContainer.read`."""
        before, after = self._reading.before, self._reading.after
        tokens = self._tokens(text)
        room = len(tokens) if most is None else max(0, most - len(before) - len(after))
        kept = tokens[:room]
        return EncoderInput((*before, *kept, *after), cut=len(tokens) - len(kept))

    def read_pair(self, query: str, document: str, most: int | None = None) -> EncoderInput:
        """See `EncoderContainer.read_pair`."""
        before, between, after = self._reading.pair
        first, second = self._tokens(query), self._tokens(document)
        whole = len(first) + len(second)
        around = len(before) + len(between) + len(after)
        room = whole if most is None else max(0, most - around)
        one, other = room_of_each(len(first), len(second), room)
        begun = (*before, *first[:one], *between)
        tokens = (*begun, *second[:other], *after)
        at = 0 if self._reading.joined else len(begun)
        return EncoderInput(tokens, second=at, cut=whole - one - other)

    def _tokens(self, text: str) -> tuple[int, ...]:
        return self._tokenize(text.lower() if self._reading.lower else text)
