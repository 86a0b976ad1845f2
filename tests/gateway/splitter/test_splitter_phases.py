"""Where reasoning begins and ends, and what becomes of the markers around the answer."""

# ruff: noqa: E501 — a table is read along its rows

import pytest

from gateway.splitter import FORMATS, Splitter
from gateway.terms.events import Finished
from gateway.terms.request import Tool
from tests.every import for_every
from tests.gateway.splitter.corpus import join

TOOLS = [Tool(name="lamp", parameters={"type": "object"})]


def read(
    format: str,
    text: str,
    *,
    in_reasoning: bool = False,
    inline: bool = False,
    prompt_tail: str = "",
) -> tuple[str, str, tuple[str, ...]]:
    """Reasoning, content, names of the calls."""
    splitter = Splitter(
        FORMATS[format],
        in_reasoning=in_reasoning,
        tools=TOOLS,
        split_reasoning=not inline,
        prompt_tail=prompt_tail,
    )
    events = [event for character in text for event in splitter.feed(character)]
    answer = join(events + splitter.finish("stop"))
    return answer.reasoning, answer.content, answer.names


def test_the_tables_carry_what_a_thinking_budget_says() -> None:
    reasoning = FORMATS["qwen3_coder_xml"].reasoning
    assert reasoning is not None
    assert (reasoning.open, reasoning.close) == ("<think>", "</think>")


@for_every("id", sorted(FORMATS))
def test_every_entry_can_be_used_at_once(id: str) -> None:
    splitter = Splitter(FORMATS[id], in_reasoning=False, tools=TOOLS)
    assert splitter.finish("length") == [Finished("length")]


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>Hm.</think>Yes.", "Hm.", "Yes."),
        ("\n<think>\nHm.\n</think>\nYes.", "Hm.", "Yes."),
        ("Say <think> to think.", "", "Say <think> to think."),
        ("<think>Hm.</think>Say <think> or </think>.", "Hm.", "Say <think> or </think>."),
        ("</think>Yes.", "", "Yes."),
        ("<think><think>Hm.</think></think>Yes.", "Hm.", "Yes."),
        ("<think>A <think> in it.</think>Yes.", "A <think> in it.", "Yes."),
        ("<think>Hm.", "Hm.", ""),
    ],
)
def test_textual_tags(text: str, reasoning: str, content: str) -> None:
    assert read("hermes_json", text) == (reasoning, content, ())


def test_a_special_token_counts_wherever_it_stands() -> None:
    text = "[THINK]One.[/THINK]Two.[THINK]Three.[/THINK]Four."
    assert read("mistral_v11", text) == ("One.\nThree.", "Two.\nFour.", ())


def test_an_open_marker_that_the_model_repeats_is_swallowed() -> None:
    assert read("minimax_m2", "<think>\nHm.</think>Yes.", in_reasoning=True) == ("Hm.", "Yes.", ())


def test_a_call_inside_open_reasoning_ends_it() -> None:
    text = 'Dark.<tool_call>{"name": "lamp"}</tool_call>Done.'
    assert read("hermes_json", text, in_reasoning=True) == ("Dark.", "Done.", ("lamp",))


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("<answer>\nYes.\n</answer>\n", "Yes."),
        ("Yes.", "Yes."),
        ("An <answer> is a tag, </answer> too.", "An <answer> is a tag, </answer> too."),
        ("<answer>Yes.</answer> And more.", "Yes.</answer> And more."),
    ],
)
def test_a_textual_shell_counts_only_at_the_edges(text: str, content: str) -> None:
    assert read("hunyuan_a13b", text) == ("", content, ())


def test_a_special_shell_never_reaches_the_content() -> None:
    text = "<|START_THINKING|>Hm.<|START_RESPONSE|>Yes.<|END_RESPONSE|><|START_RESPONSE|>No."
    assert read("cohere_cmd3", text) == ("Hm.", "Yes.\nNo.", ())


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("hermes_json", "<think>\nHm.\n</think>\n\nYes, </think> too."),
        ("mistral_v11", "[THINK]Hm.[/THINK]Yes."),
        ("kimi_vl_think", "◁think▷Hm.◁/think▷Yes."),
    ],
)
def test_reasoning_left_in_the_content_keeps_its_tags(format: str, text: str) -> None:
    assert read(format, text, inline=True) == ("", text, ())


