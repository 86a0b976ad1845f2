"""The tools that coding agents send: custom tools by their grammar, namespaces, and what is said of
the tools that OpenAI runs.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

import bundled
from tests.patches import ASKED, NOTATION, assert_patches, patch_of, patches_of
from tests.served import Serve, Served, scripted, served

ENOUGH = 200  # patches that are whole


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    models = [{"name": "tiny", "path": str(bundled.GGUF)}]
    with served(tmp_path_factory.mktemp("agents"), {"models": models}) as running:
        yield running


def client(server: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")


def test_a_custom_tool_is_held_to_its_grammar_in_a_stream(server: Served) -> None:
    with client(server) as api:
        seed = next(seed for seed in range(20) if patch_of(api, seed) is not None)
        with api.responses.stream(model="tiny", extra_body={"seed": seed}, **ASKED) as stream:
            grown = [
                each.delta
                for each in stream
                if each.type == "response.custom_tool_call_input.delta"
            ]
            final = stream.get_final_response()
    item = final.output[-1]
    assert item.type == "custom_tool_call"
    assert "".join(grown) == item.input
    assert len(grown) > 1
    assert NOTATION.fullmatch(item.input)


def test_chat_has_custom_tools_too(server: Served) -> None:
    regex = {"syntax": "regex", "definition": r"[a-f]{2}\n[0-9]{1,3}"}
    custom = {"name": "code", "format": {"type": "grammar", "grammar": regex}}
    asked: Any = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"type": "custom", "custom": custom}],
        "tool_choice": {"type": "custom", "custom": {"name": "code"}},
        "temperature": 1.5,
    }
    with client(server) as api:
        message = api.chat.completions.create(**asked, seed=1).choices[0].message
        assert message.tool_calls is not None
        (call,) = message.tool_calls
        assert call.type == "custom"
        letters, _, digits = call.custom.input.partition("\n")
        assert set(letters) <= set("abcdef")
        assert digits.isdecimal()
        result = {"role": "tool", "tool_call_id": call.id, "content": "Done."}
        history = [*asked["messages"], message.model_dump(exclude_none=True), result]
        again = {**asked, "messages": history, "tool_choice": "none", "max_tokens": 4}
        assert api.chat.completions.create(**again).choices[0].finish_reason in ("stop", "length")


def test_what_openai_runs_is_left_out_and_said(server: Served) -> None:
    with client(server) as api:
        raw = api.responses.with_raw_response.create(
            model="tiny", input="Hi", tools=[{"type": "web_search"}], max_output_tokens=4
        )
    assert raw.headers["x-roundhouse-ignored"] == "tools[0]"
    assert raw.parse().metadata == {"roundhouse_left_out": "web_search"}


def test_a_conversation_goes_on_from_its_summary(tmp_path: Path, serve: Serve) -> None:
    lines = [
        {"when": "Write the summary only", "say": "It is about cats."},
        {"when": "It is about cats.", "say": "Seen."},
        {"say": "Not seen."},
    ]
    server = serve({"models": [scripted(tmp_path, "m", lines=lines)]})
    long = [{"role": "user", "content": "Cats?"}, {"role": "assistant", "content": "Cats." * 50}]
    asked: Any = {"model": "m", "input": [*long, {"role": "user", "content": "And dogs?"}]}
    with client(server) as api:
        short = api.responses.compact(**asked)
        assert [item.type for item in short.output] == ["message", "message", "compaction"]
        items: Any = [item.model_dump(exclude_none=True, warnings=False) for item in short.output]
        more = [*items, {"role": "user", "content": "Go on."}]
        assert api.responses.create(model="m", input=more).output_text == "Seen."
        compacting: Any = [{"type": "compaction", "compact_threshold": 100}]
        assert api.responses.create(**asked).output_text == "Not seen."
        with api.responses.stream(**asked, context_management=compacting) as stream:
            final = stream.until_done().get_final_response()
        assert [item.type for item in final.output] == ["compaction", "message"]
        assert final.output_text == "Seen."
        alone = api.responses.create(model="m", input=items)
        assert final.usage is not None
        assert alone.usage is not None
        assert final.usage.output_tokens == short.usage.output_tokens + alone.usage.output_tokens
        assert final.usage.input_tokens == short.usage.input_tokens + alone.usage.input_tokens


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["llamacpp", "transformers"])
def test_two_hundred_patches_at_a_high_temperature_all_parse(serve: Serve, engine: str) -> None:
    path = bundled.GGUF if engine == "llamacpp" else bundled.SAFETENSORS
    server = serve({"models": [{"name": "tiny", "path": str(path)}]})
    with client(server) as api:
        assert_patches(patches_of(api, ENOUGH), ENOUGH)
