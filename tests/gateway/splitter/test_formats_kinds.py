"""Every kind of output, for every family: reasoning, text and calls in all their orders."""

# ruff: noqa: E501 — a table is read along its rows

import json
from typing import Any

from gateway.splitter import FORMATS, Splitter
from gateway.terms.request import Tool
from tests.every import for_every
from tests.gateway.splitter.corpus import Answer, join
from tests.gateway.splitter.renderers import RENDERERS

NOTE = Tool(
    name="write_note",
    parameters={
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "body": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "pinned": {"type": "boolean"},
        },
    },
)
TOOLS = [NOTE, Tool(name="list_shelves", parameters={"type": "object", "properties": {}})]
CALL: tuple[str, dict[str, Any]] = (
    "write_note",
    {"title": "Brot", "body": "naïve 🚲\n\n  two in", "tags": ["a", "b"], "pinned": True},
)
NO_ARGUMENTS: tuple[str, dict[str, Any]] = ("list_shelves", {})

# Families whose call is the whole output; and how reasoning and content are written elsewhere.
ALONE = {"llama3_json", "xlam_array", "pythonic"}
SPOKEN = {
    "harmony": ("<|channel|>analysis<|message|>{}<|end|><|start|>assistant", "<|channel|>final<|message|>{}<|end|>"),
    "kimi_k3_xtml": ("<|open|>think<|sep|>{}<|close|>think<|sep|>", "<|open|>response<|sep|>{}<|close|>response<|sep|>"),
    "solar_open": ("<|think|>{}<|end|><|begin|>assistant", "<|content|>{}<|end|><|begin|>assistant"),
    "cohere_cmd3": ("<|START_THINKING|>{}<|END_THINKING|>", "<|START_RESPONSE|>{}<|END_RESPONSE|>"),
    "hunyuan_a13b": ("<think>\n{}\n</think>\n", "<answer>\n{}\n"),
    "ernie45": ("<think>\n{}\n</think>\n\n", "<response>\n{}\n</response>\n"),
    "functionary_v3_2": ("", "all\n{}>>>"),
    "gemma4": ("<|channel>thought\n{}<channel|>", "{}"),
}  # fmt: skip


def reasoned(format: str, text: str) -> str:
    if format in SPOKEN:
        return SPOKEN[format][0].format(text)
    marks = FORMATS[format].reasoning
    assert marks is not None
    return f"{marks.open}{text}{marks.close}"


def said(format: str, text: str) -> str:
    return SPOKEN[format][1].format(text) if format in SPOKEN else text


def read(format: str, text: str, *, in_reasoning: bool = False) -> Answer:
    answers = []
    for pieces in ([text], list(text)):
        splitter = Splitter(FORMATS[format], in_reasoning=in_reasoning, tools=TOOLS)
        events = [event for piece in pieces for event in splitter.feed(piece)]
        answers.append(join(events + splitter.finish("stop")).without_ids())
    assert answers[0] == answers[1]
    return answers[0]


def called(answer: Answer) -> list[tuple[str, Any]]:
    return list(zip(answer.names, map(json.loads, answer.arguments), strict=True))


def textual(openers: tuple[str, ...]) -> list[str]:
    """Those of a single marker: of several in a row the first is gone when the second is cut."""
    return [opener for opener in openers if not opener.startswith("<|message_sep|>")]


with_reasoning = for_every(
    "format", [name for name in RENDERERS if FORMATS[name].reasoning is not None]
)
with_text = for_every("format", [name for name in RENDERERS if name not in ALONE])
everywhere = for_every("format", RENDERERS)


@everywhere
def test_a_call_alone(format: str) -> None:
    answer = read(format, RENDERERS[format]([CALL]))
    assert called(answer) == [CALL]
    assert (answer.reasoning, answer.content) == ("", "")


@everywhere
def test_calls_of_different_tools(format: str) -> None:
    text = RENDERERS[format]([CALL, NO_ARGUMENTS, CALL])
    assert called(read(format, text)) == [CALL, NO_ARGUMENTS, CALL]


@everywhere
def test_a_call_after_white_space(format: str) -> None:
    if format != "functionary_v3_2":  # its prompt says that a name comes at once
        assert called(read(format, "\n\n" + RENDERERS[format]([CALL]) + "\n")) == [CALL]


@with_text
def test_text_then_a_call(format: str) -> None:
    answer = read(format, said(format, "One moment.") + RENDERERS[format]([CALL]))
    assert answer.content == "One moment."
    assert called(answer) == [CALL]


@with_reasoning
def test_reasoning_then_a_call(format: str) -> None:
    answer = read(format, reasoned(format, "A note?") + RENDERERS[format]([CALL]))
    assert answer.reasoning == "A note?"
    assert answer.content == ""
    assert called(answer) == [CALL]


@with_reasoning
def test_reasoning_then_text_then_a_call(format: str) -> None:
    if format in ALONE:
        return
    text = reasoned(format, "A note?") + said(format, "Noted.") + RENDERERS[format]([CALL])
    answer = read(format, text)
    assert (answer.reasoning, answer.content) == ("A note?", "Noted.")
    assert called(answer) == [CALL]


@with_reasoning
def test_reasoning_then_text(format: str) -> None:
    answer = read(format, reasoned(format, "Hm, 2 < 3.") + said(format, "Yes.").removesuffix(">>>"))
    assert (answer.reasoning, answer.content.rstrip()) == ("Hm, 2 < 3.", "Yes.")


@with_reasoning
def test_reasoning_that_never_ends(format: str) -> None:
    marks = FORMATS[format].reasoning
    assert marks is not None
    for cut in range(1, len(marks.close)):
        text = "And then" + marks.close[:cut].rstrip()
        assert read(format, marks.open + text).reasoning == text
        assert read(format, text, in_reasoning=True).reasoning == text


@with_text
def test_a_marker_that_does_not_come(format: str) -> None:
    for syntax in FORMATS[format].syntaxes:
        for opener in textual(syntax.openers):
            cut = opener.rstrip()[:-1]
            text = f"Compare a < b, then write {cut} and {opener[:2]} in the log."
            answer = read(format, said(format, text).removesuffix(">>>"))
            assert answer.content.rstrip() == text


@with_text
def test_a_marker_that_the_end_cuts(format: str) -> None:
    for syntax in FORMATS[format].syntaxes:
        for opener in textual(syntax.openers):
            text = f"The last thing I typed was {opener.rstrip()[:-1]}"
            assert (
                read(format, text if format != "functionary_v3_2" else f"all\n{text}").content
                == text
            )


@everywhere
def test_an_end_marker_in_a_string_is_data(format: str) -> None:
    for syntax in FORMATS[format].syntaxes:
        for closer in getattr(syntax, "closers", ()):
            body = f"The block is closed with {closer} on the same line, see the manual."
            call = ("write_note", {"title": "Markup", "body": body})
            assert called(read(format, RENDERERS[format]([call]))) == [call]
