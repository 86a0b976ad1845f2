"""What holds for every body: spellings, nulls, named faults, and nothing but InvalidRequest."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from backends.contract.remote import RemoteChanges
from gateway.answers.parameters import refuse_unapplied_there, refuse_unparsed
from gateway.dialects.fields import HARMLESS, MOST_NAMED, SPELLINGS
from gateway.dialects.openai import read_chat, read_text
from gateway.terms.errors import InvalidRequest
from tests.every import for_every
from tests.gateway.dialects.openai.bodies import USER, chat, chat_fault, text, text_fault
from tests.unapplied import names as unapplied_names

FIELDS = (
    "model",
    "messages",
    "prompt",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "stop",
    "n",
    "max_tokens",
    "temperature",
    "top_k",
    "seed",
    "stream",
    "stream_options",
    "keep_alive",
    "logprobs",
    "top_logprobs",
    "logit_bias",
    "banned_tokens",
    "dry_sequence_breakers",
    "reasoning",
    "reasoning_effort",
    "reasoning_format",
    "thinking_budget",
    "response_format",
    "continue_final_message",
    "add_generation_prompt",
    "response_prefix",
    "echo",
    "suffix",
    "chat_template_kwargs",
    "generation_config",
)

# A value of the right type that differs from the default; 1 for all others.
SAMPLES: dict[str, Any] = {
    "stop": "x",
    "n": 2,
    "template_variables": {"x": 1},
    "ban_eos": True,
    "add_bos": True,
    "banned_tokens": "1",
    "allowed_tokens": "1",
    "samplers": ["top_k"],
}


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"null", b"[]", b'"text"', b'{"model": 1e400}', b'{"a": "\xff"}', b'{"a":' * 9999],
)
@pytest.mark.parametrize("read", [read_chat, read_text])
def test_a_body_that_is_no_json_object_is_refused(
    read: Callable[[bytes], object], body: bytes
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(body)
    assert caught.value.param is None


@for_every("field", sorted({*FIELDS, *SPELLINGS} - {"messages", "prompt"}))
def test_null_is_not_given(field: str) -> None:
    assert chat(**{field: None}) == chat()
    assert text(**{field: None}) == text()


@pytest.mark.parametrize("field", ["messages", "prompt"])
def test_null_in_place_of_what_is_required_is_missing(field: str) -> None:
    fault = chat_fault(messages=None) if field == "messages" else text_fault(prompt=None)
    assert fault.param == field


def test_no_more_nested_names_are_kept_than_top_ones() -> None:
    message = {**USER, **{f"f{number}" * 200: 1 for number in range(1000)}}
    ignored = unapplied_names(chat(messages=[message] * 3))
    assert len(ignored) == MOST_NAMED
    assert max(map(len, ignored)) <= 200


def test_strict_parameters_refuses_what_has_no_meaning() -> None:
    """Where no other server is handed it, which is known when the model is."""
    for read, name in (
        (chat(strict_parameters=True, foo=1), "foo"),
        (text(strict_parameters=True, best_of=3), "best_of"),
        (chat(strict_parameters=True, messages=[{**USER, "foo": 1}]), "messages[].foo"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            refuse_unparsed(read.request.answering)
        assert caught.value.param == name
        elsewhere = replace(read.request.answering, further={name: 1})
        refuse_unapplied_there(RemoteChanges(), elsewhere)
    assert unapplied_names(chat(strict_parameters=True, user="me", temperature=1)) == ()


def test_what_asks_other_servers_for_nothing_is_not_named() -> None:
    assert unapplied_names(text(guidance_scale=1, rep_pen_slope=1, num_beams=1.0)) == ()
    assert unapplied_names(text(guidance_scale=1.5)) == ("guidance_scale",)


def test_the_harmless_fields_have_a_reason_and_are_not_named() -> None:
    assert all(HARMLESS.values())
    harmless = {name: "x" for name in HARMLESS if name != "generation_config"}
    assert unapplied_names(chat(**harmless)) == unapplied_names(text(**harmless)) == ()


def test_a_million_unknown_fields_are_not_all_kept() -> None:
    assert len(unapplied_names(chat(**{f"f{number}": 1 for number in range(1000)}))) == MOST_NAMED


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 5.0),
        ("min_tokens", 5.0),
        ("n", 2.0),
        ("seed", 7.0),
        ("top_k", 40.0),
        ("penalty_range", 64.0),
        ("mirostat", 2.0),
        ("keep_alive", 5.0),
        ("allowed_token_ids", [5.0, 6]),
        ("logit_bias", [[5.0, 1.5]]),
    ],
)
def test_an_integral_float_is_an_integer(field: str, value: Any) -> None:
    plain = msgspec.json.decode(msgspec.json.encode(value).replace(b".0", b""))
    assert chat(**{field: value}) == chat(**{field: plain})
    assert text(**{field: value}) == text(**{field: plain})


def test_integral_floats_are_taken_at_any_depth() -> None:
    assert text(prompt=[[1.0, 2], [3.0]]) == text(prompt=[[1, 2], [3]])
    assert chat(reasoning={"max_tokens": 9.0}) == chat(reasoning={"max_tokens": 9})
    assert chat(logprobs=True, top_logprobs=2.0) == chat(logprobs=True, top_logprobs=2)


def test_what_is_no_integer_of_ours_keeps_its_floats() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"default": 1.0}}}
    (read,) = chat(tools=[tool], max_tokens=5.0).request.tools
    assert read.parameters is not None
    assert isinstance(read.parameters["default"], float)


@pytest.mark.parametrize("value", [5.5, "5"])
def test_what_is_not_integral_is_refused_by_the_clients_name(value: Any) -> None:
    assert chat_fault(max_new_tokens=value).param == "max_new_tokens"
    assert text_fault(prompt=[1, 2.5]).param == "prompt[1]"


@pytest.mark.parametrize("field", sorted(SPELLINGS))
def test_the_first_spelling_wins_and_the_others_are_no_error(field: str) -> None:
    first, *others = SPELLINGS[field]
    read = text if field == "add_bos" else chat
    alone = read(**{first: SAMPLES.get(field, 1)})
    assert read(**{first: SAMPLES.get(field, 1)}, **dict.fromkeys(others, "x")) == alone
    assert alone != read()


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}},
        {"grammar": ""},
        {"json_schema": {}},
        {"functions": []},
    ],
)
def test_empty_wishes_for_a_form_are_fine(fields: dict[str, Any]) -> None:
    assert chat(**fields) == chat()


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**66), 2**66)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "role", "function", "name", "content"]), inner)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=4))
def test_nothing_but_invalid_request_is_ever_raised(fields: dict[str, Any]) -> None:
    for read, required in ((read_chat, {"messages": [USER]}), (read_text, {"prompt": "x"})):
        with suppress(InvalidRequest):
            read(msgspec.json.encode({**required, **fields}))
