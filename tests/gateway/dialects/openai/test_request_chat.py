"""A chat body: the conversation, the tools, the reasoning, and how the answer is to be told."""

from typing import Any

import pytest

from gateway.request import (
    ImagePart,
    Message,
    NamedTool,
    TextPart,
    Thinking,
    Tool,
    ToolCall,
)
from tests.gateway.dialects.openai.bodies import USER, chat, chat_fault
from tests.unapplied import names as unapplied_names

PIXEL = "data:image/png;base64,AAAA"
WEATHER: dict[str, Any] = {"type": "function", "function": {"name": "weather"}}
CLOCK: dict[str, Any] = {"type": "function", "function": {"name": "clock"}}


def only_message(**fields: Any) -> Message:
    """What one message means, as the first of two."""
    return chat(messages=[fields, USER]).request.messages[0]


@pytest.mark.parametrize(
    ("role", "meant"),
    [
        ("system", "system"),
        ("developer", "system"),
        ("user", "user"),
        ("assistant", "assistant"),
        ("tool", "tool"),
        ("function", "tool"),
    ],
)
def test_a_role_means(role: str, meant: str) -> None:
    assert only_message(role=role, content="x").role == meant


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}, {"content": []}])
def test_a_message_may_have_no_content(content: dict[str, Any]) -> None:
    assert only_message(role="assistant", **content).parts == ()


def test_system_messages_may_stand_anywhere() -> None:
    roles = ["system", "system", "user", "system"]
    exchange = chat(messages=[{"role": role, "content": role} for role in roles])
    assert [message.role for message in exchange.request.messages] == roles


def test_parts_are_texts_and_images() -> None:
    message = only_message(
        role="user",
        content=[
            {"type": "text", "text": "look"},
            {"type": "image_url", "image_url": {"url": PIXEL, "detail": "auto"}},
            {"type": "input_text", "text": "and"},
            {"type": "input_image", "image_url": "https://example.org/a.png"},
        ],
    )
    assert message.parts == (
        TextPart("look"),
        ImagePart(PIXEL),
        TextPart("and"),
        ImagePart("https://example.org/a.png"),
    )
    assert message.text == "look\nand"


@pytest.mark.parametrize(
    ("part", "param", "word"),
    [
        ({"type": "input_audio", "input_audio": {}}, "type", "Audio"),
        ({"type": "video_url", "video_url": {}}, "type", "Video"),
        ({"type": "file", "file": {}}, "type", "File"),
        ({"type": "smell"}, "type", "smell"),
        ({"type": "text"}, "text", "required"),
        ({"type": "image_url"}, "image_url", "required"),
        ({"type": "image_url", "image_url": {}}, "image_url.url", "required"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "image_url.url", "URL"),
        ({"type": "input_image", "image_url": "a.png"}, "image_url", "URL"),
    ],
)
def test_a_part_that_can_not_be_read_is_named(part: dict[str, Any], param: str, word: str) -> None:
    fault = chat_fault(messages=[USER, {"role": "user", "content": [USER_TEXT, part]}])
    assert fault.param == f"messages[1].content[1].{param}"
    assert word in fault.message


USER_TEXT: dict[str, Any] = {"type": "text", "text": "look"}


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [('{"a": 1}', '{"a": 1}'), ({"a": 1}, '{"a":1}'), (None, "{}"), ("", "")],
)
def test_arguments_are_text_or_the_object_itself(arguments: object, meant: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    assert only_message(role="assistant", tool_calls=[call]).tool_calls == (
        ToolCall("c", "f", meant),
    )


def test_the_call_of_before_tool_calls_is_a_call() -> None:
    message = only_message(role="assistant", function_call={"name": "f", "arguments": "{}"})
    assert message.tool_calls == (ToolCall("", "f", "{}"),)


def test_a_tool_round_trip_is_read() -> None:
    messages = chat(
        messages=[
            USER,
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}}]},
            {"role": "tool", "tool_call_id": "c", "name": "f", "content": "sunny"},
        ]
    ).request.messages
    assert messages[2] == Message(
        role="tool", parts=(TextPart("sunny"),), tool_call_id="c", name="f"
    )


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_earlier_reasoning_has_three_names(key: str) -> None:
    assert only_message(role="assistant", content="x", **{key: "hm"}).reasoning == "hm"


