"""What other servers say of vectors and scores: read by index, within limits, or refused."""

from base64 import b64encode
from typing import Any

import msgspec
import pytest

from backends.contract.encoder import values
from backends.places.upstream.faults import Unhealthy
from backends.places.upstream.vectors import read_scores, read_vectors


def body(answer: Any) -> bytes:
    return msgspec.json.encode(answer)


def data(*vectors: Any, **usage: int) -> bytes:
    listed = [{"index": at, "embedding": one} for at, one in enumerate(vectors)]
    return body({"data": listed, "usage": usage or None})


def test_numbers_and_base64_are_the_same_vector() -> None:
    plain = read_vectors(data([0.5, -1.0], prompt_tokens=3), 1)
    packed = read_vectors(data(b64encode(plain.vectors[0]).decode()), 1)
    assert values(plain.vectors[0]) == [0.5, -1.0]
    assert packed.vectors == plain.vectors
    assert (plain.prompt_tokens, packed.prompt_tokens) == (3, 0)


def test_indices_count_not_places() -> None:
    answer = {"data": [{"index": 1, "embedding": [2.0]}, {"index": 0, "embedding": [1.0]}]}
    assert [values(one) for one in read_vectors(body(answer), 2).vectors] == [[1.0], [2.0]]
    ranked = {"results": [{"index": 1, "relevance_score": 0.75}, {"index": 0, "score": 0.25}]}
    assert [values(one) for one in read_scores(body(ranked), 2).vectors] == [[0.25], [0.75]]
    bare = [{"index": 1, "score": 0.75}, {"index": 0, "score": 0.25}]
    assert read_scores(body(bare), 2).vectors == read_scores(body(ranked), 2).vectors


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense",
        b"[" * 100_000,
        body({"data": "none"}),
        data(),
        data([1.0], [2.0]),
        data([]),
        data([1e300]),
        data("no base64!"),
        data(b64encode(b"abc").decode()),
        data(b64encode(b"\x00\x00\xc0\x7f").decode()),  # not a number
        body({"data": [{"index": 5, "embedding": [1.0]}]}),
        body({"data": [{"index": -1, "embedding": [1.0]}]}),
        data([0.0] * 70_000),
    ],
)
def test_vectors_that_make_no_sense_are_the_other_servers_fault(answer: bytes) -> None:
    with pytest.raises(Unhealthy):
        read_vectors(answer, 1)


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense",
        body({"results": []}),
        body({"results": [{"index": 0}]}),
        body({"results": [{"index": 1, "relevance_score": 1}]}),
        body({"results": [{"index": 0, "score": 1}, {"index": 0, "score": 2}]}),
        body({"results": [{"index": 0, "relevance_score": 1e300}]}),
    ],
)
def test_scores_that_make_no_sense_are_the_other_servers_fault(answer: bytes) -> None:
    with pytest.raises(Unhealthy):
        read_scores(answer, 1)


def test_widths_agree() -> None:
    with pytest.raises(Unhealthy):
        read_vectors(data([1.0], [1.0, 2.0]), 2)