def test_calls_are_found_when_reasoning_is_left_in_the_content() -> None:
    text = '<think>Dark.</think>\n<tool_call>{"name": "lamp"}</tool_call>'
    assert read("hermes_json", text, inline=True) == ("", "<think>Dark.</think>", ("lamp",))


def test_harmony_left_in_the_content_keeps_the_header_of_reasoning() -> None:
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    )
    content = "<|channel|>analysis<|message|>Hm.<|end|>\nYes."
    assert read("harmony", text, inline=True) == ("", content, ())


class TestHeaders:
    """Messages whose header says what the body is."""

    def test_a_recipient_where_the_output_begins(self) -> None:
        text = " to=functions.lamp<|channel|>commentary json<|message|>{}<|call|>"
        assert read("harmony", text) == ("", "", ("lamp",))

    def test_a_recipient_on_the_analysis_channel(self) -> None:
        text = "<|channel|>analysis to=functions.lamp code<|message|>{}<|call|>"
        assert read("harmony", text) == ("", "", ("lamp",))

    def test_a_tool_without_its_namespace(self) -> None:
        assert read("harmony", "<|channel|>commentary to=lamp<|message|>{}") == ("", "", ("lamp",))

    def test_builtin_tools_are_dropped_and_told(self) -> None:
        splitter = Splitter(FORMATS["harmony"], in_reasoning=False, tools=TOOLS)
        text = "<|channel|>analysis to=python code<|message|>print(1)<|call|><|start|>assistant<|channel|>final<|message|>1"
        answer = join(splitter.feed(text) + splitter.finish("stop"))
        assert (answer.reasoning, answer.content) == ("", "1")
        assert "goes nowhere" in (answer.finished.warning or "")

    @pytest.mark.parametrize(
        "header", ["<|channel|>unheard<|message|>", "<|start|>assistant<|message|>"]
    )
    def test_without_a_known_channel_it_is_content(self, header: str) -> None:
        assert read("harmony", header + "x<|end|>") == ("", "x", ())

    def test_arguments_that_are_none_are_content(self) -> None:
        text = "<|channel|>commentary to=functions.lamp<|message|>on"
        assert read("harmony", text) == ("", text, ())

    def test_without_tools_a_call_is_text(self) -> None:
        splitter = Splitter(FORMATS["harmony"], in_reasoning=False)
        text = "<|channel|>commentary to=functions.lamp<|message|>{}"
        answer = join(splitter.feed(text) + splitter.finish("stop"))
        assert answer.content == text

    def test_what_is_no_header_is_text(self) -> None:
        text = "<|start|>assistant says\nhello"
        assert read("harmony", text) == ("", text, ())

    def test_a_header_that_was_cut_is_no_text(self) -> None:
        assert read("harmony", "<|channel|>fin") == ("", "", ())

    def test_plain_text_without_a_header(self) -> None:
        assert read("harmony", "Hello.") == ("", "Hello.", ())


class TestImpliedOpener:
    """Functionary 3.2: the prompt ends with what opens the first message."""

    TAIL = "assistant<|end_header_id|>\n\n>>>"

    def test_content(self) -> None:
        assert read("functionary_v3_2", "all\nHi.", prompt_tail=self.TAIL) == ("", "Hi.", ())

    def test_a_call(self) -> None:
        assert read("functionary_v3_2", "lamp\n{}", prompt_tail=self.TAIL) == ("", "", ("lamp",))

    def test_neither(self) -> None:
        assert read("functionary_v3_2", "Hi there.", prompt_tail=self.TAIL) == ("", "Hi there.", ())

    def test_without_tools(self) -> None:
        splitter = Splitter(FORMATS["functionary_v3_2"], in_reasoning=False)
        answer = join(splitter.feed("lamp\n{}") + splitter.finish("stop"))
        assert answer.content == "lamp\n{}"

    def test_another_prompt(self) -> None:
        read_back = read("functionary_v3_2", ">>>lamp\n{}", prompt_tail="assistant\n")
        assert read_back == ("", "", ("lamp",))