def test_tools_are_read_and_may_say_little() -> None:
    schema = {"type": "object", "$schema": "x"}
    function = {"name": "f", "description": "d", "parameters": schema, "strict": True}
    request = chat(tools=[{"type": "function", "function": function}, CLOCK]).request
    assert request.tools == (
        Tool(name="f", description="d", parameters=schema, strict=True),
        Tool(name="clock"),
    )
    assert request.tool_choice == "auto"


def test_without_tools_none_is_called() -> None:
    assert chat().request.tool_choice == "none"
    assert chat(tools=[]).request.tools == ()


@pytest.mark.parametrize(
    ("choice", "meant"),
    [
        ("none", "none"),
        ("auto", "auto"),
        ("required", "required"),
        ({"type": "function", "function": {"name": "clock"}}, NamedTool("clock")),
        ({"function": {"name": "clock"}}, NamedTool("clock")),
    ],
)
def test_a_tool_choice_means(choice: object, meant: object) -> None:
    request = chat(tools=[WEATHER, CLOCK], tool_choice=choice).request
    assert request.tool_choice == meant
    assert len(request.tools) == 2


def test_allowed_tools_leave_the_others_out() -> None:
    allowed = {"mode": "required", "tools": [CLOCK]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    request = chat(tools=[WEATHER, CLOCK], tool_choice=choice).request
    assert request.tools == (Tool(name="clock"),)
    assert request.tool_choice == "required"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [WEATHER, {"function": {}}]}, "tools[1].function.name"),
        ({"tools": [{"function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [CLOCK], "tool_choice": "always"}, "tool_choice"),
        ({"tools": [CLOCK], "tool_choice": {"type": "custom"}}, "tool_choice"),
        ({"tools": [CLOCK], "tool_choice": WEATHER}, "tool_choice.function.name"),
        (
            {
                "tools": [CLOCK],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": [CLOCK, WEATHER]},
                },
            },
            "tool_choice.allowed_tools.tools[1].function.name",
        ),
    ],
)
def test_a_tool_that_can_not_be_called_is_named(fields: dict[str, Any], param: str) -> None:
    assert chat_fault(**fields).param == param


def test_parallel_calls_are_allowed_unless_refused() -> None:
    assert chat().request.parallel_tool_calls is True
    assert chat(parallel_tool_calls=False).request.parallel_tool_calls is False


@pytest.mark.parametrize(
    ("fields", "meant"),
    [
        ({}, Thinking()),
        ({"enable_thinking": False}, Thinking(enabled=False)),
        ({"chat_template_kwargs": {"enable_thinking": True}}, Thinking(enabled=True)),
        (
            {"enable_thinking": False, "chat_template_kwargs": {"enable_thinking": True}},
            Thinking(enabled=True),
        ),
        ({"reasoning": {"enabled": False}}, Thinking(enabled=False)),
        ({"reasoning_effort": "high"}, Thinking(effort="high")),
        ({"reasoning_effort": "none"}, Thinking(effort="none", enabled=False)),
        (
            {"reasoning_effort": "low", "reasoning": {"effort": "high", "max_tokens": 9}},
            Thinking(effort="low", budget=9),
        ),
        ({"thinking_budget": 0}, Thinking(budget=0)),
        ({"reasoning_budget_tokens": -1}, Thinking()),
        (
            {"thinking_token_budget": 5, "reasoning_budget_message": "Enough."},
            Thinking(budget=5, closing="Enough."),
        ),
        ({"reasoning_format": "auto"}, Thinking(shown="split")),
        ({"reasoning_format": "none"}, Thinking(shown="inline")),
        ({"reasoning_format": "hidden"}, Thinking(shown="hidden")),
        ({"include_reasoning": False, "reasoning_format": "none"}, Thinking(shown="hidden")),
        ({"include_reasoning": True}, Thinking(shown="split")),
        ({"reasoning": {"exclude": True}}, Thinking(shown="hidden")),
    ],
)
def test_thinking_means(fields: dict[str, Any], meant: Thinking) -> None:
    assert chat(**fields).request.thinking == meant


def test_an_unknown_reasoning_format_is_refused() -> None:
    assert chat_fault(reasoning_format="loud").param == "reasoning_format"


def test_template_variables_are_handed_on() -> None:
    request = chat(chat_template_kwargs={"x": [1]}, verbosity="low").request
    assert request.template_variables == {"x": [1], "verbosity": "low"}


PREFIX: dict[str, Any] = {"role": "assistant", "content": "Once"}


@pytest.mark.parametrize(
    ("messages", "fields", "texts", "continues"),
    [
        ([USER], {}, ["hi"], False),
        ([USER, PREFIX], {}, ["hi", "Once"], True),
        ([USER, PREFIX], {"add_generation_prompt": False}, ["hi", "Once"], True),
        ([USER, PREFIX], {"continue_final_message": True}, ["hi", "Once"], True),
        ([USER, PREFIX], {"continue_final_message": False}, ["hi", "Once"], False),
        ([USER, PREFIX], {"add_generation_prompt": True}, ["hi", "Once"], False),
        ([USER, {**PREFIX, "content": ""}], {}, ["hi"], False),
        ([USER, {**PREFIX, "content": "", "reasoning": "hm"}], {}, ["hi", ""], True),
        ([USER], {"response_prefix": "Sure"}, ["hi", "Sure"], True),
        ([USER, PREFIX], {"response_prefix": " upon"}, ["hi", "Once upon"], True),
    ],
)
def test_a_trailing_assistant_message_is_a_prefix(
    messages: list[Any], fields: dict[str, Any], texts: list[str], continues: bool
) -> None:
    request = chat(messages=messages, **fields).request
    assert [message.text for message in request.messages] == texts
    assert request.continue_final is continues


def test_trailing_tool_calls_are_no_prefix() -> None:
    calls = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}}]}
    assert chat(messages=[USER, calls]).request.continue_final is False


