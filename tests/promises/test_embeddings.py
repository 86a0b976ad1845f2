"""Embeddings and reranking through a real server: every API's form, the official clients, and what
is refused in words.
"""

import base64
import math
from array import array
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import ollama
import openai
import pytest

import bundled
from config.settings import Config, KeyConfig, ModelConfig, SwapConfig
from tests.gateway.http.serving import HELLO, Running, config, serving, state
from tests.hang import HANG

pytestmark = pytest.mark.anyio

TEXTS = ["A man is eating food.", "Someone has a meal.", "The stock market fell today."]
DOCUMENTS = ["It rains.", "A man is eating food.", "Nothing."]
LONG = "word " * 900


def settings(folder: Path, embed: Path, rank: Path, **changes: Any) -> Config:
    made = config(folder)
    further = (
        ModelConfig(name="minilm", path=str(embed)),
        ModelConfig(name="ranker", path=str(rank)),
    )
    return msgspec.structs.replace(made, models=(*made.models, *further), **changes)


@pytest.fixture(scope="module")
async def server(
    tmp_path_factory: pytest.TempPathFactory, embed_gguf: Path, rank_gguf: Path
) -> AsyncIterator[Running]:
    folder = tmp_path_factory.mktemp("server")
    async with serving(settings(folder, embed_gguf, rank_gguf), folder) as running:
        yield running


async def embed(server: Running, path: str = "/v1/embeddings", **fields: Any) -> Any:
    return await server.client.post(path, json={"model": "minilm", **fields})


async def rerank(server: Running, path: str = "/v1/rerank", **fields: Any) -> Any:
    body = {"model": "ranker", "query": "Who eats?", "documents": DOCUMENTS, **fields}
    return await server.client.post(path, json=body)


@pytest.fixture
async def api(server: Running) -> AsyncIterator[ollama.AsyncClient]:
    async with ollama.AsyncClient(host=server.url) as one:
        yield one


def numbers(encoded: str) -> list[float]:
    found = array("f")
    found.frombytes(base64.b64decode(encoded))
    return found.tolist()


