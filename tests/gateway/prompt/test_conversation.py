import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.prompt.conversation import TemplateTraits, arranged
from gateway.terms.request import Message, TextPart, ToolCall
from tests.gateway.prompt.families import (
    FAMILIES,
    PICTURE,
    STRICT,
    assistant,
    calling,
    request,
    result,
    system,
    template,
    user,
    weather_in,
)

LENIENT = TemplateTraits()
STRICTEST = TemplateTraits(
    system="leading",
    alternates=True,
    assistant_opens=False,
    calls_with_text=False,
    parallel_calls=False,
)

Shown = tuple[str, str, tuple[str, ...]]


def shown(message: Message) -> Shown:
    return message.role, message.text, tuple(call.id for call in message.tool_calls)


def outline(messages: tuple[Message, ...], traits: TemplateTraits) -> list[Shown]:
    return [shown(message) for message in arranged(messages, traits)]


def test_a_lenient_template_gets_what_the_client_sent() -> None:
    messages = (
        assistant("a"),
        system("s"),
        user("b"),
        user("c"),
        calling(weather_in("Ulm", "1"), text="d"),
        system("t"),
    )
    assert arranged(messages, LENIENT) == messages


@pytest.mark.parametrize(
    ("messages", "roles"),
    [
        ((system("a"), system("b"), user("c")), [("system", "a\n\nb"), ("user", "c")]),
        (
            (user("a"), system("b"), assistant("c"), system("d")),
            [("user", "a\n\nb"), ("assistant", "c"), ("user", "d")],
        ),
        ((system("a"),), [("user", "a")]),
        ((system("a"), system("b")), [("system", "a"), ("user", "b")]),
        (
            (system("a"), assistant("b"), user("c")),
            [("system", "a"), ("user", "..."), ("assistant", "b"), ("user", "c")],
        ),
        (
            (user("a"), assistant("b"), assistant("c")),
            [("user", "a"), ("assistant", "b\n\nc")],
        ),
    ],
)
def test_turns_are_merged_or_filled(
    messages: tuple[Message, ...], roles: list[tuple[str, str]]
) -> None:
    assert [(role, text) for role, text, _ in outline(messages, STRICTEST)] == roles


def test_without_a_system_role_its_words_are_the_users() -> None:
    traits = TemplateTraits(system="none")
    assert outline((system("a"), user("b")), traits) == [("user", "a", ()), ("user", "b", ())]


def test_merged_answers_keep_their_reasoning() -> None:
    traits = TemplateTraits(alternates=True)
    (_, merged) = arranged((user("a"), assistant("b", "x"), assistant("c", "y")), traits)
    assert (merged.text, merged.reasoning) == ("b\n\nc", "x\n\ny")


def test_results_are_sorted_and_named_by_their_calls() -> None:
    calls = (ToolCall("1", "one", "{}"), ToolCall("2", "two", "{}"))
    _, _, first, second = arranged(
        (user("?"), calling(*calls), result("b", "2"), result("a", "1")), LENIENT
    )
    assert (first.text, first.name) == ("a", "one")
    assert (second.text, second.name) == ("b", "two")


def test_a_result_under_an_unknown_id_answers_the_call_that_is_left() -> None:
    calls = (weather_in("Ulm", "1"), weather_in("Bonn", "2"))
    _, _, first, second = arranged(
        (user("?"), calling(*calls), result("b", "other"), result("a", "1")), LENIENT
    )
    assert (first.text, first.tool_call_id) == ("a", "1")
    assert (second.text, second.tool_call_id) == ("b", "2")


def test_a_result_of_no_call_is_the_users_words() -> None:
    assert outline((user("a"), result("b", "1")), LENIENT) == [
        ("user", "a", ()),
        ("user", "<tool_response>\nb\n</tool_response>", ()),
    ]


