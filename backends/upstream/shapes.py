"""Structured output requests in the fields of each kind of server. Pure.

Where a server has no field for a shape, nothing is sent, and the caller checks the answer.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from backends.shapes import (
    Choices,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    Shape,
    StructuralTags,
)
from config.upstreams import ServerKind

Spelled: TypeAlias = dict[str, Any]  # fields of a body

# What servers write into their lists as `owned_by`.
OWNERS: Mapping[str, ServerKind] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llama-server",
    "me": "llama-cpp-python",
    "koboldcpp": "koboldcpp",
    "tabbyAPI": "tabbyapi",
    "library": "ollama",
    "roundhouse": "roundhouse",
    "openai": "openai",
    "openai-internal": "openai",
    "system": "openai",
}


_IN_GBNF = {code: f"\\x{code:02x}" for code in range(32)} | {ord("\\"): r"\\", ord('"'): r"\""}
_IN_REGEX = {ord(one): f"\\{one}" for one in r"\.^$*+?()[]{}|"}


def spelled(shape: Shape, server: ServerKind | None, *, chat: bool = True) -> Spelled | None:
    """The fields that ask `server` for `shape`; None: it can't be asked for it. An unknown server
    (None) gets the client's own fields where it had some, else vLLM's.
    """
    return _SPELLINGS[server](shape, chat)


def gbnf_of(texts: tuple[str, ...]) -> str:
    """A grammar of llama.cpp's whose text is one of `texts`."""
    return "root ::= " + " | ".join(f'"{text.translate(_IN_GBNF)}"' for text in texts)


def regex_of(texts: tuple[str, ...]) -> str:
    """A regex that matches one of `texts`, in any engine's syntax."""
    return "(" + "|".join(text.translate(_IN_REGEX) for text in texts) + ")"


def is_gbnf(text: str) -> bool:
    """Lark has no such arrow."""
    return "::=" in text


# -------------------------------------------------------------------------------- what several have


def _openais(shape: Shape) -> Spelled | None:
    """`response_format`, for JSON alone."""
    match shape:
        case JsonObject():
            return {"response_format": {"type": "json_object"}}
        case JsonSchema(schema=schema, strict=strict):
            named = {"name": "answer", "schema": msgspec.Raw(schema), "strict": strict}
            return {"response_format": {"type": "json_schema", "json_schema": named}}
    return None


def _structured_outputs(shape: Shape) -> Spelled | None:
    """vLLM's, where the client has not used its older fields."""
    match shape:
        case StructuralTags(request=request):
            return {"response_format": msgspec.Raw(request)}
        case Regex(pattern=pattern, field=field):
            return _constraint(field, "regex", pattern)
        case Choices(texts=texts, field=field):
            return _constraint(field, "choice", list(texts))
        case Grammar(text=text, field=field):
            return _constraint(field, "grammar", text)
    return _openais(shape)


def _constraint(field: str, kind: str, value: Any) -> Spelled:
    own = field.partition(".")[0].partition("[")[0]
    return {own: value} if own.startswith("guided_") else {"structured_outputs": {kind: value}}


def _gbnf(shape: Shape) -> Spelled | None:
    """llama.cpp's grammar."""
    match shape:
        case Grammar(text=text) if is_gbnf(text):
            return {"grammar": text}
        case Choices(texts=texts):
            return {"grammar": gbnf_of(texts)}
    return None


# ----------------------------------------------------------------------------------------- servers


def _openai(shape: Shape, _chat: bool) -> Spelled | None:  # noqa: FBT001 - one of a table
    return _openais(shape)


def _vllm(shape: Shape, _chat: bool) -> Spelled | None:  # noqa: FBT001 - one of a table
    return _structured_outputs(shape)


def _unknown(shape: Shape, _chat: bool) -> Spelled | None:  # noqa: FBT001 - one of a table
    if isinstance(shape, Grammar) and shape.field == "grammar":
        return {"grammar": shape.text}
    return _structured_outputs(shape)


def _sglang(shape: Shape, _chat: bool) -> Spelled | None:  # noqa: FBT001 - one of a table
    match shape:
        case Regex(pattern=pattern):
            return {"regex": pattern}
        case Choices(texts=texts):
            return {"regex": regex_of(texts)}
        case Grammar(text=text):
            return {"ebnf": text} if is_gbnf(text) else None
        case StructuralTags(request=request):
            return {"response_format": msgspec.Raw(request)}
    return _openais(shape)


def _llama_server(shape: Shape, chat: bool) -> Spelled | None:  # noqa: FBT001 - one of a table
    match shape:
        case JsonSchema(schema=schema) if not chat:
            return {"json_schema": msgspec.Raw(schema)}
        case JsonObject() if not chat:
            return {"json_schema": {"type": "object"}}
    return _openais(shape) or _gbnf(shape)


def _llama_cpp_python(shape: Shape, chat: bool) -> Spelled | None:  # noqa: FBT001 - one of a table
    """Its `response_format` knows one type, and texts have none."""
    match shape:
        case JsonObject() if chat:
            return {"response_format": {"type": "json_object"}}
        case JsonSchema(schema=schema) if chat:
            return {"response_format": {"type": "json_object", "schema": msgspec.Raw(schema)}}
    return _gbnf(shape)


def _tgi(shape: Shape, _chat: bool) -> Spelled | None:  # noqa: FBT001 - one of a table
    match shape:
        case JsonObject():
            return {"response_format": {"type": "json", "value": {"type": "object"}}}
        case JsonSchema(schema=schema):
            return {"response_format": {"type": "json", "value": msgspec.Raw(schema)}}
        case Regex(pattern=pattern):
            return {"response_format": {"type": "regex", "value": pattern}}
        case Choices(texts=texts):
            return {"response_format": {"type": "regex", "value": regex_of(texts)}}
    return None


def _tabbyapi(shape: Shape, _chat: bool) -> Spelled | None:  # noqa: FBT001 - one of a table
    match shape:
        case JsonObject():
            return {"json_schema": {"type": "object"}}
        case JsonSchema(schema=schema):
            return {"json_schema": msgspec.Raw(schema)}
        case Regex(pattern=pattern):
            return {"regex_pattern": pattern}
        case Choices(texts=texts):
            return {"regex_pattern": regex_of(texts)}
        case Grammar(text=text):
            return None if is_gbnf(text) else {"grammar_string": text}
    return None


_SPELLINGS: Mapping[ServerKind | None, Callable[[Shape, bool], Spelled | None]] = {
    None: _unknown,
    "koboldcpp": _llama_server,
    "llama-cpp-python": _llama_cpp_python,
    "llama-server": _llama_server,
    "ollama": _openai,
    "openai": _openai,
    "roundhouse": _vllm,
    "sglang": _sglang,
    "tabbyapi": _tabbyapi,
    "tgi": _tgi,
    "vllm": _vllm,
}