def product(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


# --------------------------------------------------------------------------------------- embeddings


async def test_openais_client_gets_the_vectors_in_order(server: Running) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as api:
        usual = await api.embeddings.create(model="minilm", input=TEXTS)  # it asks for base64
        plain = await api.embeddings.create(model="minilm", input=TEXTS, encoding_format="float")
    assert [one.index for one in usual.data] == [0, 1, 2]
    first, near, far = (one.embedding for one in usual.data)
    assert len(first) == 384
    assert math.isclose(math.hypot(*first), 1, abs_tol=1e-4)
    assert product(first, near) > 0.4
    assert product(first, far) < 0.2
    assert usual.usage.prompt_tokens == usual.usage.total_tokens > 15
    assert usual.model == "minilm"
    for one, other in zip(usual.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-5)


async def test_base64_is_of_the_same_numbers(server: Running) -> None:
    plain = (await embed(server, input=TEXTS[0])).json()["data"][0]["embedding"]
    packed = (await embed(server, input=TEXTS[0], encoding_format="base64")).json()
    assert numbers(packed["data"][0]["embedding"]) == pytest.approx(plain, abs=1e-5)


async def test_voyage_s_and_jina_s_words_for_the_vectors(server: Running) -> None:
    asked: dict[str, Any] = {
        "output_dimension": 64,
        "output_dtype": "float",
        "embedding_type": "base64",
    }
    answer = await embed(server, input=TEXTS[0], **asked)
    assert len(numbers(answer.json()["data"][0]["embedding"])) == 64
    assert "x-roundhouse-ignored" not in answer.headers


async def test_token_ids_are_taken_as_they_are(server: Running) -> None:
    text = (await embed(server, input=TEXTS[0])).json()
    asked = {"model": "minilm", "content": TEXTS[0]}
    tokens = (await server.client.post("/tokenize", json=asked)).json()["tokens"]
    framed = [101, *tokens, 102]  # [CLS] … [SEP]
    for given in (framed, [framed]):
        answer = (await embed(server, input=given)).json()
        assert len(answer["data"]) == 1
        expected = text["data"][0]["embedding"]
        assert answer["data"][0]["embedding"] == pytest.approx(expected, abs=1e-4)
        assert answer["usage"] == text["usage"]
    mixed = (await embed(server, input=["One", framed])).json()
    assert [one["index"] for one in mixed["data"]] == [0, 1]


async def test_dimensions_are_the_first_values_of_length_one(server: Running) -> None:
    whole = (await embed(server, input=TEXTS[0])).json()["data"][0]["embedding"]
    short = (await embed(server, input=TEXTS[0], dimensions=64)).json()["data"][0]["embedding"]
    length = math.hypot(*whole[:64])
    assert short == pytest.approx([value / length for value in whole[:64]], abs=1e-4)
    for wrong in (0, -1, 385):
        refused = await embed(server, input="a", dimensions=wrong)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "dimensions"


async def test_who_names_no_model_gets_the_one_that_embeds(server: Running) -> None:
    answer = await server.client.post("/v1/embeddings", json={"input": ["a"]})
    assert answer.json()["model"] == "minilm"
    assert answer.headers["x-roundhouse-model"] == "minilm"
    ranked = await server.client.post("/rerank", json={"query": "a", "documents": ["b"]})
    assert ranked.json()["model"] == "ranker"
    chat = await server.client.post("/v1/chat/completions", json={"messages": HELLO})
    assert chat.json()["model"] == "roundhouse-tiny"


async def test_llama_servers_own_form_has_a_list_of_vectors(server: Running) -> None:
    expected = (await embed(server, input=TEXTS[:2])).json()["data"]
    for path in ("/embedding", "/embeddings"):
        vectors = (await embed(server, path, content=TEXTS[:2])).json()
        assert [one["index"] for one in vectors] == [0, 1]
        for one, other in zip(vectors, expected, strict=True):
            assert one["embedding"][0] == pytest.approx(other["embedding"], abs=1e-4)
    assert (await embed(server, "/embeddings", input="a")).json()["object"] == "list"


async def test_ollamas_client_embeds(server: Running, api: ollama.AsyncClient) -> None:
    expected = (await embed(server, input=TEXTS)).json()["data"]
    answer = await api.embed(model="minilm:latest", input=TEXTS)
    assert answer.model == "minilm"
    assert answer.prompt_eval_count
    assert answer.total_duration
    for one, other in zip(answer.embeddings, expected, strict=True):
        assert one == pytest.approx(other["embedding"], abs=1e-4)
    old = await api.embeddings(model="minilm", prompt=TEXTS[0])
    assert old.embedding == pytest.approx(expected[0]["embedding"], abs=1e-4)
    short = await api.embed(model="minilm", input="a", dimensions=8)
    assert len(short.embeddings[0]) == 8
    cut = await api.embed(model="minilm", input=LONG)
    assert len(cut.embeddings) == 1
    with pytest.raises(ollama.ResponseError, match="at most 512 tokens"):
        await api.embed(model="minilm", input=LONG, truncate=False)
    shown = await api.show("minilm")
    assert shown.capabilities == ["embedding"]


async def test_ollama_loads_and_lets_go_by_an_empty_request(
    server: Running, api: ollama.AsyncClient
) -> None:
    assert (await api.embed(model="minilm", input="")).embeddings == []
    assert server.registry.status("minilm").state == "loaded"
    await api.embed(model="minilm", input="", keep_alive=0)
    await state(server, "minilm", "unloaded")


async def test_what_is_too_long_is_refused_or_cut_and_said(server: Running) -> None:
    refused = await embed(server, input=["short", LONG])
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["param"] == "input[1]"
    for fields in ({"truncate": True}, {"truncate_prompt_tokens": -1}):
        cut = await embed(server, input=["short", LONG], **fields)
        assert cut.status_code == 200
        assert cut.headers["x-roundhouse-truncated"] == "1"
    assert "x-roundhouse-truncated" not in (await embed(server, input="short")).headers
    few = await embed(server, input=[LONG, [101, 7, 7, 7, 102]], truncate_prompt_tokens=4)
    assert few.json()["usage"]["prompt_tokens"] == 8
    assert few.headers["x-roundhouse-truncated"] == "2"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input[0]"),
        ({"input": [1, "a"]}, "input[0]"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": [[99_999_999]]}, "input[0]"),
        ({"input": [2**80]}, "input[0]"),
        ({"input": [[-1]]}, "input[0][0]"),
        ({"input": ["a"] * 2_049}, "input"),
        ({"input": "a" * (2**20 + 1)}, "input"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "output_dtype": "int8"}, "output_dtype"),
        ({"input": "a", "embedding_type": "binary"}, "embedding_type"),
        ({"input": "a", "embed_dtype": "float16"}, "embed_dtype"),
        ({"input": "a", "endianness": "big"}, "endianness"),
        ({"input": "a", "embd_normalize": 0}, "embd_normalize"),
        ({"input": "a", "output_dimension": 0}, "output_dimension"),
        ({"input": "a", "prompt_name": "query"}, "prompt_name"),
        ({"input": "a", "input_type": "poem"}, "input_type"),
    ],
)
async def test_a_wrong_field_is_named(fields: dict[str, Any], param: str, server: Running) -> None:
    refused = await embed(server, **fields)
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"] == param


