"""`/v1/embeddings`: texts or token ids in, vectors out. Knows no model.

OpenAI's Python client requests base64 by default, and accepts either form. `truncate`,
`prompt_name` and `input_type` are other servers' fields (TEI, NVIDIA), `truncate_prompt_tokens` is
vLLM's. Who asks for numbers of another kind would read other vectors out of ours, so that is a 400.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from gateway.dialects.dialect import body
from gateway.dialects.encoding import (
    EmbeddingExchange,
    EncodingWire,
    Input,
    InputUsage,
    Limit,
    limit,
    positive,
    read_encoding,
    read_purpose,
    read_texts,
    usage_of,
    written,
)
from gateway.dialects.fields import read_fields
from gateway.terms.events import Encodings
from gateway.terms.request import EmbeddingRequest


class EmbeddingsWire(EncodingWire, frozen=True, kw_only=True):
    """Texts or token ids to embed."""

    input: Input
    encoding_format: Literal["float", "base64"] = "float"
    embedding_type: Literal["float", "base64"] | None = None  # Jina's
    output_dtype: Literal["float"] | None = None  # Voyage's
    embed_dtype: Literal["float32"] | None = None  # vLLM's
    endianness: Literal["little", "native"] | None = None  # vLLM's
    embd_normalize: Literal[2] | None = None  # llama-server's
    dimensions: int | None = None
    output_dimension: int | None = None  # Voyage's
    truncate: bool | None = None  # what is too long is cut; else it is refused
    truncate_prompt_tokens: Limit | None = None
    prompt_name: str | None = None
    input_type: str | None = None


class EmbeddingWire(msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="embedding"):
    """One embedding: its numbers, or the base64 of its float32 values, little-endian."""

    index: int
    embedding: list[float] | str


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="list"):
    """The embeddings of all texts, in their order."""

    data: Sequence[EmbeddingWire]
    model: str
    usage: InputUsage


class PooledWire(msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="pooling"):
    """One embedding, in the format of vLLM's `/pooling`."""

    index: int
    data: list[float] | str


class PooledList(msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="list"):
    """The embeddings of all texts, in vLLM's format. `created` is Unix time."""

    id: str
    created: int
    model: str
    data: Sequence[PooledWire]
    usage: InputUsage


_SENT = ("truncate", "truncate_prompt_tokens", "prompt_name", "input_type")


def read_embeddings(content: bytes) -> EmbeddingExchange:
    """What a body of `/v1/embeddings` means. Raises InvalidRequest, which names the field."""
    fields = read_fields(content)
    wire = fields.read(EmbeddingsWire)
    truncate = wire.truncate_prompt_tokens is not None if wire.truncate is None else wire.truncate
    size = "output_dimension" if wire.dimensions is None else "dimensions"
    return EmbeddingExchange(
        request=read_encoding(EmbeddingRequest, fields, wire, "input", *_SENT)(
            inputs=read_texts(fields, "input", wire.input),
            dimensions=positive(fields, size, getattr(wire, size)),
            truncate=truncate,
            most_tokens=limit(wire.truncate_prompt_tokens),
            prompt=wire.prompt_name,
            purpose=read_purpose(fields, wire.input_type),
        ),
        base64="base64" in (wire.encoding_format, wire.embedding_type),
    )


def embeddings_body(exchange: EmbeddingExchange, encoded: Encodings) -> bytes:
    """The JSON body of vectors."""
    data = [
        EmbeddingWire(index=at, embedding=written(vector, base64=exchange.base64))
        for at, vector in enumerate(encoded.vectors)
    ]
    return body(EmbeddingList(data=data, model=encoded.model, usage=usage_of(encoded)))


def pooled_body(exchange: EmbeddingExchange, encoded: Encodings, id: str, created: int) -> bytes:
    """As `embeddings_body`, in vLLM's form of `/pooling`."""
    data = [
        PooledWire(index=at, data=written(vector, base64=exchange.base64))
        for at, vector in enumerate(encoded.vectors)
    ]
    model, usage = encoded.model, usage_of(encoded)
    return body(PooledList(id=id, created=created, model=model, data=data, usage=usage))
