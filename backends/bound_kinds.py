"""The kinds of bounds that a field of a job may have: numbers, texts, token ids, images."""

import math
from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from backends.protocol import (
    Constraint,
    Image,
    ModelInfo,
)

Extent = Literal["context", "vocabulary"]


class Bound(Protocol):
    """What one field may hold."""

    def fault(self, value: object) -> str | None:
        """Why `value` can't be, whatever the model; None where it can."""
        ...

    def fault_for(self, value: object, info: ModelInfo) -> str | None:
        """Why this model can't have `value`, which has no other fault."""
        ...

    def fitted(self, value: object, info: ModelInfo) -> object:
        """`value`, or what means the same to this model and is not larger than it needs to be."""
        ...


class Kind(msgspec.Struct, frozen=True):
    """A bound without faults, for others to be made of."""

    def fault(self, value: object) -> str | None:
        return None

    def fault_for(self, value: object, info: ModelInfo) -> str | None:
        return None

    def fitted(self, value: object, info: ModelInfo) -> object:
        return value


class Flag(Kind, frozen=True):
    """True or false."""


class Label(Kind, frozen=True):
    """Only compared, and never handed to an engine's library."""


class Places(Kind, frozen=True):
    """At most so many places in the prompt. They are hints: one that isn't there means nothing."""

    most: int

    def fault(self, value: object) -> str | None:
        assert isinstance(value, tuple)
        if len(value) > self.most:
            return f"Expected at most {self.most} places, got {len(value)}."
        return None


class Number(Kind, frozen=True, kw_only=True):
    """From `low` to `high`, both included; or None, where the field may be. What is above `enough`
    of the model means the same as that.
    """

    low: float
    high: float = math.inf  # infinity only where `enough` is given: then it never arrives
    enough: Extent | None = None

    def fault(self, value: object) -> str | None:
        assert value is None or isinstance(value, int | float)
        if value is None or (self.low <= value <= self.high and value != math.inf):
            return None
        end = "" if self.high == math.inf else f" to {self.high:g}"
        return f"Expected a number from {self.low:g}{end}, got {_short(value)}."

    def fitted(self, value: object, info: ModelInfo) -> object:
        if value is None or self.enough is None:
            return value
        assert isinstance(value, int)
        return min(value, _extent(info, self.enough))


class Texts(Kind, frozen=True):
    """At most `count` texts of at most `size` characters each; or one text alone."""

    count: int
    size: int
    total: int | None = None  # characters of all of them; None: as many as they may have each

    def fault(self, value: object) -> str | None:
        if isinstance(value, str):
            value = (value,)
        assert isinstance(value, tuple)
        if len(value) > self.count:
            return f"Expected at most {self.count} texts, got {len(value)}."
        longest = max(map(len, value), default=0)
        if longest > self.size:
            return f"Expected texts of at most {self.size} characters, one has {longest}."
        if self.total is not None and sum(map(len, value)) > self.total:
            return f"Expected at most {self.total} characters in all texts together."
        if any(map(_halved, value)):
            return "A text has half a surrogate pair, which is no character."
        return None


class TokenIds(Kind, frozen=True):
    """Token ids of the vocabulary; no more of them than it has."""

    def fault_for(self, value: object, info: ModelInfo) -> str | None:
        assert isinstance(value, tuple)
        return _wrong(value, info)


class Biases(Kind, frozen=True):
    """Pairs of a token id of the vocabulary and what is added to its logit: from `-high` to `high`,
    or minus infinity, which bans it.
    """

    high: float

    def fault(self, value: object) -> str | None:
        assert isinstance(value, tuple)
        for _, bias in value:
            if not (-self.high <= bias <= self.high or bias == -math.inf):
                least, most = -self.high, self.high
                return f"Expected a bias from {least:g} to {most:g}, got {_short(bias)}."
        return None

    def fault_for(self, value: object, info: ModelInfo) -> str | None:
        assert isinstance(value, tuple)
        return _wrong([token for token, _ in value], info)


class PromptIds(TokenIds, frozen=True):
    """At least one token. `bounded` checks how many fit."""

    def fault(self, value: object) -> str | None:
        return None if value else "The prompt is empty."

    def fault_for(self, value: object, info: ModelInfo) -> str | None:
        assert isinstance(value, tuple)
        return unknown(value, info)


class Images(Kind, frozen=True):
    """At most `count` pictures with at most `pixels` together, each with the bytes it says."""

    count: int
    pixels: int

    def fault(self, value: object) -> str | None:
        assert isinstance(value, tuple)
        if len(value) > self.count:
            return f"Expected at most {self.count} images, got {len(value)}."
        if any(_odd(image) for image in value):
            return "An image is empty, or not as large as it says."
        if sum(image.width * image.height for image in value) > self.pixels:
            return f"The images have more than {self.pixels:,} pixels together."
        return None


class GrammarText(Kind, frozen=True):
    """A constraint, whose text has at most `size` bytes."""

    size: int

    def fault(self, value: object) -> str | None:
        assert value is None or isinstance(value, Constraint)
        if value is None:
            return None
        if _halved(value.grammar):
            return "The grammar has half a surrogate pair, which is no character."
        if (size := len(value.grammar.encode())) > self.size:
            return f"Expected a grammar of at most {self.size:,} bytes, got {size:,}."
        return None

    def fault_for(self, value: object, info: ModelInfo) -> str | None:
        if value is None or info.constrains:
            return None
        return f"{info.backend} can't be held to a grammar."


class Nested(Kind, frozen=True):
    """A struct with a table of its own, which `bounded` checks."""


def _extent(info: ModelInfo, extent: Extent) -> int:
    return info.context_length if extent == "context" else info.vocab_size


def _wrong(tokens: Sequence[int], info: ModelInfo) -> str | None:
    if len(tokens) > info.vocab_size:
        return f"Expected at most {info.vocab_size} tokens, got {len(tokens)}."
    return unknown(tokens, info)


def unknown(tokens: Sequence[int], info: ModelInfo) -> str | None:
    """The ends first: this is done for every token of every prompt."""
    if not tokens or (min(tokens) >= 0 and max(tokens) < info.vocab_size):
        return None
    wrong = next(token for token in tokens if not 0 <= token < info.vocab_size)
    return f"token {_short(wrong)} is not in the vocabulary"


def _odd(image: Image) -> bool:
    whole = image.width * image.height * 3 == len(image.rgb)
    return not (image.width > 0 and image.height > 0 and whole)


def _short(number: float) -> str:
    """Python refuses to write whole numbers of thousands of digits."""
    if isinstance(number, int):
        return str(number) if abs(number) < 2**64 else "one far beyond"
    return f"{number:g}"


def _halved(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
