"""Every API reads the words of all others that ask for a shape of the answer."""

from typing import Any

import msgspec
import pytest

from backends.contract.conversation import JsonObject, JsonSchema
from tests.gateway.dialects.corpus import READERS

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
WORDS: dict[str, Any] = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
    "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    "output_format": {"type": "json_schema", "schema": SCHEMA},
    "format": SCHEMA,
    "json_schema": SCHEMA,
}
BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("openai", "chat"): {"messages": [{"role": "user", "content": "Hi"}]},
    ("responses", "response"): {"input": "Hi"},
    ("anthropic", "messages"): {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]},
    ("ollama", "chat"): {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
    ("ollama", "generate"): {"model": "m", "prompt": "Hi"},
}


def shape_of(api: str, reader: str, fields: dict[str, Any]) -> Any:
    body = msgspec.json.encode({**BODIES[api, reader], **fields})
    read = READERS[api][reader](body)
    answering = getattr(read, "request", read).answering
    assert answering.unapplied == ()
    return answering.shape


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize(("api", "reader"), BODIES)
def test_a_schema_in_any_api_s_words(api: str, reader: str, word: str) -> None:
    shape = shape_of(api, reader, {word: WORDS[word]})
    assert isinstance(shape, JsonSchema)
    assert msgspec.json.decode(shape.schema) == SCHEMA
    assert shape.field.startswith(word)


@pytest.mark.parametrize(("api", "reader"), BODIES)
def test_any_object_in_ollama_s_words(api: str, reader: str) -> None:
    assert shape_of(api, reader, {"format": "json"}) == JsonObject(field="format")
