"""TGI's and TEI's routes through a real server, with Hugging Face's own client."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from huggingface_hub import AsyncInferenceClient
from huggingface_hub.errors import ValidationError

from tests.gateway.http.serving import Running

pytestmark = pytest.mark.anyio

PROMPT = "<|im_start|>user\nCount to five.<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture
async def api(server: Running) -> AsyncIterator[AsyncInferenceClient]:
    async with AsyncInferenceClient(base_url=server.url) as client:
        yield client


async def test_a_text_is_generated(api: AsyncInferenceClient) -> None:
    text = await api.text_generation(PROMPT, max_new_tokens=40, do_sample=False)
    whole = await api.text_generation(
        PROMPT, max_new_tokens=40, do_sample=False, details=True, return_full_text=True
    )
    assert "1, 2, 3" in text
    assert whole.generated_text == PROMPT + text
    assert whole.details is not None
    assert whole.details.finish_reason == "eos_token"
    assert all(token.logprob <= 0 for token in whole.details.tokens if token.text.strip())
    assert "".join(token.text for token in whole.details.tokens) == text


async def test_a_stream_says_the_same(api: AsyncInferenceClient) -> None:
    text = await api.text_generation(PROMPT, max_new_tokens=40, do_sample=False)
    stream = await api.text_generation(PROMPT, max_new_tokens=40, do_sample=False, stream=True)
    assert "".join([piece async for piece in stream]) == text
    steps = [
        step
        async for step in await api.text_generation(
            PROMPT, max_new_tokens=3, do_sample=False, stream=True, details=True
        )
    ]
    assert steps[-1].details is not None
    assert (steps[-1].details.finish_reason, steps[-1].details.generated_tokens) == ("length", 3)
    assert [step.token.special for step in steps] == [False, False, False, True]


async def test_a_grammar_is_kept_to(api: AsyncInferenceClient) -> None:
    grammar: Any = {"type": "regex", "value": "[a-c]{4}"}
    text = await api.text_generation(PROMPT, grammar=grammar, max_new_tokens=20)
    assert len(text) == 4
    assert set(text) <= set("abc")


async def test_vectors(api: AsyncInferenceClient, server: Running) -> None:
    vectors = await api.feature_extraction("A man is eating food.")
    assert vectors.shape[0] == 1
    several = await server.client.post("/embed", json={"inputs": ["A man is eating food.", "b"]})
    assert several.json()[0] == pytest.approx(list(vectors[0]), abs=1e-6)
    again = await server.client.post("/", json={"inputs": ["A man is eating food."]})
    assert again.json()[0] == pytest.approx(several.json()[0], abs=1e-6)


async def test_a_fault_is_the_client_s_own_exception(server: Running) -> None:
    refused = await server.client.post("/generate", json={"inputs": 3})
    assert refused.status_code == 400
    assert refused.json()["error_type"] == "validation"
    async with AsyncInferenceClient(f"{server.url}/generate") as client:
        with pytest.raises(ValidationError, match="max_new_tokens"):
            await client.text_generation(PROMPT, max_new_tokens=-3)


async def test_both_paths_of_tgi(server: Running) -> None:
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 5, "do_sample": False}}
    whole = (await server.client.post("/generate", json=body)).json()
    listed = (await server.client.post("/", json=body)).json()
    streamed = await server.client.post("/generate_stream", json=body)
    assert listed == [whole]
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert msgspec.json.encode(whole["generated_text"]) in streamed.content


async def test_the_model_that_answers_is_named(server: Running) -> None:
    found = (await server.client.get("/info")).json()
    assert found["model_id"] == "roundhouse-tiny"
    assert found["model_pipeline_tag"] == "text-generation"
    assert found["max_total_tokens"] == 2048
