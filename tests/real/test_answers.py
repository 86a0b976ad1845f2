"""What real models answer: shapes, calls and a chat, beside llama-server with the same file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest

from benchmarks.peers import llama_server
from tests.real import lab
from tests.real.cases import (
    CHAT,
    FORCED,
    REQUIRED,
    SHAPES,
    TOOLS,
    UNWANTED,
    WANTED,
    Call,
    Shape,
    conversation,
    says,
)
from tests.served import served

pytestmark = pytest.mark.slow
CONTEXT, SLOTS = 4_096, 2
CAPABLE = "coder"  # models that write calls of themselves
TIMES = 1.2  # as many tokens as a forced call itself has


class Said(NamedTuple):
    """An answer."""

    message: dict[str, Any]
    finish: str
    tokens: int


class Speaker:
    """A server, and a model on it."""

    def __init__(self, client: httpx.Client, model: str) -> None:
        self._client = client
        self._model = model

    def says(self, messages: list[dict[str, str]], **fields: Any) -> Said:
        body = {"model": self._model, "messages": messages, "temperature": 0, **fields}
        answer = self._client.post("/v1/chat/completions", json={"max_tokens": 300, **body})
        assert answer.status_code == httpx.codes.OK, answer.text
        whole = answer.json()
        (choice,) = whole["choices"]
        used = whole["usage"]["completion_tokens"]
        return Said(choice["message"], choice["finish_reason"], used)

    def asked(self, question: str, **fields: Any) -> Said:
        return self.says([{"role": "user", "content": question}], **fields)

    def counted(self, text: str) -> int:
        """Its tokens."""
        answer = self._client.post("/tokenize", json={"model": self._model, "content": text})
        return len(answer.json()["tokens"])


def models() -> list[Path]:
    """The lab's, and GGUF files of the folder."""
    return [lab.smollm2(), *(path for path in lab.others() if path.suffix == ".gguf")]


@pytest.fixture(scope="module")
def speakers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Path, Speaker]]:
    """All models on one server."""
    entries = [{"name": path.stem, "path": str(path)} for path in models()]
    engines = {"llamacpp": {"context_length": CONTEXT}}
    with served(tmp_path_factory.mktemp("real"), {"models": entries, "engines": engines}) as server:
        server.client.timeout = httpx.Timeout(600.0)
        yield {path: Speaker(server.client, path.stem) for path in models()}


def shaped(speaker: Speaker, shape: Shape) -> tuple[bool, bool, Said]:
    """Whether it is JSON, whole; whether it says what was asked; and the answer."""
    wanted = {"type": "json_schema", "json_schema": {"name": "it", "schema": shape.schema}}
    said = speaker.asked(shape.asked, response_format=wanted)
    try:
        value = msgspec.json.decode(said.message["content"])
    except msgspec.DecodeError:
        return False, False, said
    return said.finish == "stop", says(value, shape.says), said


def test_shapes_are_valid_and_as_sensible_as_llama_server_s(
    speakers: dict[Path, Speaker],
) -> None:
    for path, speaker in speakers.items():
        ours = [shaped(speaker, shape) for shape in SHAPES]
        assert [said for valid, _, said in ours if not valid] == []
        with (
            llama_server(path, CONTEXT, SLOTS) as peer,
            httpx.Client(base_url=f"http://127.0.0.1:{peer.port}", timeout=600) as client,
        ):
            theirs = [shaped(Speaker(client, path.stem), shape) for shape in SHAPES]
        sensible = [sum(right for _, right, _ in answers) for answers in (ours, theirs)]
        spent = [sum(said.tokens for _, _, said in answers) for answers in (ours, theirs)]
        assert sensible[0] >= sensible[1], (path.stem, sensible)
        assert spent[0] <= spent[1], (path.stem, spent)


def called(said: Said, call: Call) -> bool:
    """One call, of the right tool, with arguments that are JSON."""
    calls = said.message.get("tool_calls") or []
    named = [one["function"]["name"] for one in calls]
    return named == [call.tool] and bool(msgspec.json.decode(calls[0]["function"]["arguments"]))


