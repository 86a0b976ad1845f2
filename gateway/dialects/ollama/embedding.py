"""Ollama's embeddings: `/api/embed`, and `/api/embeddings` as it was before. Knows no model.

Texts that are too long are cut, unless `truncate` is false.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.dialects.encoding import EmbeddingExchange, further, positive, read_texts, written
from gateway.dialects.fields import read_fields
from gateway.dialects.frames import body
from gateway.dialects.ollama.request import Presence
from gateway.dialects.parameters import read_keep_alive
from gateway.request import EmbeddingRequest


class EmbedWire(msgspec.Struct, frozen=True, kw_only=True):
    """Texts whose vectors are wanted; without any the model is loaded, or unloaded."""

    model: str = ""
    input: str | list[str] = []
    truncate: bool = True
    dimensions: int | None = None
    keep_alive: float | str | None = None
    options: dict[str, Any] = {}


class OldEmbedWire(msgspec.Struct, frozen=True, kw_only=True):
    """One text; without it the model is loaded, or unloaded."""

    model: str = ""
    prompt: str = ""
    keep_alive: float | str | None = None
    options: dict[str, Any] = {}


class Embedded(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors of all texts, in their order. Durations are nanoseconds."""

    model: str
    embeddings: Sequence[list[float] | str]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OldEmbedded(msgspec.Struct, frozen=True):
    """One vector."""

    embedding: list[float] | str


_FIELDS = frozenset(EmbedWire.__struct_fields__)
_OLD_FIELDS = frozenset(OldEmbedWire.__struct_fields__)


def read_embed(content: bytes) -> EmbeddingExchange | Presence:
    """What a body of `/api/embed` means. Raises InvalidRequest, which names the field."""
    fields = read_fields(content)
    wire = fields.read(EmbedWire)
    keep_alive = read_keep_alive(fields, wire.keep_alive)
    if not wire.input:
        return Presence(model=wire.model, keep_alive=keep_alive)
    texts: str | list[Any] = wire.input
    return EmbeddingExchange(
        request=EmbeddingRequest(
            model=wire.model,
            field="input",
            inputs=read_texts(fields, "input", texts),
            dimensions=positive(fields, "dimensions", wire.dimensions),
            truncate=wire.truncate,
            keep_alive=keep_alive,
            further=further(fields, _FIELDS, "truncate"),
        ),
        ignored=(*fields.beyond(_FIELDS), *_options(wire.options)),
    )


def read_old_embed(content: bytes) -> EmbeddingExchange | Presence:
    """What a body of `/api/embeddings` means. Raises InvalidRequest, which names the field."""
    fields = read_fields(content)
    wire = fields.read(OldEmbedWire)
    keep_alive = read_keep_alive(fields, wire.keep_alive)
    if not wire.prompt:
        return Presence(model=wire.model, keep_alive=keep_alive)
    return EmbeddingExchange(
        request=EmbeddingRequest(
            model=wire.model,
            field="prompt",
            inputs=(wire.prompt,),
            truncate=True,
            keep_alive=keep_alive,
            further=further(fields, _OLD_FIELDS),
        ),
        ignored=(*fields.beyond(_OLD_FIELDS), *_options(wire.options)),
    )


def _options(options: dict[str, Any]) -> tuple[str, ...]:
    """None of them has a meaning where nothing is generated; the context has its size."""
    return tuple(f"options.{name}" for name in options if name != "num_ctx")[:64]


def embed_body(
    model: str, vectors: Sequence[bytes], tokens: int, *, seconds: float, load_seconds: float
) -> bytes:
    """The JSON body of `vectors`, which cost `tokens`."""
    return body(
        Embedded(
            model=model,
            embeddings=[written(vector, base64=False) for vector in vectors],
            total_duration=int(seconds * 1e9),
            load_duration=int(load_seconds * 1e9),
            prompt_eval_count=tokens,
        )
    )


def old_embed_body(vector: bytes) -> bytes:
    """The JSON body of one vector."""
    return body(OldEmbedded(written(vector, base64=False)))
