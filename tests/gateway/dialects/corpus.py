"""The corpus of bodies: what clients of every API send, and what it means.

`API/request.jsonl` has a case on each line: the promise that it shows, the reader, the body, and
what comes of it. That is either `means`, where each field stands that isn't as it is by default, or
`fault`, the field that the refusal names. `python -m tests.gateway.dialects.corpus` writes down
anew what all bodies mean; what it changes is to be read as any other change of the code.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from gateway.dialects import anthropic, cohere, kobold, ollama, openai, responses, tgi
from gateway.dialects.llamaserver.request import read_completion, read_infill
from gateway.dialects.tabby import read_load
from gateway.terms.errors import InvalidRequest
from gateway.terms.request import Unapplied

HERE = Path(__file__).parent
# What needs no name: it stands where nothing else can.
PLAIN = {
    "GenerationParams",
    "Message",
    "RequestedSampling",
    "Sampling",
    "Thinking",
    "Tool",
    "ToolCall",
}
READERS: Mapping[str, Mapping[str, Callable[[bytes], Any]]] = {
    "anthropic": {"messages": anthropic.read_messages},
    "cohere": {"chat": cohere.read_chat, "embed": cohere.read_embed},
    "kobold": {
        "generate": partial(kobold.read_generate, stream=False),
        "stream": partial(kobold.read_generate, stream=True),
    },
    "llamaserver": {"completion": read_completion, "infill": read_infill},
    "ollama": {"chat": ollama.read_chat, "generate": ollama.read_generate},
    "openai": {"chat": openai.read_chat, "text": openai.read_text},
    "responses": {"response": lambda body: responses.read_response(body).after()},
    "tabby": {"load": read_load},
    "tgi": {
        "generate": partial(tgi.read_generate, stream=None),
        "stream": partial(tgi.read_generate, stream=True),
        "whole": partial(tgi.read_generate, stream=False),
    },
}


class Case(msgspec.Struct, frozen=True, omit_defaults=True):
    """A body, and what comes of it."""

    promise: str
    reader: str
    body: Any
    means: Any = None
    fault: str | None = None
    says: str = ""  # a word of the refusal


def path_of(api: str) -> Path:
    """Where the cases of an API are."""
    return HERE / api / "request.jsonl"


def load(api: str) -> list[Case]:
    """The cases of an API."""
    lines = path_of(api).read_text(encoding="utf-8").splitlines()
    return [msgspec.json.decode(line, type=Case) for line in lines]


def outcome(api: str, case: Case) -> Case:
    """The case, with what comes of its body now."""
    read = READERS[api][case.reader]
    try:
        exchange = read(msgspec.json.encode(case.body))
    except InvalidRequest as error:
        refusal = error
    else:
        return msgspec.structs.replace(case, means=plain(exchange), fault=None)
    assert refusal.param is None or refusal.message.startswith(f"{refusal.param}: ")
    assert case.says in refusal.message
    return msgspec.structs.replace(case, means=None, fault=refusal.param or "")


def plain(value: Any) -> Any:
    """As JSON: of structs only what isn't as it is by default, and what they are."""
    match value:
        case (Unapplied(), *_):
            return sorted(field.name for field in value)
        case float() if math.isinf(value):
            return str(value)
        case msgspec.Struct():
            fields = {
                field.name: plain(getattr(value, field.name))
                for field in msgspec.structs.fields(value)
                if field.name not in ("toolbox", "whole")  # what `opened` and `request` come from
                and getattr(value, field.name) != _default(field)
            }
            kind = type(value).__name__
            return fields if kind in PLAIN else {"is": kind, **fields}
        case bytes():
            return value.decode()
        case Mapping():
            return {key: plain(value[key]) for key in sorted(value)}
        case set() | frozenset():
            return sorted(map(plain, value), key=str)
        case list() | tuple():
            return [plain(item) for item in value]
        case _:
            return value


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def write(api: str, cases: list[Case]) -> None:
    """The file of an API."""
    lines = [msgspec.json.encode(outcome(api, case)) for case in cases]
    path_of(api).write_bytes(b"\n".join(lines) + b"\n")


if __name__ == "__main__":
    for name in READERS:
        write(name, load(name))