def nothing_else(speaker: Speaker, said: Said) -> bool:
    """The answer is one call, in hardly more tokens than it has; or is cut inside a text, since the
    model rambles in its own words.
    """
    beside = said.message.get("content") or said.message.get("reasoning_content")
    calls = [one["function"] for one in said.message.get("tool_calls", ())]
    if said.finish == "length":  # before its name came it is handed on as it is written
        return not beside if calls else str(beside).startswith("<tool_call>")
    (call,) = calls
    written = f'{{"name": "{call["name"]}", "arguments": {call["arguments"]}}}'
    own = speaker.counted(f"<tool_call>\n{written}\n</tool_call><|im_end|>")
    return said.finish == "tool_calls" and not beside and said.tokens <= TIMES * own


def test_demanded_calls_are_calls_and_nothing_else(speakers: dict[Path, Speaker]) -> None:
    for path, speaker in speakers.items():
        for call in FORCED:
            choice = {"type": "function", "function": {"name": call.tool}}
            said = speaker.asked(call.asked, tools=TOOLS, tool_choice=choice)
            assert nothing_else(speaker, said), (path.stem, call.asked, said)
            assert said.finish == "length" or called(said, call), (path.stem, said)
        for call in REQUIRED:
            said = speaker.asked(
                call.asked, tools=TOOLS, tool_choice="required", parallel_tool_calls=False
            )
            assert nothing_else(speaker, said), (path.stem, call.asked, said)


def requested(speaker: Speaker) -> tuple[int, int]:
    """How many of forty requests get the call that is right, or none; and the tokens of all."""
    right = tokens = 0
    for choice, calls in (("required", REQUIRED), ("auto", WANTED), ("auto", UNWANTED)):
        for call in calls:
            said = speaker.asked(
                call.asked, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False,
                max_tokens=80,
            )  # fmt: skip
            tokens += said.tokens
            if not call.tool:
                right += not said.message.get("tool_calls")
            elif said.finish == "tool_calls" and called(said, call):
                (one,) = said.message["tool_calls"]
                right += says(msgspec.json.decode(one["function"]["arguments"]), call.says)
    return right, tokens


def test_forty_requests_for_tools_are_answered_as_well_as_by_llama_server(
    speakers: dict[Path, Speaker],
) -> None:
    assert len(REQUIRED) + len(WANTED) + len(UNWANTED) == 40
    for path, speaker in speakers.items():
        ours, spent = requested(speaker)
        with (
            llama_server(path, CONTEXT, SLOTS) as peer,
            httpx.Client(base_url=f"http://127.0.0.1:{peer.port}", timeout=600) as client,
        ):
            theirs, _ = requested(Speaker(client, path.stem))
        assert ours >= theirs, (path.stem, ours, theirs, spent)


def test_a_capable_model_calls_when_it_is_asked_to(speakers: dict[Path, Speaker]) -> None:
    capable = [one for path, one in speakers.items() if CAPABLE in path.stem.lower()]
    if not capable:
        pytest.skip(f"{lab.MORE} has no model that calls of itself")
    for speaker in capable:
        arrived = [called(speaker.asked(call.asked, tools=TOOLS), call) for call in WANTED]
        assert sum(arrived) >= len(WANTED) - 2, list(zip(arrived, WANTED, strict=True))


def test_a_chat_goes_on_as_llama_server_s_does(speakers: dict[Path, Speaker]) -> None:
    """The same file, greedily: what one says the other says."""
    path, speaker = next(iter(speakers.items()))
    with (
        llama_server(path, CONTEXT, SLOTS) as peer,
        httpx.Client(base_url=f"http://127.0.0.1:{peer.port}", timeout=600) as client,
    ):
        other, answers, same = Speaker(client, path.stem), list[str](), 0
        for _ in CHAT:
            turn = list(conversation(answers))
            ours = speaker.says(turn, max_tokens=48).message["content"]
            theirs = other.says(turn, max_tokens=48).message["content"]
            same += ours == theirs
            answers.append(ours)
    assert same >= len(CHAT) - 2  # where two tokens are nearly as likely, rounding decides
