"""Structured output options, in every API's spelling, to one `Shape`.

OpenAI's `response_format` and the forms that Hugging Face's client, TGI, llama.cpp, TabbyAPI and
Fireworks give it, and `text.format` of its Responses; Anthropic's `output_config` and
`output_format`; Ollama's `format`; TabbyAPI's, llama.cpp's and SGLang's flat fields; vLLM's
`guided_…` and `structured_outputs`. Each API reads the words of all: none asks for anything else.
Knows no grammar: whether a shape can be kept to is for others to say.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from backends.contract.conversation import (
    Choices,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    Shape,
    StructuralTags,
)
from gateway.dialects.fields import Fields

Object = dict[str, Any]
Read: TypeAlias = Callable[[Fields, str, Any], Shape | None]


def read_shape(fields: Fields) -> Shape | None:
    """The one shape that the body asks for; None where the answer is free.

    The same shape under two names is one. Raises InvalidRequest, also for two that differ.
    """
    found: Shape | None = None
    if SHAPE_FIELDS.isdisjoint(fields.values):
        return None  # nearly all bodies
    for shape in _shapes(fields):
        if found is not None and not _same(found, shape):
            message = f"Together with {found.field} this asks for two shapes of one answer."
            raise fields.wrong(shape.field, message)
        found = found or shape
    if found is None or not fields.prefix:
        return found
    return msgspec.structs.replace(found, field=fields.prefix + found.field)


def _shapes(fields: Fields) -> Iterator[Shape]:
    sources = (
        *((name, fields.values.get(name), read) for name, read in _FLAT.items()),
        *_nested(fields, "structured_outputs"),
    )
    for path, value, read in sources:
        if value not in _NOT_GIVEN and (shape := read(fields, path, value)) is not None:
            yield shape


def _nested(fields: Fields, path: str) -> Iterator[tuple[str, Any, Read]]:
    """The object of vLLM, whose members have the kinds of the flat fields."""
    value = fields.values.get(path) or {}
    for name, item in fields.convert(path, value, Object).items():
        if (read := _STRUCTURED_OUTPUTS.get(name)) is not None:
            yield f"{path}.{name}", item, read


def _same(one: Shape, other: Shape) -> bool:
    return msgspec.structs.replace(one, field="") == msgspec.structs.replace(other, field="")


def _schema(fields: Fields, path: str, value: Any) -> JsonSchema:
    """A JSON schema, or the text of one. TabbyAPI's clients also send OpenAI's wrapping."""
    if isinstance(value, str):
        value = _decoded(fields, path, value)
    wraps = isinstance(value, dict) and ("name" in value or len(value) == 1)
    if wraps and isinstance(value.get("schema"), dict):
        return _wrapped_schema(fields, path, value)
    return JsonSchema(schema=_json_schema(fields, path, value), field=path)


def _wrapped_schema(fields: Fields, path: str, value: Any) -> JsonSchema:
    """OpenAI's `{"name", "schema", "strict"}`."""
    wrapping = fields.convert(path, value, Object)
    place = f"{path}.schema"
    schema = _json_schema(fields, place, wrapping.get("schema", {}))
    return JsonSchema(schema=schema, strict=_strict(fields, path, wrapping), field=place)


def _json_schema(fields: Fields, path: str, value: Any) -> bytes:
    """An object, or true or false, as its text."""
    schema = value if isinstance(value, bool) else fields.convert(path, value, Object)
    return msgspec.json.encode(schema)


def _strict(fields: Fields, path: str, wrapping: Mapping[str, Any]) -> bool:
    strict = wrapping.get("strict")
    return strict is not None and fields.convert(f"{path}.strict", strict, bool)


def _any_object(fields: Fields, path: str, value: Any) -> Shape | None:
    return JsonObject(field=path) if fields.convert(path, value, bool) else None


def _regex(fields: Fields, path: str, value: Any) -> Shape:
    return Regex(pattern=fields.convert(path, value, str), field=path)


def _grammar(fields: Fields, path: str, value: Any) -> Shape | None:
    """A text; or TGI's `{"type": "json" | "regex", "value": …}`."""
    if isinstance(value, dict):
        return _response_format(fields, path, {"type": "", **value})
    return Grammar(text=fields.convert(path, value, str), field=path)


def _choices(fields: Fields, path: str, value: Any) -> Shape:
    return Choices(texts=fields.convert(path, value, tuple[str, ...]), field=path)


def _tags(fields: Fields, path: str, value: Any) -> Shape:
    if isinstance(value, str):
        value = _decoded(fields, path, value)
    wire = fields.convert(path, value, Object)
    return StructuralTags(request=msgspec.json.encode(wire), field=path)


