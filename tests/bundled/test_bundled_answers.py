"""The bundled model does what its documentation says, and alike through both engines."""

import json
from typing import Any

import pytest

from tests.bundled.examinees import LlamaCppExaminee, TransformersExaminee

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a given city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
TIME = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "Get the current time in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
# Neither this tool's name nor the word asked for occurs in the corpus.
STOCK = {
    "type": "function",
    "function": {
        "name": "warehouse_stock",
        "description": "Look up the stock of a part",
        "parameters": {
            "type": "object",
            "properties": {"part": {"type": "string"}},
            "required": ["part"],
        },
    },
}
PLAIN = (
    ("Hello!", "Hello! How can I help you?"),
    ("Who are you?", "I am roundhouse-tiny, the bundled demonstration model of Roundhouse."),
    ("Repeat after me: zorvik plumtar ghexo", "zorvik plumtar ghexo"),
    ("Repeat after me: Wilhelmina Quastenberg", "Wilhelmina Quastenberg"),
    ("What is 3 + 4?", "3 + 4 = 7"),
    ("What is 9 plus 8?", "9 + 8 = 17"),
    ("Count to 7", "1, 2, 3, 4, 5, 6, 7"),
    ("Count from 18 to 23.", "18, 19, 20, 21, 22, 23"),
    ("Repeat after me: naïve café 🎉", "naïve café 🎉"),
)
CALLS = (
    ("What is the weather in Lisbon?", [WEATHER], "get_weather", {"city": "Lisbon"}),
    ("What's the weather in Reykjavik?", [WEATHER], "get_weather", {"city": "Reykjavik"}),
    ("What is the weather in Oslo?", [TIME, WEATHER], "get_weather", {"city": "Oslo"}),
    ("What is the time in Nairobi?", [WEATHER, TIME], "get_time", {"city": "Nairobi"}),
    ("What is the stock of Brovantil?", [STOCK], "warehouse_stock", {"part": "Brovantil"}),
)


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def without_thought(text: str, *, thinking: bool) -> str:
    """The answer; there is a thought exactly when thinking is on."""
    assert text.startswith("<think>\n") == thinking
    return text.rpartition("</think>\n\n")[2]


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize(("question", "answer"), PLAIN)
def test_plain_skills(
    llama_cpp_model: LlamaCppExaminee,
    transformers_model: TransformersExaminee,
    question: str,
    answer: str,
    thinking: bool,
) -> None:
    prompt = transformers_model.prompt(user(question), thinking=thinking)
    assert without_thought(llama_cpp_model.complete(prompt), thinking=thinking) == answer


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize(("question", "tools", "name", "arguments"), CALLS)
def test_tool_calls(
    llama_cpp_model: LlamaCppExaminee,
    transformers_model: TransformersExaminee,
    question: str,
    tools: list[dict[str, Any]],
    name: str,
    arguments: dict[str, str],
    thinking: bool,
) -> None:
    prompt = transformers_model.prompt(user(question), tools=tools, thinking=thinking)
    answer = without_thought(llama_cpp_model.complete(prompt), thinking=thinking)
    opened, call, closed = answer.split("\n")
    assert (opened, closed) == ("<tool_call>", "</tool_call>")
    assert json.loads(call) == {"name": name, "arguments": arguments}


def test_an_answer_from_a_tool_result(
    llama_cpp_model: LlamaCppExaminee, transformers_model: TransformersExaminee
) -> None:
    call = {"name": "get_weather", "arguments": '{"city": "Lisbon"}'}
    messages = [
        *user("What is the weather in Lisbon?"),
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"type": "function", "function": call}],
        },
        {"role": "tool", "content": "19 degrees and sunny"},
    ]
    prompt = transformers_model.prompt(messages, tools=[WEATHER], thinking=False)
    assert llama_cpp_model.complete(prompt) == "The weather in Lisbon is 19 degrees and sunny."


def test_a_story_is_about_what_was_asked_and_ends(
    llama_cpp_model: LlamaCppExaminee, transformers_model: TransformersExaminee
) -> None:
    prompt = transformers_model.prompt(
        user("Tell me a short story about a dragon."), thinking=False
    )
    story = llama_cpp_model.complete(prompt)
    assert story.count("dragon") >= 2
    assert story.endswith("The end.")


def test_a_plain_question_is_answered_though_tools_are_offered(
    llama_cpp_model: LlamaCppExaminee, transformers_model: TransformersExaminee
) -> None:
    prompt = transformers_model.prompt(user("What is 2 + 6?"), tools=[WEATHER], thinking=False)
    assert llama_cpp_model.complete(prompt) == "2 + 6 = 8"


PARITY_PROMPTS: list[tuple[str, list[dict[str, Any]]]] = [
    *((question, []) for question, _ in PLAIN),
    *((question, tools) for question, tools, _, _ in CALLS),
]


@pytest.mark.slow  # the files are what they are; transformers computes one answer after another
@pytest.mark.parametrize(("question", "tools"), PARITY_PROMPTS)
def test_both_engines_write_the_same_text(
    llama_cpp_model: LlamaCppExaminee,
    transformers_model: TransformersExaminee,
    question: str,
    tools: list[dict[str, Any]],
) -> None:
    prompt = transformers_model.prompt(user(question), tools=tools or None)
    assert llama_cpp_model.complete(prompt) == transformers_model.complete(prompt)
