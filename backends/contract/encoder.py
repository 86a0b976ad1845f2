"""The container of a model that reads texts and writes none, it makes vectors or ranks:

inputs = [container.read(text) for text in texts]       # in any thread
vectors = await container.encode(inputs)                # of all of them, in their order
"""

import math
from array import array
from collections.abc import Sequence
from typing import Protocol

import msgspec

from backends.contract.protocol import LoadedModel


class EncoderInput(msgspec.Struct, frozen=True):
    """One text, or a query with a document, as the model reads it: with the special tokens around.

    `second`: where the second text of a pair begins; 0: there is none. `cut`: how many tokens were
    left out so that it fits.
    """

    tokens: tuple[int, ...]
    second: int = 0
    cut: int = 0


class EncoderContainer(LoadedModel, Protocol):
    """A model in memory that makes vectors (its task is "embed"), or scores of documents for a
    query ("rank"): tokens in and bytes out. Its texts are read in the gateway's process, wherever
    it runs. Every container passes tests/backends/encoder_contract.py.
    """

    def read(self, text: str, most: int | None = None) -> EncoderInput:
        """The tokens of `text`, of which the last are left out so that there are at most `most` in
        all. Texts of control tokens are plain text.
        """
        ...

    def read_pair(self, query: str, document: str, most: int | None = None) -> EncoderInput:
        """As `read`; what is left out is of the longer one first. Only of a model that ranks."""
        ...

    async def encode(self, inputs: Sequence[EncoderInput]) -> Sequence[bytes]:
        """For each input, in their order, `info.vectors.width` numbers; where the task is "rank"
        one, the higher the better. They are float32, the lowest byte first.

        When it returns, or was cancelled, the device no longer works for them. Raises InvalidJob,
        InputTooLong, GenerationFailed, OutOfMemory.
        """
        ...


ITEM = array("f").itemsize  # bytes of one value


def values(vector: bytes) -> list[float]:
    """The numbers of a vector."""
    numbers = array("f")
    numbers.frombytes(vector)
    return numbers.tolist()


def shortened(vector: bytes, width: int, *, normalized: bool) -> bytes:
    """The first `width` values, of length 1 again where the vector is `normalized`."""
    if width * ITEM >= len(vector):
        return vector
    kept = values(vector[: width * ITEM])
    length = math.hypot(*kept) if normalized else 1.0
    return array("f", [value / length for value in kept] if length else kept).tobytes()


def cosine(first: Sequence[float], second: Sequence[float]) -> bytes:
    """Of the angle between two vectors: one number, as a score is given."""
    lengths = math.hypot(*first) * math.hypot(*second)
    product = math.fsum(one * other for one, other in zip(first, second, strict=True))
    return array("f", (product / lengths if lengths else 0.0,)).tobytes()


def room_of_each(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of two texts stay where both together may have `room`: the longer one gives
    up tokens until they are alike, then both do (transformers' "longest_first").
    """
    if first + second <= room:
        return first, second
    half = room // 2
    if first <= half:
        return first, room - first
    if second <= half:
        return room - second, second
    return (room - half, half) if first > second else (half, room - half)
