"""What the templates of llama.cpp's repository make of conversations that clients send.

Where Jinja alone writes all of a conversation, in the form that transformers gives it, so do we,
character by character. Where it refuses one or loses some of it, we write all of it still. And what
stands in a prompt as an earlier call is a call to our splitter.
"""

import json
import re
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import pytest

from gateway.prompt.conversation import tool_dict
from gateway.splitter import Splitter, starts_in_reasoning
from gateway.terms.request import Message, Tool, ToolCall
from tests.every import for_every
from tests.gateway.prompt.corpus import interpreter, plain, templates
from tests.gateway.prompt.families import assistant, calling, request, result, system, user
from tests.gateway.splitter.corpus import join

pytestmark = pytest.mark.slow  # it reads seventy templates

STORE = Tool(
    name="store",
    description="Keeps a thing",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "count": {"type": "integer"},
            "share": {"type": "number"},
            "open": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "text": {"type": "string"},
        },
    },
)
GIVEN = {
    "city": "Ulm",
    "count": 2,
    "share": 0.5,
    "open": True,
    "tags": ["a", "b"],
    "text": 'one "two"\n<b>thrée</b> {four}',
}
TIME = re.compile(r"\d\d:\d\d:\d\d")  # of the day, which some templates write
BEGUN = re.compile(r"<[^<>]*\Z")  # a marker, where what follows it differs
FIRST = ToolCall("call_1123456789abcdef01234567", "store", json.dumps(GIVEN, ensure_ascii=False))
SECOND = ToolCall("call_2123456789abcdef01234567", "store", '{"city": "Bonn"}')
SOLE = (user("ASK"), calling(FIRST), result("FOUND1", FIRST.id))
AFTER = (assistant("ANSWER"), user("MORE"))

CONVERSATIONS: dict[str, tuple[Message, ...]] = {
    "talk": (system("RULE"), user("ASK"), *AFTER),
    "call": (system("RULE"), *SOLE, *AFTER),
    "call at the end": SOLE,
    "text beside a call": (user("ASK"), calling(FIRST, text="SPOKEN"), *SOLE[2:], *AFTER),
    "two calls": (
        user("ASK"),
        calling(FIRST, SECOND),
        *SOLE[2:],
        result("FOUND2", SECOND.id),
        *AFTER,
    ),
    "system in the middle": (user("ASK"), assistant("ANSWER"), system("RULE"), user("MORE")),
    "two users": (user("ASK"), user("MORE"), assistant("ANSWER"), user("LATER")),
    "an empty answer": (user("ASK"), assistant(""), user("MORE")),
    "an empty question": (user(""), assistant("ANSWER"), user("MORE")),
    "the assistant begins": (assistant("ANSWER"), user("ASK")),
}