async def test_what_has_no_meaning_here_is_said(server: Running) -> None:
    answer = await embed(server, input="a", input_type="query", late_chunking=True, user="me")
    assert answer.headers["x-roundhouse-ignored"] == "input_type, late_chunking"
    answer = await server.client.post("/embed", json={"inputs": "a", "normalize": False})
    assert answer.headers["x-roundhouse-ignored"] == "normalize"


# --------------------------------------------------------------------------------------------- rank


async def test_documents_are_ranked_the_best_first(server: Running) -> None:
    ranking = (await rerank(server)).json()
    scores = [one["relevance_score"] for one in ranking["results"]]
    assert scores == sorted(scores, reverse=True)
    assert sorted(one["index"] for one in ranking["results"]) == [0, 1, 2]
    assert all(0 < score < 1 for score in scores)
    assert ranking["usage"]["total_tokens"] > 10
    best = (await rerank(server, top_n=1, return_documents=True)).json()["results"]
    assert len(best) == 1
    assert best[0]["index"] == ranking["results"][0]["index"]
    assert best[0]["document"] == {"text": DOCUMENTS[best[0]["index"]]}


async def test_voyage_s_words_for_it(server: Running) -> None:
    expected = (await rerank(server, top_n=1)).json()
    ranking = await rerank(server, top_k=1, truncation=True)
    assert "x-roundhouse-ignored" not in ranking.headers
    assert ranking.json()["data"] == expected["results"]
    assert "data" not in expected
    fault = await rerank(server, top_k=0)
    assert (fault.status_code, fault.json()["error"]["param"]) == (400, "top_k")


@pytest.mark.parametrize("path", ["/rerank", "/v2/rerank", "/reranking", "/v1/reranking"])
async def test_every_spelling_of_the_path_ranks_alike(path: str, server: Running) -> None:
    expected = (await rerank(server)).json()["results"]
    documents = [{"text": text} for text in DOCUMENTS]
    ranking = (await rerank(server, path, documents=documents)).json()
    assert [one["index"] for one in ranking["results"]] == [one["index"] for one in expected]
    assert ranking["meta"]["api_version"]["version"] == ("2" if "v2" in path else "1")
    assert ranking["id"]


async def test_teis_form_is_a_list_of_scores(server: Running) -> None:
    body = {"model": "ranker", "query": "Who eats?", "texts": DOCUMENTS, "return_text": True}
    ranking = (await server.client.post("/rerank", json=body)).json()
    expected = (await rerank(server)).json()["results"]
    assert [one["index"] for one in ranking] == [one["index"] for one in expected]
    assert ranking[0]["text"] == DOCUMENTS[ranking[0]["index"]]
    assert ranking[0]["score"] == pytest.approx(expected[0]["relevance_score"], abs=1e-4)


async def score(server: Running, path: str = "/v1/score", **fields: Any) -> Any:
    return await server.client.post(path, json={"model": "ranker", **fields})