def test_only_the_assistant_can_be_continued() -> None:
    assert chat_fault(continue_final_message=True).param == "continue_final_message"


@pytest.mark.parametrize("fields", [{}, {"continue_final_message": True}])
def test_only_one_message_at_the_end_can_be_a_prefix(fields: dict[str, Any]) -> None:
    error = chat_fault(messages=[USER, PREFIX, PREFIX], **fields)
    assert error.param == "messages[2]"
    turns = chat(messages=[USER, PREFIX, PREFIX], add_generation_prompt=True).request
    assert (len(turns.messages), turns.continue_final) == (3, False)


def test_a_message_is_continued_or_an_answer_begun_and_not_both() -> None:
    both = {"add_generation_prompt": True, "continue_final_message": True}
    assert chat_fault(messages=[USER, PREFIX], **both).param == "continue_final_message"


def test_a_prompt_without_a_generation_prompt_is_reported_to_be_ignored() -> None:
    assert unapplied_names(chat(add_generation_prompt=False)) == ("add_generation_prompt",)


@pytest.mark.parametrize(
    ("fields", "alternatives"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 5}, 5),
        ({"logprobs": 0}, None),
        ({"logprobs": 3}, 3),
    ],
)
def test_logprobs_mean(fields: dict[str, Any], alternatives: int | None) -> None:
    assert chat(**fields).request.answering.logprobs == alternatives


@pytest.mark.parametrize(
    ("stop", "meant"),
    [(None, ()), ("x", ("x",)), (["x", "", "y"], ("x", "y")), ("", ()), ([], ())],
)
def test_stop_means(stop: object, meant: tuple[str, ...]) -> None:
    assert chat(stop=stop).request.answering.stop == meant


@pytest.mark.parametrize(
    ("keep_alive", "seconds"),
    [
        (None, None),
        (30, 30.0),
        (0, 0.0),
        (-1, -1.0),
        (-5, -1.0),
        ("-1", -1.0),
        ("90", 90.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        ("250ms", 0.25),
        ("-1m", -1.0),
    ],
)
def test_keep_alive_means(keep_alive: object, seconds: float | None) -> None:
    assert chat(keep_alive=keep_alive).request.answering.keep_alive == seconds


def test_no_limit_has_two_forms() -> None:
    assert chat(n_predict=-1).request.answering.max_tokens is None
    assert chat().request.answering.max_tokens is None


def test_how_the_answer_is_reported_is_read() -> None:
    exchange = chat(stream=True, stream_options={"include_usage": True}, n=3, model="a/b")
    assert (exchange.stream, exchange.include_usage) == (True, True)
    assert (exchange.request.answering.n, exchange.request.model) == (3, "a/b")
    assert (chat().stream, chat().include_usage, chat().request.model) == (False, False, "")
