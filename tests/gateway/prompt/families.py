"""The templates of the main families, small, and words to put into them.

Each `.jinja` beside this file behaves as its family's real template does where that matters: what
it demands, what it drops, what it raises. They are written for these tests.
"""

from functools import cache
from pathlib import Path
from typing import Any

from backends.contract.protocol import SpecialTokens
from gateway.prompt import ChatTemplate
from gateway.terms.request import (
    ChatRequest,
    ImagePart,
    Message,
    Role,
    TextPart,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
)

FAMILIES = (
    "deepseek",
    "gemma",
    "harmony",
    "llama3",
    "mistral",
    "qwen3",
    "reasoner",
    "vision",
)
STRICT = ("gemma", "mistral")
SPECIAL = SpecialTokens(bos="<s>", eos="</s>")

WEATHER = Tool(
    name="get_weather",
    description="The weather of a city",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}},
)
PICTURE = ImagePart("data:image/png;base64,AAAA")


def source(family: str) -> str:
    return (Path(__file__).parent / "templates" / f"{family}.jinja").read_text()


@cache
def template(family: str) -> ChatTemplate:
    return ChatTemplate(source(family), SPECIAL)


def said(role: Role, text: str, reasoning: str | None = None) -> Message:
    return Message(role=role, parts=(TextPart(text),), reasoning=reasoning)


def system(text: str) -> Message:
    return said("system", text)


def user(text: str) -> Message:
    return said("user", text)


def assistant(text: str, reasoning: str | None = None) -> Message:
    return said("assistant", text, reasoning)


def calling(*calls: ToolCall, text: str = "", reasoning: str | None = None) -> Message:
    parts = (TextPart(text),) if text else ()
    return Message(role="assistant", parts=parts, tool_calls=calls, reasoning=reasoning)


def weather_in(city: str, call_id: str) -> ToolCall:
    return ToolCall(call_id, "get_weather", f'{{"city": "{city}"}}')


def result(text: str, call_id: str) -> Message:
    return Message(role="tool", parts=(TextPart(text),), tool_call_id=call_id)


def request(
    *messages: Message,
    tools: tuple[Tool, ...] = (),
    tool_choice: ToolChoice = "auto",
    thinking: Thinking | None = None,
    variables: dict[str, Any] | None = None,
    continue_final: bool | None = None,
) -> ChatRequest:
    """`continue_final` None: where the last message is the assistant's words."""
    last = messages[-1] if messages else None
    begun = last is not None and last.role == "assistant" and not last.tool_calls
    return ChatRequest(
        model="",
        messages=messages,
        tools=tools,
        tool_choice=tool_choice,
        thinking=thinking or Thinking(),
        template_variables=variables or {},
        continue_final=begun if continue_final is None else continue_final,
    )
