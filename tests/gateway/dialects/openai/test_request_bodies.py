"""What holds for every body: spellings, nulls, named faults, and nothing but InvalidRequest."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from backends.remote import RemoteChanges
from gateway.answers.parameters import refuse_unapplied_there, refuse_unparsed
from gateway.dialects.fields import HARMLESS, MOST_NAMED, SPELLINGS
from gateway.dialects.openai import read_chat, read_text
from gateway.errors import InvalidRequest
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


def test_a_missing_field_is_named() -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_chat(b"{}")
    assert caught.value.param == "messages"
    assert caught.value.message == "messages: This field is required."
    with pytest.raises(InvalidRequest) as caught:
        read_text(b"{}")
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": 1}, "model"),
        ({"messages": "hi"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [USER, {"role": 3}]}, "messages[1].role"),
        ({"messages": [{"role": "robot"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"text": "a"}]}]},
            "messages[0].content[0].type",
        ),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"top_k": -2}, "top_k"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"rep_pen": 0}, "rep_pen"),
        ({"repeat_penalty": "1"}, "repeat_penalty"),
        ({"mirostat": 3}, "mirostat"),
        ({"seed": 2**70}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -2}, "max_completion_tokens"),
        ({"n_predict": "many"}, "n_predict"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop": ["x"] * 129}, "stop"),
        ({"stopping_strings": 5}, "stopping_strings"),
        ({"logprobs": 21}, "logprobs"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"chat_template_kwargs": "x"}, "chat_template_kwargs"),
        ({"template_vars": []}, "template_vars"),
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"keep_alive": "nan"}, "keep_alive"),
        ({"reasoning": {"max_tokens": "x"}}, "reasoning.max_tokens"),
        ({"generation_config": "{"}, "generation_config"),
        ({"generation_config": "3"}, "generation_config"),
        ({"generation_config": '{"top_k": "x"}'}, "generation_config.top_k"),
    ],
)
def test_a_fault_names_the_field_as_it_was_written(fields: dict[str, Any], param: str) -> None:
    fault = chat_fault(**fields)
    assert fault.param == param
    assert fault.message.startswith(f"{param}: ")


@for_every("field", sorted({*FIELDS, *SPELLINGS} - {"messages", "prompt"}))
def test_null_is_not_given(field: str) -> None:
    assert chat(**{field: None}) == chat()
    assert text(**{field: None}) == text()


@pytest.mark.parametrize("field", ["messages", "prompt"])
def test_null_in_place_of_what_is_required_is_missing(field: str) -> None:
    fault = chat_fault(messages=None) if field == "messages" else text_fault(prompt=None)
    assert fault.param == field


def test_unknown_fields_are_accepted_and_named() -> None:
    assert unapplied_names(chat(foo=1, bar={"x": 2}, nothing="", user="me")) == (
        "bar",
        "foo",
    )
    assert unapplied_names(text(foo=1, temperature=0.5)) == ("foo",)


def test_unknown_fields_inside_of_others_are_named_once_by_their_path() -> None:
    call = {"id": "1", "index": 2, "type": "function", "function": {"name": "f", "more": "x"}}
    message = {"role": "assistant", "refusal": None, "seen": True, "tool_calls": [call]}
    tool = {"type": "function", "function": {"name": "f", "returns": {"x": 1}}, "note": "n"}
    body = {
        "messages": [
            USER,
            message,
            message,
            {**USER, "content": [{"type": "text", "text": "", "a": 1}]},
        ],
        "tools": [tool],
        "stream_options": {"foo": 1},
        "reasoning": {"summary": "auto"},
    }
    assert set(unapplied_names(chat(**body))) == {
        "messages[].seen",
        "messages[].tool_calls[].function.more",
        "messages[].content[].a",
        "tools[].function.returns",
        "tools[].note",
        "stream_options.foo",
        "reasoning.summary",
    }
    assert unapplied_names(text(stream_options={"foo": 1})) == ("stream_options.foo",)


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


def test_of_a_generation_config_what_is_not_used_is_named() -> None:
    config = {"num_beams": 4, "do_sample": True, "top_k": 3, "eos_token_id": 2, "early_stopping": 0}
    assert unapplied_names(chat(generation_config=config)) == ("generation_config.num_beams",)


def test_a_million_unknown_fields_are_not_all_kept() -> None:
    assert len(unapplied_names(chat(**{f"f{number}": 1 for number in range(1000)}))) == MOST_NAMED


def test_a_small_picture_is_named_because_pictures_are_seen_whole() -> None:
    def seen(detail: str) -> tuple[str, ...]:
        url = {"url": "data:,", "detail": detail}
        parts = [{"type": "image_url", "image_url": url}]
        return unapplied_names(chat(messages=[{"role": "user", "content": parts}]))

    assert seen("low") == ("messages[].content[].image_url.detail",)
    assert seen("auto") == seen("high") == ()


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


def test_max_completion_tokens_wins() -> None:
    exchange = chat(max_tokens=5, max_completion_tokens=7, n_predict=9)
    assert exchange.request.answering.max_tokens == 7


def test_generation_config_fills_what_the_body_leaves_out() -> None:
    config = {"max_new_tokens": 9, "top_k": 3, "temperature": 0.5, "eos_token_id": 2, "top_p": None}
    exchange = chat(generation_config=msgspec.json.encode(config).decode(), top_k=5)
    sampling = exchange.request.answering.sampling
    assert exchange.request.answering.max_tokens == 9
    assert (sampling.values.top_k, sampling.values.temperature) == (5, 0.5)
    assert sampling.named == {"top_k", "temperature"}
    assert unapplied_names(exchange) == ()


def test_generation_config_without_sampling_is_greedy() -> None:
    sampling = chat(generation_config='{"do_sample": false, "temperature": 0.5}')
    assert sampling.request.answering.sampling.values.temperature == 0


@pytest.mark.parametrize("fields", [{"functions": [{"name": "f"}]}, {"function_call": "auto"}])
def test_what_would_change_the_form_of_the_answer_is_refused(fields: dict[str, Any]) -> None:
    (param,) = fields
    assert chat_fault(**fields).param == param
    assert text_fault(**fields).param == param


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


def test_sillytaverns_text_body_is_read_without_a_fault() -> None:
    exchange = read_text(SILLYTAVERN)
    answering = exchange.request.answering
    values = answering.sampling.values
    assert exchange.request.prompts == ("Once",)
    assert exchange.request.add_bos is True
    assert (answering.max_tokens, answering.min_tokens, answering.logprobs) == (350, 0, 10)
    assert answering.stop == ("\nUser:", "\n***")
    assert (values.temperature, values.top_p, values.min_p) == (1, 0.95, 0.01)
    assert (values.repetition_penalty, values.penalty_range, values.dry_range) == (1.1, -1, -1)
    assert values.dry_sequence_breakers == ("\n", ":", '"', "*")
    assert (values.banned_tokens, values.ban_eos, values.temperature_last) == ((), False, True)
    assert (values.adaptive_target, values.adaptive_decay) == (-1.0, 0.9)
    assert unapplied_names(exchange) == ()


SILLYTAVERN = (
    rb'{"prompt":"Once","max_new_tokens":350,"max_tokens":350,"logprobs":10,"temperature":1,'
    rb'"top_p":0.95,"typical_p":1,"typical":1,"min_p":0.01,"repetition_penalty":1.1,'
    rb'"frequency_penalty":0,"presence_penalty":0,"top_k":0,"skew":0,"min_tokens":0,'
    rb'"add_bos_token":true,"smoothing_factor":0,"smoothing_curve":1,"dry_allowed_length":2,'
    rb'"dry_multiplier":0,"dry_base":1.75,'
    rb'"dry_sequence_breakers":"[\"\\n\",\":\",\"\\\"\",\"*\"]","dry_penalty_last_n":0,'
    rb'"max_tokens_second":0,"stopping_strings":["\nUser:","\n***"],"stop":["\nUser:","\n***"],'
    rb'"truncation_length":8192,"ban_eos_token":false,"skip_special_tokens":true,'
    rb'"include_reasoning":true,"top_a":0,"tfs":1,"mirostat_mode":0,"mirostat_tau":5,'
    rb'"mirostat_eta":0.1,"custom_token_bans":"","banned_strings":[],"api_type":"tabby",'
    rb'"api_server":"http://127.0.0.1:8200/","xtc_threshold":0.1,"xtc_probability":0,"nsigma":0,'
    rb'"top_n_sigma":0,"min_keep":0,"adaptive_target":-0.01,"adaptive_decay":0.9,"n":1,'
    rb'"rep_pen":1.1,"rep_pen_range":0,"repetition_decay":0,"repetition_penalty_range":0,'
    rb'"temperature_last":true,"speculative_ngram":false,"guidance_scale":1,"negative_prompt":"",'
    rb'"repeat_penalty":1.1,"repeat_last_n":0,"n_predict":350,"num_predict":350,"num_ctx":8192,'
    rb'"mirostat":0,"ignore_eos":false,"n_probs":10,"rep_pen_slope":1}'
)