def _response_format(fields: Fields, path: str, value: Any) -> Shape | None:
    wire = fields.convert(path, value, Object)
    return fields.meant(f"{path}.type", wire.get("type", "text"), _TYPED)(fields, path, wire)


def _responses(fields: Fields, path: str, value: Any) -> Shape | None:
    """Elsewhere `text` is one, or a conversation."""
    wire = value.get("format") or {} if isinstance(value, dict) else {}
    return _response_format(fields, f"{path}.format", wire)


def _anthropic(fields: Fields, path: str, value: Any) -> Shape | None:
    """What it gives is always kept to."""
    shape = _response_format(fields, path, value)
    return msgspec.structs.replace(shape, strict=True) if isinstance(shape, JsonSchema) else shape


def _output_config(fields: Fields, path: str, value: Any) -> Shape | None:
    wire = fields.convert(path, value, Object).get("format") or {}
    return _anthropic(fields, f"{path}.format", wire)


def _ollama(fields: Fields, path: str, value: Any) -> Shape:
    if value == "json":
        return JsonObject(field=path)
    if isinstance(value, dict):
        return _schema(fields, path, value)
    raise fields.wrong(path, f"Expected 'json' or a JSON schema, got {value!r:.64}.")


def _typed_object(fields: Fields, path: str, wire: Mapping[str, Any]) -> Shape:
    """Any object; which one say llama.cpp's `schema`, Hugging Face's `value`, Cohere's
    `json_schema`.
    """
    for name in ("schema", "value", "json_schema"):
        if wire.get(name) not in _NOT_GIVEN:
            return _schema(fields, f"{path}.{name}", wire[name])
    return JsonObject(field=path)


def _typed_schema(fields: Fields, path: str, wire: Mapping[str, Any]) -> Shape:
    """OpenAI's `json_schema`; TabbyAPI and vLLM's clients put the schema itself there, llama.cpp
    has `schema`, TGI `value`.
    """
    if (value := wire.get("json_schema")) is not None:
        inner = fields.convert(f"{path}.json_schema", value, Object)
        if "schema" in inner or "name" in inner:
            return _wrapped_schema(fields, f"{path}.json_schema", inner)
        return _schema(fields, f"{path}.json_schema", inner)
    for name in ("schema", "value"):
        if (value := wire.get(name)) is not None:
            shape = _schema(fields, f"{path}.{name}", value)
            return msgspec.structs.replace(shape, strict=_strict(fields, path, wire))
    name = "json_schema" if path == "response_format" else "schema"
    raise fields.wrong(f"{path}.{name}", "This field is required.")


def _typed_regex(fields: Fields, path: str, wire: Mapping[str, Any]) -> Shape:
    name = "pattern" if "pattern" in wire else "value"
    return _regex(fields, f"{path}.{name}", wire.get(name))


def _typed_grammar(fields: Fields, path: str, wire: Mapping[str, Any]) -> Shape | None:
    return _grammar(fields, f"{path}.grammar", wire.get("grammar"))


def _decoded(fields: Fields, path: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise fields.wrong(path, f"Not valid JSON: {error}.") from None


_NOT_GIVEN: tuple[Any, ...] = (None, "", {}, [])  # what frontends send for a field left blank

_TYPED: Mapping[str, Callable[[Fields, str, Mapping[str, Any]], Shape | None]] = {
    "text": lambda _fields, _path, _wire: None,
    "json_object": _typed_object,
    "json": _typed_object,
    "json_schema": _typed_schema,
    "regex": _typed_regex,
    "grammar": _typed_grammar,
    "structural_tag": _tags,
}
_FLAT: Mapping[str, Read] = {
    "response_format": _response_format,
    "text": _responses,
    "output_config": _output_config,
    "output_format": _anthropic,
    "format": _ollama,
    "json_schema": _schema,
    "guided_json": _schema,
    "regex_pattern": _regex,
    "guided_regex": _regex,
    "regex": _regex,
    "grammar_string": _grammar,
    "grammar": _grammar,
    "guided_grammar": _grammar,
    "ebnf": _grammar,
    "guided_choice": _choices,
    "structural_tag": _tags,
}
_STRUCTURED_OUTPUTS: Mapping[str, Read] = {
    "json": _schema,
    "json_object": _any_object,
    "regex": _regex,
    "grammar": _grammar,
    "choice": _choices,
    "structural_tag": _tags,
}
SHAPE_FIELDS = frozenset(_FLAT) | {"structured_outputs"}
