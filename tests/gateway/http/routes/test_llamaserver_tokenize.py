"""vLLM's forms of `/tokenize` and `/detokenize`, on the paths that llama-server has, too: the
fields tell them apart.
"""

from typing import Any

import pytest

from tests.gateway.http.serving import HELLO, Running

pytestmark = pytest.mark.anyio

TINY = {"model": "roundhouse-tiny"}


async def tokenized(running: Running, **body: Any) -> Any:
    answer = await running.client.post("/tokenize", json={**TINY, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_text_by_each_name(running: Running) -> None:
    """vLLM adds what the model wants in front unless told not to, llama-server if told to."""
    llama, vllm = (
        await tokenized(running, content="Hello!"),
        await tokenized(running, prompt="Hello!"),
    )
    bare = await tokenized(running, prompt="Hello!", add_special_tokens=False)
    full = await tokenized(running, content="Hello!", add_special=True)
    assert bare["tokens"] == llama["tokens"]
    assert vllm["tokens"] == full["tokens"]
    assert vllm["count"] == len(vllm["tokens"])
    loaded = running.registry.status("roundhouse-tiny").info
    assert loaded is not None
    assert vllm["max_model_len"] == loaded.context_length


async def test_a_conversation_is_the_prompt_of_its_answer(running: Running) -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}
    for more in ({}, {"tools": [tool]}, {"chat_template_kwargs": {"enable_thinking": False}}):
        found = await tokenized(running, messages=HELLO, **more)
        body = {**TINY, "messages": HELLO, "max_tokens": 1, **more}
        answer = (await running.client.post("/v1/chat/completions", json=body)).json()
        assert found["count"] == answer["usage"]["prompt_tokens"]
        back = await running.client.post("/detokenize", json={**TINY, "tokens": found["tokens"]})
        assert "Hello!" in back.json()["prompt"]


async def test_the_texts_of_tokens_on_request(running: Running) -> None:
    for body in ({"prompt": "Hello there!", "add_special_tokens": False}, {"messages": HELLO}):
        found = await tokenized(running, return_token_strs=True, **body)
        back = await running.client.post("/detokenize", json={**TINY, "tokens": found["tokens"]})
        assert "".join(found["token_strs"]) == back.json()["prompt"]
        assert "token_strs" not in await tokenized(running, **body)


async def test_the_tokenizer_is_described(running: Running) -> None:
    """And nothing is loaded for that: what isn't known before is null."""
    await running.client.post("/unload", json={})
    asleep = (await running.client.get("/tokenizer_info")).json()
    assert asleep["eos_token"] is None
    assert {one.state for one in running.registry.statuses()} == {"unloaded"}
    await tokenized(running, prompt="Hi")
    awake = (await running.client.get("/tokenizer_info")).json()
    named = (await running.client.get("/tokenizer_info?model=roundhouse-tiny")).json()
    assert named == awake
    assert (awake["eos_token"], awake["bos_token"]) == ("<|im_end|>", None)
    assert awake["chat_template"] == asleep["chat_template"]
    assert awake["vocab_size"] == 768
    assert (await running.client.get("/tokenizer_info?model=none")).status_code == 404


async def test_what_a_conversation_does_not_need_is_named(running: Running) -> None:
    body = {**TINY, "messages": HELLO, "return_token_strs": True, "foo": 1}
    answer = await running.client.post("/tokenize", json=body)
    assert answer.headers["x-roundhouse-ignored"] == "foo"
    wrong = await running.client.post("/tokenize", json={**TINY, "messages": [{"role": "robot"}]})
    assert wrong.json()["error"]["param"] == "messages[0].role"
    none = await running.client.post("/tokenize", json=TINY)
    assert none.json()["error"]["param"] == "content"
    theirs = await running.client.post("/tokenize", json={**TINY, "inputs": ["Hello!"]})
    assert (theirs.status_code, theirs.json()["error"]["param"]) == (400, "inputs")
    assert "prompt" in theirs.json()["error"]["message"]