def openai(message: Message) -> dict[str, Any]:
    """As transformers takes it: with arguments as objects."""
    written: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.tool_calls:
        written["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.loads(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.role == "tool":
        written |= {"tool_call_id": message.tool_call_id, "name": "store"}
    return written


def words(messages: tuple[Message, ...]) -> Iterator[str]:
    for message in messages:
        yield message.text
        for call in message.tool_calls:
            yield from ("store", json.loads(call.arguments)["city"])


def calls(messages: tuple[Message, ...]) -> bool:
    return any(message.tool_calls for message in messages)


def ours(name: str, messages: tuple[Message, ...], **options: Any) -> str:
    tools = (STORE,) if calls(messages) else ()
    asked = request(*messages, tools=tools, continue_final=False, **options)
    return interpreter(name).template.render(asked).text


@for_every("name", templates, str)
@pytest.mark.parametrize("of", CONVERSATIONS)
def test_a_conversation_is_written_whole(name: str, of: str) -> None:
    messages = CONVERSATIONS[of]
    text = ours(name, messages)
    assert not [word for word in words(messages) if word not in text]


@for_every("name", templates, str)
@pytest.mark.parametrize("of", CONVERSATIONS)
def test_what_jinja_alone_writes_whole_is_what_we_write(name: str, of: str) -> None:
    messages, traits = CONVERSATIONS[of], interpreter(name).template.traits
    tools = [tool_dict(STORE)] if calls(messages) else None
    text = plain(name, [*map(openai, messages)], tools)
    shown = text is not None and all(word in text for word in words(messages))
    ours_alone = (tools and traits.tools == "described") or any(
        (
            of == "system in the middle" and traits.system != "anywhere",  # it keeps its place here
            of == "the assistant begins" and not traits.assistant_opens,
        )
    )
    if shown and not ours_alone:
        assert TIME.sub("", ours(name, messages)) == TIME.sub("", text or "")


def read_back(name: str, messages: tuple[Message, ...], at: int) -> list[Any]:
    """What the splitter makes of the turn at `at`, of calls alone, as the template wrote it."""
    spoken = interpreter(name)
    before = spoken.template.render(request(*messages[:at], tools=(STORE,))).text
    whole = ours(name, messages)
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(before, whole, strict=False))
    head = BEGUN.sub("", "".join(character for character, _ in alike))
    splitter = Splitter(
        spoken.format,
        in_reasoning=starts_in_reasoning(spoken.format, head),
        tools=(STORE,),
        prompt_tail=head,
    )
    turn = whole[len(head) : whole.rindex("FOUND1")]
    answer = join([*splitter.feed(turn), *splitter.finish("stop")])
    return [*map(json.loads, answer.arguments)]


@for_every("name", templates, str)
@pytest.mark.parametrize("of", ["call", "text beside a call", "two calls"])
def test_a_past_call_is_one_to_the_splitter(name: str, of: str) -> None:
    messages, traits = CONVERSATIONS[of], interpreter(name).template.traits
    at = next(place for place, message in enumerate(messages) if message.tool_calls)
    many, beside = len(messages[at].tool_calls) > 1, bool(messages[at].text)
    if many and not traits.parallel_calls:
        return  # they are turns of their own
    if not beside or traits.calls_with_text or traits.alternates:
        made = [json.loads(call.arguments) for call in messages[at].tool_calls]
        assert read_back(name, messages, at) == made


@for_every("name", templates, str)
def test_no_turn_is_invented_for_a_text_beside_a_call(name: str) -> None:
    spoken, silent = CONVERSATIONS["text beside a call"], (*SOLE, *AFTER)
    assert ours(name, spoken).count("...") == ours(name, silent).count("...")


@for_every("name", templates, str)
@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"city": "Be', {"_raw": '{"city": "Be'}),
        ("city: Ulm", {"_raw": "city: Ulm"}),
        ("[]", {}),
        ("null", {}),
        (" ", {}),
    ],
)
def test_a_broken_past_call_is_shown(name: str, arguments: str, shown: dict[str, Any]) -> None:
    messages = (user("ASK"), calling(ToolCall(FIRST.id, "store", arguments)), SOLE[2], *AFTER)
    assert read_back(name, messages, 1) == [shown]


@for_every("name", templates, str)
def test_reasoning_goes_on_wherever_the_family_reasons(name: str) -> None:
    begun = request(user("ASK"), assistant("", reasoning="THOUGHT"), continue_final=True)
    text = interpreter(name).template.render(begun).text
    if interpreter(name).format.reasoning is not None:
        assert text.endswith("THOUGHT")
        assert starts_in_reasoning(interpreter(name).format, text)


@for_every("name", templates, str)
def test_an_answer_with_its_reasoning_inside_is_taken_back(name: str) -> None:
    markers = interpreter(name).format.reasoning
    if markers is not None:
        said = f"{markers.open}THOUGHT{markers.close}ANSWER"
        text = ours(name, (user("ASK"), assistant(said), user("MORE")))
        assert "ANSWER" in text
