"""Log probabilities of an answer: an entry for every token that is counted, the end token too."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from config.settings import ModelConfig
from tests.gateway.http.serving import HELLO, Running, config, events, serving

pytestmark = pytest.mark.anyio

NAMES = ("roundhouse-tiny", "scripted")
SILENT = '{"lines": [{"when": "think", "say": "<think>Let me see.</think>"}]}'


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    folder = tmp_path_factory.mktemp("server")
    script = folder / "silent.script.json"
    script.write_text(SILENT)
    known = config(folder)
    models = (*known.models, ModelConfig(name="silent", path=str(script)))
    async with serving(msgspec.structs.replace(known, models=models), folder) as server:
        yield server


async def ask(running: Running, path: str, **body: Any) -> Any:
    answer = await running.client.post(path, json={"temperature": 0, **body})
    assert answer.status_code == 200, answer.text
    return events(answer.text.replace("data: [DONE]", "")) if body.get("stream") else answer.json()


async def at_its_end(running: Running) -> list[int]:
    """A prompt behind which the bundled model writes nothing but the end."""
    prompt = (await ask(running, "/tokenize", model=NAMES[0], messages=HELLO))["tokens"]
    body = {"model": NAMES[0], "prompt": prompt, "return_tokens": True}
    said = await ask(running, "/completion", **body)
    assert said["stop_type"] == "eos"
    assert len(said["tokens"]) == said["tokens_predicted"]
    return [*prompt, *said["tokens"][:-1]]


async def test_an_answer_that_ends_at_once_has_its_end(running: Running) -> None:
    for name, prompt in ((NAMES[0], await at_its_end(running)), ("silent", "Hello!")):
        body = {"model": name, "prompt": prompt, "logprobs": 2}
        answer = await ask(running, "/v1/completions", **body, max_tokens=1)
        [choice] = answer["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("", "stop")
        columns = choice["logprobs"]
        assert {len(column) for column in columns.values()} == {1}
        assert answer["usage"]["completion_tokens"] == 1
        assert (await ask(running, "/v1/completions", **body))["choices"] == answer["choices"]
        *_, last = await ask(running, "/v1/completions", **body, stream=True)
        assert last["choices"][0]["logprobs"] == columns
        piece = await ask(running, "/completion", model=name, prompt=prompt, n_probs=2)
        assert len(piece["completion_probabilities"]) == piece["tokens_predicted"] == 1
        [ended] = await ask(
            running, "/completion", model=name, prompt=prompt, n_probs=2, stream=True
        )
        assert ended["completion_probabilities"] == piece["completion_probabilities"]


async def test_behind_an_echoed_prompt_there_is_the_end(running: Running) -> None:
    prompt = await at_its_end(running)
    body = {"model": NAMES[0], "prompt": prompt, "echo": True, "logprobs": 1}
    for limit in (0, 1):
        [choice] = (await ask(running, "/v1/completions", **body, max_tokens=limit))["choices"]
        assert {len(column) for column in choice["logprobs"].values()} == {len(prompt) + limit}


async def test_every_counted_token_of_a_text_has_its_entry(running: Running) -> None:
    """Those of a stop string too."""
    for name in NAMES:
        body = {"model": name, "prompt": "Hello there", "logprobs": 0, "max_tokens": 20}
        text = (await ask(running, "/v1/completions", **body))["choices"][0]["text"]
        for stop in (None, text[4:8]):
            answer = await ask(running, "/v1/completions", **body, stop=stop)
            columns = answer["choices"][0]["logprobs"]
            assert len(columns["tokens"]) == answer["usage"]["completion_tokens"]
            chunks = await ask(running, "/v1/completions", **body, stop=stop, stream=True)
            streamed = [
                token
                for chunk in chunks
                for choice in chunk["choices"]
                for token in choice.get("logprobs", {}).get("tokens", ())
            ]
            assert streamed == columns["tokens"]


async def test_an_answer_in_chat_has_the_end_behind_its_text(running: Running) -> None:
    for name in NAMES:
        body = {"model": name, "messages": HELLO, "logprobs": True}
        answer = await ask(running, "/v1/chat/completions", **body)
        [choice] = answer["choices"]
        entries = choice["logprobs"]["content"]
        said = bytes(byte for entry in entries[:-1] for byte in entry["bytes"])
        assert said.decode() == choice["message"]["content"]
        assert entries[-1]["token"] in ("<|im_end|>", "")
        chunks = await ask(running, "/v1/chat/completions", **body, stream=True)
        streamed = [
            entry
            for chunk in chunks
            for one in chunk["choices"]
            for entry in one.get("logprobs", {}).get("content", ())
        ]
        assert streamed == entries


async def test_reasoning_alone_has_no_entries_and_is_no_null(running: Running) -> None:
    body = {"messages": [{"role": "user", "content": "think"}], "logprobs": True}
    thinking = {"model": "silent", "max_tokens": 12, **body}
    [choice] = (await ask(running, "/v1/chat/completions", **thinking))["choices"]
    assert choice["message"]["reasoning_content"]
    assert choice["logprobs"] == {"content": [], "refusal": None}
    plain = {**thinking, "logprobs": False}
    assert (await ask(running, "/v1/chat/completions", **plain))["choices"][0]["logprobs"] is None