async def test_pairs_are_scored_as_documents_are_ranked(server: Running) -> None:
    query = "Who eats?"
    ranked = (await rerank(server, query=query)).json()["results"]
    expected = {one["index"]: one["relevance_score"] for one in ranked}
    for path in ("/v1/score", "/score"):
        for fields in (
            {"text_1": query, "text_2": DOCUMENTS},
            {"text_1": [query] * 3, "text_2": DOCUMENTS},
            {"queries": query, "documents": DOCUMENTS},
        ):
            found = (await score(server, path, **fields)).json()
            assert found["object"] == "list"
            assert [one["index"] for one in found["data"]] == [0, 1, 2]
            assert {one["index"]: one["score"] for one in found["data"]} == pytest.approx(expected)
            assert found["usage"]["total_tokens"] == found["usage"]["prompt_tokens"] > 0
    unnamed = await score(server, model="", text_1=query, text_2=DOCUMENTS[0])
    assert unnamed.json()["model"] == "ranker"
    assert unnamed.json()["data"][0]["score"] == pytest.approx(expected[0])


async def test_an_embedding_model_scores_by_the_cosine(server: Running) -> None:
    vectors = [one["embedding"] for one in (await embed(server, input=TEXTS)).json()["data"]]
    found = await score(server, model="minilm", text_1=TEXTS[0], text_2=TEXTS)
    cosines = [sum(map(float.__mul__, vectors[0], vector)) for vector in vectors]
    assert [one["score"] for one in found.json()["data"]] == pytest.approx(cosines, abs=1e-6)


@pytest.mark.parametrize("model", ["ranker", "minilm"])
async def test_what_a_score_does_not_apply_is_said(model: str, server: Running) -> None:
    got = await score(server, model=model, text_1="a", text_2="b", softness=2)
    assert got.headers["x-roundhouse-ignored"] == "softness"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "text_1"),
        ({"text_1": "a"}, "text_2"),
        ({"text_1": "a", "text_2": []}, "text_2"),
        ({"text_1": ["a", "b"], "text_2": "c"}, "text_2"),
        ({"queries": "a", "documents": 3}, "documents"),
        ({"model": "roundhouse-tiny", "text_1": "a", "text_2": "b"}, "model"),
        ({"text_1": "a", "text_2": LONG}, "text_2[0]"),
    ],
)
async def test_a_wrong_field_of_a_score_is_named(
    fields: dict[str, Any], param: str, server: Running
) -> None:
    answer = await score(server, **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_long_texts_are_scored_cut_where_that_is_wanted(server: Running) -> None:
    answer = await score(server, text_1="a", text_2=LONG, truncate_prompt_tokens=-1)
    assert answer.status_code == 200
    assert answer.headers["x-roundhouse-truncated"] == "1"


async def test_unknown_names_may_mean_the_one_that_embeds_or_ranks(
    tmp_path: Path, embed_gguf: Path, rank_gguf: Path
) -> None:
    settled = settings(tmp_path, embed_gguf, rank_gguf, unknown_models="default")
    async with serving(settled, tmp_path) as server:
        for answer, name in (
            (await embed(server, model="text-embedding-3-small", input="a"), "minilm"),
            (await rerank(server, model="rerank-2"), "ranker"),
            (await score(server, model="dummy", text_1="a", text_2="b"), "ranker"),
        ):
            assert answer.status_code == 200, answer.text
            assert answer.json()["model"] == name


async def test_vllms_pooling_gives_the_same_vectors(server: Running) -> None:
    expected = [one["embedding"] for one in (await embed(server, input=TEXTS)).json()["data"]]
    found = (await embed(server, "/pooling", input=TEXTS)).json()
    assert [one["object"] for one in found["data"]] == ["pooling"] * 3
    assert [one["data"] for one in found["data"]] == expected


async def test_long_documents_are_cut_and_said_or_refused(server: Running) -> None:
    cut = await rerank(server, documents=["short", LONG, LONG])
    assert cut.headers["x-roundhouse-truncated"] == "2"
    refused = await rerank(server, documents=["short", LONG], truncate=False)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "documents[1]"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"query": None}, "query"),
        ({"query": "a" * (2**20 + 1)}, "query"),
        ({"documents": None}, "documents"),
        ({"documents": []}, "documents"),
        ({"documents": [1]}, "documents[0]"),
        ({"documents": [""]}, None),
        ({"documents": ["a"] * 2_049}, "documents"),
        ({"top_n": 0}, "top_n"),
    ],
)
async def test_a_wrong_field_of_a_rerank_is_named(
    fields: dict[str, Any], param: str | None, server: Running
) -> None:
    answer = await rerank(server, **fields)
    if param is None:
        assert answer.status_code == 200
    else:
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == param


