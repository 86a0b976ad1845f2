"""Tokens and prompts of models that other servers run, by every call for them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import bundled
from tests.backends.places.upstream.far import Asked, Far, Says, far, with_status
from tests.promises.upstreams.test_upstreams import relaying
from tests.served import Served, served

TEXT = "Hello, <|im_end|> you."
MESSAGES = [{"role": "user", "content": "Hello there!"}]
LOOK = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Served]]:
    """One with the bundled model, and one in front of it."""
    behind, front = tmp_path_factory.mktemp("behind"), tmp_path_factory.mktemp("front")
    model = {"name": "m", "path": str(bundled.GGUF)}
    with served(behind, {"models": [model]}) as box:
        upstream = {"name": "box", "urls": [f"{box.url}/v1"], "models": {"m": "m"}}
        with served(front, {"upstreams": [upstream]}) as server:
            yield box, server


CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-server's text": ("/tokenize", {"content": TEXT}),
    "its flags": ("/tokenize", {"content": TEXT, "add_special": True, "parse_special": False}),
    "vLLM's text": ("/tokenize", {"prompt": TEXT}),
    "vLLM's chat": ("/tokenize", {"messages": MESSAGES}),
    "vLLM's chat that isn't answered": (
        "/tokenize",
        {"messages": MESSAGES, "add_generation_prompt": False},
    ),
    "a template": ("/apply-template", {"messages": MESSAGES, "tools": [LOOK]}),
    "Anthropic's": (
        "/v1/messages/count_tokens",
        {"messages": MESSAGES, "system": "Be brief.", "max_tokens": 9},
    ),
    "OpenAI's": ("/v1/chat/completions/input_tokens", {"messages": MESSAGES}),
    "of a response": ("/v1/responses/input_tokens", {"input": "Hello there!"}),
    "TabbyAPI's text": ("/v1/token/encode", {"text": TEXT, "encode_special_tokens": False}),
    "TabbyAPI's chat": ("/v1/token/encode", {"text": MESSAGES}),
    "Cohere's text": ("/v1/tokenize", {"text": "Héllo, <|im_end|> 😀."}),
    "with pieces": ("/tokenize", {"content": "Héllo 😀.", "with_pieces": True}),
    "with strings": ("/tokenize", {"prompt": "Hello you.", "return_token_strs": True}),
    "tokens": ("/detokenize", {"tokens": [50, 51, 52]}),
    "TabbyAPI's tokens": ("/v1/token/decode", {"tokens": [50, 51, 52]}),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_server_in_front_answers_as_the_one_behind(
    call: str, boxes: tuple[Served, Served]
) -> None:
    path, body = CALLS[call]
    straight, through = (box.client.post(path, json={"model": "m", **body}) for box in boxes)
    assert straight.status_code == 200, straight.text
    assert {**straight.json(), "max_model_len": 0} == {**through.json(), "max_model_len": 0}


# ----------------------------------------------------------------------------- servers of all kinds


def answering(**paths: Any) -> Says:
    """JSON by the end of the path; 404 for others."""

    async def says(asked: Asked, writer: Any) -> None:
        name = asked.path.rpartition("/")[2].replace("-", "_")
        found = paths.get(name)
        status = 404 if found is None else 200
        await with_status(status, msgspec.json.encode(found or {"detail": "Not Found"}))(
            asked, writer
        )

    return says


TOKENS = [1, 2, 3]
KINDS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "vllm": ({"tokenize": {"tokens": TOKENS, "count": 3}}, ["/tokenize"]),
    "sglang": ({"tokenize": {"tokens": TOKENS, "count": 3}}, ["/tokenize"]),
    "llama-server": (
        {"apply_template": {"prompt": "<s>Hello"}, "tokenize": {"tokens": TOKENS}},
        ["/apply-template", "/tokenize"],
    ),
    "tabbyapi": ({"encode": {"tokens": TOKENS, "length": 3}}, ["/v1/token/encode"]),
}


async def posted(folder: Path, one: Far, path: str, **options: Any) -> Any:
    async with relaying(folder, one, **options) as running:
        body = {"model": "far", "messages": MESSAGES}
        return await running.client.post(path, json=body)


@pytest.mark.anyio
@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_of_server_is_asked_by_its_own_calls(kind: str, tmp_path: Path) -> None:
    answers, paths = KINDS[kind]
    async with far(answering(**answers)) as one:
        got = await posted(tmp_path, one, "/tokenize", server=kind)
    assert got.json()["tokens"] == TOKENS
    assert [asked.path for asked in one.asked] == paths
    if kind != "tabbyapi":
        assert one.asked[0].json["messages"] == MESSAGES
        assert one.asked[0].json["model"] == "theirs"
    assert "stream" not in one.asked[0].json


@pytest.mark.anyio
async def test_a_server_of_anthropic_s_api_counts(tmp_path: Path) -> None:
    async with far(answering(count_tokens={"input_tokens": 17})) as one:
        options = {"protocol": "anthropic", "key": "k"}
        got = await posted(tmp_path, one, "/v1/messages/count_tokens", **options)
    assert got.json()["input_tokens"] == 17
    assert one.asked[-1].json == {
        "model": "theirs",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello there!"}]}],
    }


@pytest.mark.anyio
async def test_a_server_without_such_a_call_is_named_as_the_reason(tmp_path: Path) -> None:
    async with far(answering()) as one:
        got = await posted(tmp_path, one, "/apply-template")
    assert got.status_code == 400
    assert "runs on another server, which has no /apply-template" in got.text
    async with far(answering()) as one:
        got = await posted(tmp_path, one, "/tokenize", server="ollama")
    assert got.status_code == 400
    assert one.asked == []


@pytest.mark.anyio
async def test_a_server_that_sends_nonsense_is_at_fault(tmp_path: Path) -> None:
    for said in ({"tokens": "x"}, {"tokens": None}, [1]):
        async with far(answering(tokenize=said)) as one:
            got = await posted(tmp_path, one, "/tokenize")
        assert got.status_code == 502, got.text


SPELLED: dict[str, tuple[str, Any]] = {
    "pieces": ("llama-server", {"tokens": [{"id": 1, "piece": "Hé"}, {"id": 2, "piece": [195]}]}),
    "byte-level": ("vllm", {"tokens": [1, 2], "token_strs": ["H\u00c3\u00a9llo", "\u0120you"]}),
    "SentencePiece": ("vllm", {"tokens": [1, 2], "token_strs": ["\u2581Héllo", "\u2581you"]}),
}
TEXTS = {
    "pieces": ["Hé", "\ufffd"],
    "byte-level": ["Héllo", " you"],
    "SentencePiece": [" Héllo", " you"],
}


@pytest.mark.anyio
@pytest.mark.parametrize("kind", SPELLED)
async def test_the_texts_of_tokens_come_from_servers_in_their_own_spelling(
    kind: str, tmp_path: Path
) -> None:
    server, said = SPELLED[kind]
    async with far(answering(tokenize=said)) as one:
        async with relaying(tmp_path, one, server=server) as running:
            body = {"model": "far", "text": "Héllo you"}
            got = (await running.client.post("/v1/tokenize", json=body)).json()

    assert got == {"tokens": [1, 2], "token_strings": TEXTS[kind]}


@pytest.mark.anyio
@pytest.mark.parametrize("server", ["sglang", "tabbyapi", None])
async def test_a_server_without_the_texts_of_tokens_is_named_as_the_reason(
    server: str | None, tmp_path: Path
) -> None:
    async with far(answering(tokenize={"tokens": [1, 2]})) as one:
        async with relaying(tmp_path, one, server=server) as running:
            got = await running.client.post("/v1/tokenize", json={"model": "far", "text": "Hi"})

    assert got.status_code == 400
    assert "runs on another server, which has no" in got.text
