"""Vectors and ranks by models that are made for them, on a process as users start it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.served import Served, served

QUERY = "How many people live in Berlin?"
DOCUMENTS = ["New York is famous for a museum.", "Berlin has 3.5 million registered inhabitants."]


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, embed_gguf: Path, rank_gguf: Path
) -> Iterator[Served]:
    models = [
        {"name": "minilm", "path": str(embed_gguf)},
        {"name": "rank", "path": str(rank_gguf)},
    ]
    with served(tmp_path_factory.mktemp("ranking"), {"models": models}) as server:
        yield server


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_every_form_of_rerank_has_a_score_for_each_document(path: str, server: Served) -> None:
    body = {"model": "rank", "query": QUERY, "documents": DOCUMENTS}
    answer = server.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    assert {result["index"] for result in results} == {0, 1}
    scores = [result["relevance_score"] for result in results]
    assert scores == sorted(scores, reverse=True)


def test_the_text_that_answers_is_the_nearest(server: Served) -> None:
    body = {"model": "minilm", "input": [QUERY, *DOCUMENTS]}
    answer = server.client.post("/v1/embeddings", json=body)
    assert answer.status_code == 200, answer.text
    query, *others = [item["embedding"] for item in answer.json()["data"]]
    far, near = (sum(a * b for a, b in zip(query, v, strict=True)) for v in others)
    assert near > far + 0.2
