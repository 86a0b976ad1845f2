"""Embeddings and reranking of models that other servers run: a Roundhouse behind ours, and servers
that fail.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from config.settings import Config, KeyConfig
from config.upstreams import UpstreamConfig
from tests.backends.places.upstream.far import far, with_status
from tests.gateway.http.serving import serving
from tests.promises.test_embeddings import TEXTS, settings

pytestmark = pytest.mark.anyio


def in_front(url: str, **options: Any) -> Config:
    upstream = UpstreamConfig(name="elsewhere", urls=(url,), probe_interval=0.05, **options)
    server = msgspec.structs.replace(Config().server, port=0)
    return Config(server=server, upstreams=(upstream,))


async def test_a_roundhouse_behind_ours_embeds_and_ranks(
    tmp_path: Path, embed_gguf: Path, rank_gguf: Path
) -> None:
    async with serving(settings(tmp_path, embed_gguf, rank_gguf), tmp_path) as behind:
        names = {"far": "minilm", "judge": "ranker"}
        front = in_front(f"{behind.url}/v1", models=names)
        async with serving(front, tmp_path) as running:
            for fields in ({}, {"encoding_format": "base64"}, {"dimensions": 16}):
                asked = {"model": "far", "input": TEXTS, **fields}
                got = await running.client.post("/v1/embeddings", json=asked)
                assert got.status_code == 200, got.text
                own = {**asked, "model": "minilm"}
                direct = (await behind.client.post("/v1/embeddings", json=own)).json()
                assert got.json()["usage"] == direct["usage"]
                assert got.headers["x-roundhouse-backend"] == "upstream"
                if not fields:
                    for one, other in zip(got.json()["data"], direct["data"], strict=True):
                        assert one["embedding"] == pytest.approx(other["embedding"], abs=1e-4)
            ranked = {"model": "judge", "query": "Who eats?", "documents": TEXTS, "top_n": 2}
            got = await running.client.post("/v2/rerank", json=ranked)
            own = {**ranked, "model": "ranker"}
            direct = (await behind.client.post("/v2/rerank", json=own)).json()
            indices = [one["index"] for one in got.json()["results"]]
            assert indices == [one["index"] for one in direct["results"]]
            scored = {
                "model": "judge",
                "text_1": "Who eats?",
                "text_2": TEXTS,
                "generation_config": {"seed": 7},
            }
            got = await running.client.post("/v1/score", json=scored)
            assert got.headers["x-roundhouse-ignored"] == "generation_config.seed"
            refused = await running.client.post(
                "/v1/embeddings", json={"model": "far", "input": "word " * 900}
            )
            assert refused.status_code == 400
            assert "512" in refused.json()["error"]["message"]


async def test_a_server_that_fails_is_reported_without_its_address(tmp_path: Path) -> None:
    for status, words in ((404, b'{"error": {"message": "no such route"}}'), (200, b"[]")):
        async with far(with_status(status, words)) as other:
            front = in_front(other.url, models={"far": "theirs"})
            async with serving(front, tmp_path) as running:
                asked = {"model": "far", "input": "a"}
                got = await running.client.post("/v1/embeddings", json=asked)
                assert got.status_code in (400, 404, 502)
                assert other.url not in got.text
                assert got.json()["error"]["message"]


async def test_only_the_key_that_may_use_it(tmp_path: Path) -> None:
    keys = (KeyConfig(key="a", models=("other",)),)
    async with far(with_status(200, b"{}")) as other:
        front = msgspec.structs.replace(in_front(other.url, models={"far": "theirs"}), keys=keys)
        async with serving(front, tmp_path) as running:
            asked = {"model": "far", "input": "a"}
            got = await running.client.post(
                "/v1/embeddings", json=asked, headers={"x-api-key": "a"}
            )
            assert got.status_code == 404
            assert not other.asked