# --------------------------------------------------------------------------------- one house of all


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/chat/completions", {"model": "minilm", "messages": HELLO}, "can't chat"),
        ("/v1/completions", {"model": "ranker", "prompt": "a"}, "can't chat"),
        ("/api/chat", {"model": "minilm", "messages": HELLO}, "can't chat"),
        ("/v1/embeddings", {"model": "roundhouse-tiny", "input": "a"}, "can't make embeddings"),
        ("/v1/embeddings", {"model": "ranker", "input": "a"}, "is a reranker"),
        ("/api/embed", {"model": "scripted", "input": "a"}, "can't make embeddings"),
        ("/rerank", {"model": "minilm", "query": "a", "documents": ["b"]}, "can't rank"),
        ("/rerank", {"model": "scripted", "query": "a", "documents": ["b"]}, "can't rank"),
    ],
)
async def test_a_model_for_something_else_says_so(
    path: str, body: dict[str, Any], words: str, server: Running
) -> None:
    refused = await server.client.post(path, json=body)
    assert refused.status_code == 400
    assert words in refused.text
    error = refused.json()["error"]
    assert (error["param"] if isinstance(error, dict) else refused.json()["param"]) == "model"


async def test_lists_say_what_a_model_is(server: Running) -> None:
    for name in ("minilm", "ranker", "roundhouse-tiny"):  # a list doesn't wait until it is known
        await server.client.get(f"/v1/models/{name}")
    listed = (await server.client.get("/v1/models")).json()["data"]
    cards = {one["id"]: one for one in listed}
    assert cards["minilm"]["capabilities"] == ["embedding"]
    assert cards["ranker"]["capabilities"] == ["rerank"]
    assert "embedding" not in cards["roundhouse-tiny"]["capabilities"]
    assert {one["id"] for one in listed[-2:]} == {"minilm", "ranker"}, "who chats comes first"


async def test_tabbyapi_lists_embedding_models_and_the_one_that_is_loaded(server: Running) -> None:
    await embed(server, input="a")
    listed = (await server.client.get("/v1/model/embedding/list")).json()["data"]
    assert [one["id"] for one in listed] == ["minilm"]
    current = (await server.client.get("/v1/model/embedding")).json()
    assert (current["id"], current["state"]) == ("minilm", "loaded")


async def test_tabbyapi_loads_and_lets_go_of_embedding_models(server: Running) -> None:
    gone = await server.client.post("/v1/model/embedding/unload")
    assert (gone.status_code, gone.json()) == (200, None)
    assert server.registry.status("minilm").state == "unloaded"
    order = {"embedding_model_name": "minilm", "embeddings_device": "cpu"}
    there = await server.client.post("/v1/model/embedding/load", json=order)
    assert there.json()["model_type"] == "embedding_model"
    assert there.headers["x-roundhouse-ignored"] == "embeddings_device"
    assert server.registry.status("minilm").state == "loaded"
    order = {"embedding_model_name": "roundhouse-tiny"}
    refused = await server.client.post("/v1/model/embedding/load", json=order)
    assert refused.status_code == 400


async def test_tokens_of_an_encoder_are_reported(server: Running) -> None:
    asked = {"model": "minilm", "content": "hello world"}
    tokens = (await server.client.post("/tokenize", json=asked)).json()["tokens"]
    assert len(tokens) == 2
    back = await server.client.post("/detokenize", json={"model": "minilm", "tokens": tokens})
    assert "hello" in back.json()["content"]


async def test_many_clients_at_once_get_their_own(server: Running) -> None:
    expected = (await embed(server, input=TEXTS)).json()["data"]
    found: dict[int, Any] = {}

    async def ask(number: int) -> None:
        found[number] = (await embed(server, input=TEXTS[number % 3 :])).json()["data"]

    async with anyio.create_task_group() as tasks:
        for number in range(12):
            tasks.start_soon(ask, number)
    for number, vectors in found.items():
        for one, other in zip(vectors, expected[number % 3 :], strict=True):
            assert one["embedding"] == pytest.approx(other["embedding"], abs=1e-3)