def test_calls_are_parted_with_their_results_behind_them() -> None:
    calls = (weather_in("Ulm", "1"), weather_in("Bonn", "2"))
    messages = (user("?"), calling(*calls, text="hm"), result("b", "2"), result("a", "1"))
    assert outline(messages, TemplateTraits(calls_with_text=False, parallel_calls=False)) == [
        ("user", "?", ()),
        ("assistant", "hm", ()),
        ("assistant", "", ("1",)),
        ("tool", "a", ()),
        ("assistant", "", ("2",)),
        ("tool", "b", ()),
    ]


def test_two_results_of_one_call_keep_their_order() -> None:
    messages = (user("?"), calling(weather_in("Ulm", "1")), result("a", "1"), result("b", "1"))
    assert arranged(messages, TemplateTraits(parallel_calls=False))[2:] == tuple(
        replace(message, name="get_weather") for message in messages[2:]
    )


def test_pictures_stay_between_the_words_that_are_merged() -> None:
    seen = Message(role="user", parts=(PICTURE,))
    (merged,) = arranged((user("a"), seen, user("b")), TemplateTraits(alternates=True))
    assert merged.parts == (TextPart("a"), PICTURE, TextPart("b"))


def test_an_empty_neighbour_adds_nothing() -> None:
    (merged,) = arranged((user("a"), Message(role="user")), TemplateTraits(alternates=True))
    assert merged.parts == (TextPart("a"),)


def test_a_user_who_interrupts_a_tool_waits_for_a_silent_answer() -> None:
    messages = (user("a"), calling(weather_in("Ulm", "1")), result("b", "1"), user("c"))
    assert [role for role, _, _ in outline(messages, STRICTEST)] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]


def spoken(index: int, role: str) -> Message:
    word = f"word{index}"
    match role:
        case "call":
            return calling(weather_in(f"city{index}", f"call_{index}"), text=word)
        case "calls":
            pair = (weather_in(f"city{index}", f"a{index}"), weather_in("x", f"b{index}"))
            return calling(*pair)
        case "tool":
            return result(word, f"call_{index - 1}")
        case "system":
            return system(word)
        case "assistant":
            return assistant(word, reasoning="hm")
        case _:
            return user(word)


ROLES = st.sampled_from(("system", "user", "assistant", "call", "calls", "tool"))
CONVERSATIONS = st.lists(ROLES, min_size=1, max_size=8).map(
    lambda roles: tuple(spoken(index, role) for index, role in enumerate(roles))
)


@given(messages=CONVERSATIONS, traits=st.sampled_from((LENIENT, STRICTEST)))
def test_no_word_is_lost_and_none_changes_its_place(
    messages: tuple[Message, ...], traits: TemplateTraits
) -> None:
    text = "\n".join(message.text for message in arranged(messages, traits))
    places = [text.find(message.text) for message in messages if message.text]
    assert -1 not in places
    assert places == sorted(places)


@given(messages=CONVERSATIONS)
def test_strict_turns_alternate(messages: tuple[Message, ...]) -> None:
    turns = [message.role for message in arranged(messages, STRICTEST) if not message.tool_calls]
    spoken_turns = [role for role in turns if role in {"user", "assistant"}]
    expected = ["user" if index % 2 == 0 else "assistant" for index in range(len(spoken_turns))]
    assert spoken_turns == expected


@given(messages=CONVERSATIONS)
def test_arranging_twice_changes_nothing_more(messages: tuple[Message, ...]) -> None:
    once = arranged(messages, STRICTEST)
    assert arranged(once, STRICTEST) == once


@given(messages=CONVERSATIONS, family=st.sampled_from(FAMILIES))
def test_any_sequence_of_roles_renders_whole_on_every_family(
    messages: tuple[Message, ...], family: str
) -> None:
    text = template(family).render(request(*messages)).text
    assert all(message.text in text for message in messages)
    cities = [call.arguments[9:-1] for message in messages for call in message.tool_calls]
    assert all(city in text for city in cities)


def test_the_strict_families_are_strict() -> None:
    assert all(template(family).traits.alternates for family in STRICT)
