"""Other people's servers behind ours, each in a process of its own: what they really say."""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

import bundled
from benchmarks.peers import free_port
from benchmarks.peers import serving as process
from config.settings import Config
from config.upstreams import UpstreamConfig
from tests.gateway.http.serving import Running, serving

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

# llama-cpp-python's own server on the library that is here, which may be the prebuilt one.
LLAMA_CPP_PYTHON = (
    "import backends.engines.llamacpp.library, runpy; "
    "runpy.run_module('llama_cpp.server', run_name='__main__', alter_sys=True)"
)
ASK: Any = [{"role": "user", "content": "Which stations are there?"}]


@contextmanager
def llama_cpp_python() -> Iterator[int]:
    """The port of llama-cpp-python's server with the bundled model as "tiny"."""
    port = free_port()
    options = {"--model": str(bundled.GGUF), "--model_alias": "tiny", "--n_ctx": "2048"}
    where = {"--host": "127.0.0.1", "--port": str(port)}
    flat = [word for option in (options | where).items() for word in option]
    with process([sys.executable, "-c", LLAMA_CPP_PYTHON, *flat], port):
        yield port


@contextmanager
def transformers_serve() -> Iterator[int]:
    """The port of `transformers serve`, which has the bundled model loaded."""
    port = free_port()
    command = [str(Path(sys.executable).parent / "transformers"), "serve"]
    options = ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with process([*command, str(bundled.SAFETENSORS), *options], port, quiet):
        yield port


@asynccontextmanager
async def front(folder: Path, port: int, **options: Any) -> AsyncIterator[Running]:
    upstream = UpstreamConfig(name="there", urls=(f"http://127.0.0.1:{port}/v1",), **options)
    server = msgspec.structs.replace(Config().server, port=0)
    async with serving(Config(server=server, upstreams=(upstream,)), folder) as running:
        yield running


async def chat(running: Running, model: str, **fields: Any) -> Any:
    body = {"model": model, "messages": ASK, "max_tokens": 12, "temperature": 0, **fields}
    got = await running.client.post("/v1/chat/completions", json=body)
    assert got.status_code == 200, got.text
    return got


async def streamed(running: Running, model: str) -> tuple[str, str]:
    """Reasoning and content, by OpenAI's own client, to the end."""
    client = openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none")
    thought, said, ended = [], [], []
    async with client:
        stream = await client.chat.completions.create(
            model=model, messages=ASK, max_tokens=12, temperature=0, stream=True
        )
        async for chunk in stream:
            deltas = [choice.delta.model_dump() for choice in chunk.choices]
            thought += [delta.get("reasoning_content") or "" for delta in deltas]
            said += [choice.delta.content or "" for choice in chunk.choices]
            ended += [choice.finish_reason for choice in chunk.choices if choice.finish_reason]
    assert len(ended) == 1
    return "".join(thought), "".join(said)


def words(whole: Any) -> tuple[str, str]:
    message = whole["choices"][0]["message"]
    return message.get("reasoning_content") or "", message["content"] or ""


async def test_llama_cpp_pythons_server(tmp_path: Path) -> None:
    """It is found by its list and its kind known, so that it is asked for shapes in its words."""
    with llama_cpp_python() as port:
        async with front(tmp_path, port) as running:
            whole = (await chat(running, "tiny")).json()
            assert words(whole) == await streamed(running, "tiny")
            assert any(words(whole))
            assert "usage" not in whole, "its streams have none"

            chosen = await chat(running, "tiny", structured_outputs={"choice": ["yes", "no"]})
            assert chosen.json()["choices"][0]["message"]["content"] in ("yes", "no")
            assert "x-roundhouse-relaxed" not in chosen.headers

            schema = {"type": "object", "required": ["n"], "properties": {"n": {"enum": [3]}}}
            shape = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
            held = (await chat(running, "tiny", response_format=shape, max_tokens=40)).json()
            assert msgspec.json.decode(held["choices"][0]["message"]["content"]) == {"n": 3}
            assert "schema_fault" not in held["choices"][0]

            answer = await chat(running, "tiny", guided_regex="[0-9]+")
            assert answer.headers["x-roundhouse-relaxed"] == "guided_regex"

            body = {"model": "tiny", "prompt": "One", "max_tokens": 4}
            text = await running.client.post("/v1/completions", json=body)
            assert text.json()["choices"][0]["text"]


async def test_transformers_serve(tmp_path: Path) -> None:
    """Its list of models may be a 500; who is named is asked all the same."""
    with transformers_serve() as port:
        models: Any = {"tiny": str(bundled.SAFETENSORS)}
        async with front(tmp_path, port, models=models) as running:
            whole = (await chat(running, "tiny")).json()
            assert words(whole) == await streamed(running, "tiny")
            assert words(whole)[0], "it leaves <think> in the content, which is split here"
