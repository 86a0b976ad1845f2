"""Parses another server's vectors and scores. Pure.

Vectors come as OpenAI's, numbers or base64; scores as Jina's and Cohere's `results`, or as TEI's
bare list.
"""

import binascii
import math
from array import array
from base64 import b64decode
from collections.abc import Iterable

import msgspec

from backends.contract.remote import RemoteVectors
from backends.places.upstream.faults import broken, decoded

WIDEST = 1 << 16  # values of one vector
UNREADABLE = "a body without vectors or scores"
LARGEST = 3.4e38  # what float32 holds


class _VectorUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    total_tokens: int = 0


class _Embedding(msgspec.Struct, frozen=True):
    embedding: list[float] | str
    index: int | None = None


class _Embeddings(msgspec.Struct, frozen=True):
    data: list[_Embedding]
    usage: _VectorUsage | None = None


class _Result(msgspec.Struct, frozen=True):
    index: int
    relevance_score: float | None = None
    score: float | None = None


class _Results(msgspec.Struct, frozen=True):
    results: list[_Result]
    usage: _VectorUsage | None = None


def read_vectors(body: bytes, count: int) -> RemoteVectors:
    """The vectors of `count` texts, by their indices. Raises Unhealthy."""
    answer = decoded(body, _Embeddings, UNREADABLE)
    placed = (
        (place if one.index is None else one.index, _vector(one.embedding))
        for place, one in enumerate(answer.data)
    )
    found = _in_order(placed, count)
    if len({len(one) for one in found}) > 1:
        raise broken("vectors of several widths")
    return RemoteVectors(vectors=found, prompt_tokens=_tokens(answer.usage))


def read_scores(body: bytes, count: int) -> RemoteVectors:
    """The scores of `count` documents, by their indices. Raises Unhealthy."""
    if body.lstrip()[:1] == b"[":
        answer = _Results(decoded(body, list[_Result], UNREADABLE))
    else:
        answer = decoded(body, _Results, UNREADABLE)
    found = _in_order(((one.index, _score(one)) for one in answer.results), count)
    return RemoteVectors(vectors=found, prompt_tokens=_tokens(answer.usage))


def _in_order(placed: Iterable[tuple[int, bytes]], count: int) -> tuple[bytes, ...]:
    """For each of so many texts, what stands at its index."""
    found: dict[int, bytes] = {}
    for index, vector in placed:
        if not 0 <= index < count or index in found:
            raise broken(f"an answer for text {index} of a request with {count}")
        found[index] = vector
    if len(found) < count:
        raise broken(f"{len(found)} answers for {count} texts")
    return tuple(found[index] for index in range(count))


def _score(one: _Result) -> bytes:
    score = one.score if one.relevance_score is None else one.relevance_score
    if score is None:
        raise broken(f"no score of document {one.index}")
    return _packed([score])


def _vector(value: list[float] | str) -> bytes:
    if isinstance(value, list):
        return _packed(value)
    try:
        packed = b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise broken("a vector with invalid base64") from None
    numbers = array("f")
    if len(packed) % numbers.itemsize:
        raise broken("a vector whose base64 is not an array of numbers")
    numbers.frombytes(packed)
    return _packed(numbers.tolist())


def _packed(numbers: list[float]) -> bytes:
    if not 0 < len(numbers) <= WIDEST:
        raise broken(f"a vector of {len(numbers)} values")
    if not all(math.isfinite(one) and abs(one) < LARGEST for one in numbers):
        raise broken("a vector with values that are not numbers")
    return array("f", numbers).tobytes()


def _tokens(usage: _VectorUsage | None) -> int:
    return max(0, usage.prompt_tokens or usage.total_tokens) if usage else 0
