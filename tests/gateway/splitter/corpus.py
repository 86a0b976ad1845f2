"""The corpus of model outputs, and what a test needs to run a case and compare."""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.splitter import FORMATS, Splitter
from gateway.terms.events import (
    ArgumentsGrown,
    Content,
    Event,
    Finished,
    FinishReason,
    Reasoning,
    ToolClosed,
    ToolOpened,
)
from gateway.terms.request import Tool

CASES = Path(__file__).with_name("cases")


class Call(msgspec.Struct, frozen=True):
    """A call as expected: `id` only where the format carries it."""

    name: str
    arguments: dict[str, Any]
    id: str | None = None


class Expected(msgspec.Struct, frozen=True):
    """What is to come of a case."""

    reasoning: str | None
    content: str | None
    tool_calls: tuple[Call, ...]


class Function(msgspec.Struct, frozen=True):
    """A tool's function in the OpenAI shape."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class OpenAITool(msgspec.Struct, frozen=True):
    """A tool in the OpenAI shape."""

    type: str
    function: Function


class Case(msgspec.Struct, frozen=True):
    """One output of a model and what it means."""

    id: str
    format: str
    start_in_reasoning: bool
    tools: tuple[OpenAITool, ...]
    raw: str
    expect: Expected
    prompt_tail: str | None = None
    tool_choice: str = "auto"
    finish_reason: FinishReason = "stop"
    tags: tuple[str, ...] = ()

    def offered(self) -> list[Tool]:
        """The tools of the request."""
        return [
            Tool(name=tool.function.name, parameters=tool.function.parameters)
            for tool in self.tools
        ]

    def splitter(self) -> Splitter:
        """A splitter as the pipeline would make it for this case."""
        return Splitter(
            FORMATS[self.format],
            in_reasoning=self.start_in_reasoning,
            tools=self.offered(),
            parse_tools=self.tool_choice != "none",
            prompt_tail=self.prompt_tail or "",
        )


class Answer(msgspec.Struct, frozen=True):
    """The events of one answer, joined."""

    reasoning: str
    content: str
    names: tuple[str, ...]
    ids: tuple[str, ...]
    arguments: tuple[str, ...]
    finished: Finished

    def without_ids(self) -> "Answer":
        """Comparable between two runs: generated ids differ."""
        return msgspec.structs.replace(self, ids=())


def load(name: str) -> list[Case]:
    """The cases of a file of the corpus."""
    lines = (CASES / name).read_text(encoding="utf-8").splitlines()
    return [msgspec.json.decode(line, type=Case) for line in lines]


def run(case: Case, pieces: Iterable[str]) -> list[Event]:
    """The events of a case, its output fed in pieces."""
    splitter = case.splitter()
    events = [event for piece in pieces for event in splitter.feed(piece)]
    return events + splitter.finish(case.finish_reason)


def join(events: Sequence[Event]) -> Answer:
    """Folds events, and checks on the way that they are in an order a client can rely on. A call
    that broke off is not one whole object; here it is made one.
    """
    reasoning, content = "", ""
    opened: list[ToolOpened] = []
    arguments: list[str] = []
    closed = -1  # the last call that was
    broken: set[int] = set()
    for event in events[:-1]:
        match event:
            case Reasoning(text):
                assert text
                reasoning += text
            case Content(text):
                assert text
                content += text
            case ToolOpened(index):
                assert index == len(opened)
                broken.add(index)
                opened.append(event)
                arguments.append("")
            case ArgumentsGrown(index, fragment):
                assert fragment
                assert closed < index == len(opened) - 1
                arguments[index] += fragment
            case ToolClosed(index):
                assert closed < index == len(opened) - 1
                assert isinstance(json.loads(arguments[index]), dict)
                closed = index
                broken.remove(index)
            case Finished():
                raise AssertionError("Finished before the end")
    finished = events[-1]
    assert isinstance(finished, Finished)
    for index in broken:
        assert finished.reason != "tool_calls"
        arguments[index] = made_whole(arguments[index])
    assert len({call.id for call in opened}) == len(opened)
    return Answer(
        reasoning,
        content,
        tuple(call.name for call in opened),
        tuple(call.id for call in opened),
        tuple(arguments),
        finished,
    )


_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*+("|\Z)|[\[{}\]]', re.DOTALL)


def made_whole(text: str) -> str:
    """The arguments of a call that broke off, which are no JSON, with what is open closed."""
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)
    closers: list[str] = []
    for found in _STRINGS.finditer(text):
        match found.group()[0], found[1]:
            case '"', "":
                closers.append('"')
            case "{" | "[" as bracket, _:
                closers.append({"{": "}", "[": "]"}[bracket])
            case "}" | "]", _:
                closers.pop()
    return text + "".join(reversed(closers))


def check(case: Case, answer: Answer) -> None:
    """Asserts that an answer is what the case expects, edges stripped."""
    assert answer.reasoning.strip() == (case.expect.reasoning or "").strip()
    assert answer.content.strip() == (case.expect.content or "").strip()
    assert list(answer.names) == [call.name for call in case.expect.tool_calls]
    assert [json.loads(text) for text in answer.arguments] == [
        call.arguments for call in case.expect.tool_calls
    ]
    for expected, got in zip(case.expect.tool_calls, answer.ids, strict=True):
        assert expected.id in (None, got)
