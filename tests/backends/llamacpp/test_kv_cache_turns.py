"""What is computed again of a conversation: hardly anything, whatever kind of memory the model has.
Over HTTP, as chat frontends go on: the same again, the last message edited, the next turn.
"""

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("llama_cpp")

from tests.backends import gguf_grown
from tests.backends.llamacpp import cache_kinds
from tests.served import Served, served

KINDS = (
    *("qwen35", "granitehybrid", "nemotron_h", "lfm2", "mamba"),
    *("gemma3", "gpt-oss", "qwen3"),
)
MORE = {"gemma3": {"attention.sliding_window": 16}}
LENGTHS = (528, 4_000)
ANSWER = 120  # tokens: of these models each is a byte
LETTERS = list(range(1 + ord("a"), 1 + ord("g")))
FRAME = 303  # of them, what stands around nine messages, and the last one

Messages = list[dict[str, str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("grown")
    models = []
    for kind in KINDS:
        path = folder / f"{kind}.gguf"
        if kind == "mamba":
            cache_kinds.write(kind, path)
        else:
            gguf_grown.write(kind, path, MORE.get(kind))
        options = {"context_length": 8_192, "threads": 1}
        models.append({"name": kind, "path": str(path), "options": options})
    with served(folder, {"models": models}) as running:
        yield running


def conversation(length: int, name: str = "") -> Messages:
    """Of so many tokens about, of which the last message has few."""
    turns = ["user", "assistant"] * 4
    words = f"{name} said this and that, once and again. " * length
    size = (length - FRAME) // len(turns)
    messages = [
        {"role": role, "content": words[number : number + size]}
        for number, role in enumerate(turns)
    ]
    return [*messages, {"role": "user", "content": "And then?"}]


def cached(
    server: Served, model: str, messages: Messages, answer: int = ANSWER
) -> tuple[int, int, str]:
    """Of the prompt, tokens that were there already, and all; and the answer."""
    body: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "temperature": 0,
        "allowed_token_ids": LETTERS,
        "max_tokens": answer,
    }
    reply = server.client.post("/v1/chat/completions", json=body, timeout=120).json()
    usage = reply["usage"]
    found = usage["prompt_tokens_details"]["cached_tokens"]
    return found, usage["prompt_tokens"], reply["choices"][0]["message"]["content"]


def edited(messages: Messages) -> Messages:
    return [*messages[:-1], {"role": "user", "content": "Or what?"}]


def next_turn(messages: Messages, answer: str) -> Messages:
    return [*messages, {"role": "assistant", "content": answer}, {"role": "user", "content": "So?"}]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_hardly_anything_is_computed_again(server: Served, kind: str, length: int) -> None:
    talk = conversation(length, name=str(length))
    _, _, answer = cached(server, kind, talk)
    again, whole, _ = cached(server, kind, talk)
    assert abs(whole - length) < length / 10
    assert again >= 0.99 * whole
    changed, whole, _ = cached(server, kind, edited(talk))
    assert changed >= 0.9 * whole
    going_on, whole, _ = cached(server, kind, next_turn(talk, answer))
    assert going_on >= 0.9 * whole


@pytest.mark.parametrize("kind", KINDS)
def test_four_conversations_take_turns(server: Served, kind: str) -> None:
    talks = [conversation(1_000, name=f"{name} of the four") for name in "ABCD"]
    talks = [next_turn(talk, cached(server, kind, talk, 20)[2]) for talk in talks]
    for talk in talks:
        found, whole, _ = cached(server, kind, talk, 20)
        assert found >= 0.9 * whole
        again, whole, _ = cached(server, kind, talk, 20)
        assert again >= 0.99 * whole
    for talk in talks:
        found, whole, _ = cached(server, kind, edited(talk), 20)
        assert found >= 0.9 * whole
