"""Each kind of server is asked for a shape in its own words, or not at all."""

import re
from typing import Any

import msgspec
import pytest

from backends.contract.conversation import (
    Choices,
    Grammar,
    JsonObject,
    JsonSchema,
    Message,
    Regex,
    Shape,
    StructuralTags,
    TextPart,
)
from backends.contract.remote import RemoteChat, RemoteText
from backends.places.upstream.wire import (
    chat_body,
    chat_changes,
    gbnf_of,
    regex_of,
    spelled,
    text_body,
)
from config.upstreams import ServerKind, UpstreamConfig

SCHEMA: dict[str, Any] = {"type": "object", "required": ["size"]}
OBJECT = JsonObject()
JSON = JsonSchema(schema=msgspec.json.encode(SCHEMA), strict=True)
REGEX = Regex(pattern="a+")
CHOICES = Choices(texts=("yes", "no."), field="structured_outputs.choice")
GBNF = Grammar(text='root ::= "a"')
LARK = Grammar(text='start: "a"')
TAGS = StructuralTags(request=b'{"type":"structural_tag"}')
NAMED = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
FORMAT = "response_format"


CASES: dict[str, tuple[ServerKind | None, Shape, dict[str, Any]]] = {
    "vllm: regex": ("vllm", REGEX, {"structured_outputs": {"regex": "a+"}}),
    "vllm: choice": ("vllm", CHOICES, {"structured_outputs": {"choice": ["yes", "no."]}}),
    "vllm: grammar": ("vllm", GBNF, {"structured_outputs": {"grammar": GBNF.text}}),
    "vllm: schema": ("vllm", JSON, {FORMAT: NAMED}),
    "vllm: tags": ("vllm", TAGS, {FORMAT: {"type": "structural_tag"}}),
    "vllm: its older fields": (
        "vllm",
        Regex(pattern="a+", field="guided_regex"),
        {"guided_regex": "a+"},
    ),
    "roundhouse: regex": ("roundhouse", REGEX, {"structured_outputs": {"regex": "a+"}}),
    "sglang: regex": ("sglang", REGEX, {"regex": "a+"}),
    "sglang: choice": ("sglang", CHOICES, {"regex": r"(yes|no\.)"}),
    "sglang: gbnf": ("sglang", GBNF, {"ebnf": GBNF.text}),
    "sglang: lark": ("sglang", LARK, {}),
    "llama-server: schema": ("llama-server", JSON, {FORMAT: NAMED}),
    "llama-server: gbnf": ("llama-server", GBNF, {"grammar": GBNF.text}),
    "llama-server: lark": ("llama-server", LARK, {}),
    "llama-server: choice": ("llama-server", CHOICES, {"grammar": 'root ::= "yes" | "no."'}),
    "llama-server: regex": ("llama-server", REGEX, {}),
    "koboldcpp: gbnf": ("koboldcpp", GBNF, {"grammar": GBNF.text}),
    "llama-cpp-python: schema": (
        "llama-cpp-python",
        JSON,
        {FORMAT: {"type": "json_object", "schema": SCHEMA}},
    ),
    "llama-cpp-python: choice": ("llama-cpp-python", CHOICES, {"grammar": gbnf_of(("yes", "no."))}),
    "llama-cpp-python: regex": ("llama-cpp-python", REGEX, {}),
    "tgi: object": ("tgi", OBJECT, {FORMAT: {"type": "json", "value": {"type": "object"}}}),
    "tgi: schema": ("tgi", JSON, {FORMAT: {"type": "json", "value": SCHEMA}}),
    "tgi: regex": ("tgi", REGEX, {FORMAT: {"type": "regex", "value": "a+"}}),
    "tgi: choice": ("tgi", CHOICES, {FORMAT: {"type": "regex", "value": r"(yes|no\.)"}}),
    "tgi: grammar": ("tgi", GBNF, {}),
    "tabbyapi: schema": ("tabbyapi", JSON, {"json_schema": SCHEMA}),
    "tabbyapi: regex": ("tabbyapi", REGEX, {"regex_pattern": "a+"}),
    "tabbyapi: lark": ("tabbyapi", LARK, {"grammar_string": LARK.text}),
    "openai: object": ("openai", OBJECT, {FORMAT: {"type": "json_object"}}),
    "openai: regex": ("openai", REGEX, {}),
    "ollama: schema": ("ollama", JSON, {FORMAT: NAMED}),
    "ollama: gbnf": ("ollama", GBNF, {}),
    "unknown: regex": (None, REGEX, {"structured_outputs": {"regex": "a+"}}),
    "unknown: in the client's words": (None, GBNF, {"grammar": GBNF.text}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_shape_is_asked_for_in_the_servers_words(case: str) -> None:
    server, shape, expected = CASES[case]
    assert _plain(spelled(shape, server)) == expected


def _plain(body: dict[str, Any]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(body))


def test_choices_as_a_regex_match_themselves_alone() -> None:
    texts = ("a.b", "(x|y)", "[1] {2} ^$ *+?", "back\\slash", "new\nline")
    pattern = re.compile(regex_of(texts))
    assert all(pattern.fullmatch(text) for text in texts)
    assert not pattern.fullmatch("axb")


def test_choices_as_a_grammar_are_quoted() -> None:
    assert gbnf_of(('say "hi"', "back\\", "\n")) == r'root ::= "say \"hi\"" | "back\\" | "\x0a"'


CONFIG = UpstreamConfig(name="there", urls=("http://there/v1",))
CHAT = RemoteChat(messages=(Message(role="user", parts=(TextPart("?"),)),), shape=JSON)


def test_llama_server_has_another_word_for_texts() -> None:
    text = RemoteText(prompts=("?",), shape=JSON)
    body = msgspec.json.decode(text_body(text, "m", CONFIG, "llama-server"))
    assert (body["json_schema"], "response_format" in body) == (SCHEMA, False)


def test_what_no_words_ask_for_is_known_not_to_be_held() -> None:
    regex = msgspec.structs.replace(CHAT, shape=REGEX)
    assert not chat_changes(regex, CONFIG, "openai").holds_shape
    assert chat_changes(regex, CONFIG, "vllm").holds_shape
    assert chat_changes(msgspec.structs.replace(CHAT, shape=None), CONFIG).holds_shape


def test_a_shape_is_renamed_and_dropped_like_any_parameter() -> None:
    renamed = msgspec.structs.replace(CONFIG, rename={"response_format": "format"})
    assert msgspec.json.decode(chat_body(CHAT, "m", renamed))["format"] == NAMED

    dropped = msgspec.structs.replace(CONFIG, drop=("response_format",))
    changes = chat_changes(CHAT, dropped)
    assert "response_format" not in msgspec.json.decode(chat_body(CHAT, "m", dropped))
    assert (changes.holds_shape, set(changes.unapplied)) == (False, {"response_format"})