async def test_requests_are_counted(server: Running) -> None:
    await embed(server, input="a")
    text = (await server.client.get("/metrics")).text
    assert 'api="embeddings",model="minilm",outcome="ok"' in text


async def test_an_encoder_and_a_chat_model_make_room_for_each_other(
    tmp_path: Path, embed_gguf: Path, rank_gguf: Path
) -> None:
    """Under one budget, into which only one of them fits."""
    rules = SwapConfig(memory={"cpu": 100_000_000}, min_stay=0.0)
    made = settings(tmp_path, embed_gguf, rank_gguf, swap=rules)
    made = msgspec.structs.replace(made, models=(made.models[0], made.models[2]))
    async with serving(made, tmp_path) as running:
        for _ in range(2):
            answer = await running.client.post(
                "/v1/chat/completions",
                json={"model": "roundhouse-tiny", "messages": HELLO, "max_tokens": 4},
            )
            assert answer.status_code == 200
            assert (await embed(running, input="a")).status_code == 200
            assert running.registry.status("roundhouse-tiny").state == "unloaded"


async def test_who_leaves_gives_everything_back(server: Running) -> None:
    for _ in range(5):
        with anyio.move_on_after(0.02):
            await embed(server, input=[f"{LONG[:2000]} {at}" for at in range(400)])
    with anyio.fail_after(HANG):
        while server.registry.status("minilm").in_use:
            await anyio.sleep(0.01)
    assert (await embed(server, input="a")).status_code == 200


async def test_keys_hold_for_encoders_too(
    tmp_path: Path, embed_gguf: Path, rank_gguf: Path
) -> None:
    keys = (KeyConfig(key="one", models=("roundhouse-tiny",)), KeyConfig(key="all"))
    async with serving(settings(tmp_path, embed_gguf, rank_gguf, keys=keys), tmp_path) as running:
        for path in ("/v1/embeddings", "/embedding", "/api/embed", "/rerank", "/v2/rerank"):
            body = {"model": "minilm", "input": "a", "query": "a", "documents": ["b"]}
            limited = await running.client.post(path, json=body, headers={"x-api-key": "one"})
            assert limited.status_code == 404, path
            assert (await running.client.post(path, json=body)).status_code == 401
        mine = {"x-api-key": "all"}
        answer = await running.client.post("/v1/embeddings", json={"input": "a"}, headers=mine)
        assert answer.status_code == 200


async def test_a_second_entry_makes_vectors_with_a_model_that_writes(tmp_path: Path) -> None:
    """In a context of its own, which the ledger counts; the first goes on writing."""
    known = config(tmp_path)
    vectors = ModelConfig(name="vectors", path=str(bundled.GGUF), options={"pooling": "mean"})
    settled = msgspec.structs.replace(known, models=(*known.models, vectors))
    async with serving(settled, tmp_path) as server:
        found = (await embed(server, model="vectors", input=TEXTS)).json()
        first, _, third = [one["embedding"] for one in found["data"]]
        assert len(first) == 128
        assert math.hypot(*first) == pytest.approx(1)
        again = (await embed(server, model="vectors", input=TEXTS[0])).json()["data"][0]
        assert again["embedding"] == pytest.approx(first, abs=1e-3)
        assert first != pytest.approx(third, abs=1e-3)
        body = {"model": "roundhouse-tiny", "messages": HELLO, "max_tokens": 4}
        for name, status in (("roundhouse-tiny", 200), ("vectors", 400)):
            answer = await server.client.post("/v1/chat/completions", json={**body, "model": name})
            assert answer.status_code == status
        refused = await embed(server, model="roundhouse-tiny", input="a")
        assert refused.status_code == 400
        assert "pooling" in refused.json()["error"]["message"]
        held = {one.id: one.info.memory for one in server.registry.statuses() if one.info}
        assert held["vectors"] is not None
        assert held["vectors"].total > 0
