"""A template renders as Hugging Face renders it: of the same conversation comes the same text."""

from typing import Any

import pytest

from gateway.terms.request import ChatRequest, Thinking
from tests.gateway.prompt.families import (
    WEATHER,
    assistant,
    calling,
    request,
    result,
    source,
    system,
    template,
    user,
    weather_in,
)

pytestmark = pytest.mark.slow  # importing transformers takes longer than all of it

Conversation = list[dict[str, Any]]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": WEATHER.name,
            "description": WEATHER.description,
            "parameters": WEATHER.parameters,
        },
    }
]


def huggingface(family: str, conversation: Conversation, **options: Any) -> str:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel({"x": 0}, unk_token="x")),
        bos_token="<s>",
        eos_token="</s>",
        chat_template=source(family),
    )
    options.setdefault("add_generation_prompt", "continue_final_message" not in options)
    return str(tokenizer.apply_chat_template(conversation, tokenize=False, **options))


def ours(family: str, asked: ChatRequest) -> str:
    return template(family).render(asked).text


@pytest.mark.parametrize("family", ["qwen3", "llama3", "mistral", "deepseek", "harmony"])
def test_a_conversation(family: str) -> None:
    conversation = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Grüß <Gott> & 'so'"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "And?"},
    ]
    asked = request(
        system("Be brief."), user("Grüß <Gott> & 'so'"), assistant("Hello."), user("And?")
    )
    assert ours(family, asked) == huggingface(family, conversation)


@pytest.mark.parametrize("family", ["gemma", "reasoner"])
def test_a_conversation_without_system_words(family: str) -> None:
    conversation = [{"role": "user", "content": "Hi"}]
    assert ours(family, request(user("Hi"))) == huggingface(family, conversation)


# DeepSeek's template asks whether a content is null, and Hugging Face leaves null contents out.
@pytest.mark.parametrize("family", ["qwen3", "llama3", "mistral", "harmony"])
def test_tools_calls_and_results(family: str) -> None:
    traits = template(family).traits
    arguments: Any = {"city": "Ulm"} if traits.arguments == "object" else '{"city": "Ulm"}'
    call = {
        "id": "abcdefghi",
        "type": "function",
        "function": {"name": "get_weather", "arguments": arguments},
    }
    conversation: Conversation = [
        {"role": "user", "content": "?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [call],
        },
        {
            "role": "tool",
            "content": "Sun",
            "tool_call_id": "abcdefghi",
            "name": "get_weather",
        },
    ]
    asked = request(
        user("?"),
        calling(weather_in("Ulm", "abcdefghi")),
        result("Sun", "abcdefghi"),
        tools=(WEATHER,),
    )
    assert ours(family, asked) == huggingface(family, conversation, tools=TOOLS)


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize(
    ("family", "switch"), [("qwen3", "enable_thinking"), ("deepseek", "thinking")]
)
def test_the_thinking_switch(family: str, switch: str, enabled: bool) -> None:
    asked = request(user("Hi"), thinking=Thinking(enabled=enabled))
    conversation = [{"role": "user", "content": "Hi"}]
    assert ours(family, asked) == huggingface(family, conversation, **{switch: enabled})


def test_pictures() -> None:
    parts = [{"type": "text", "text": "Hi"}]
    assert ours("vision", request(user("Hi"))) == huggingface(
        "vision", [{"role": "user", "content": parts}]
    )


@pytest.mark.parametrize("family", ["qwen3", "llama3", "mistral", "gemma", "harmony", "deepseek"])
def test_a_continued_answer(family: str) -> None:
    conversation = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Once upon"},
    ]
    asked = request(user("Hi"), assistant("Once upon"), continue_final=True)
    assert ours(family, asked) == huggingface(family, conversation, continue_final_message=True)
