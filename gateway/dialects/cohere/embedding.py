"""Cohere's `/v2/embed`, and the tokens of its first version. Knows no model.

Texts that are too long are cut, unless `truncate` is NONE.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.dialects.encoding import PURPOSES, further, positive, written
from gateway.dialects.fields import Fields, read_fields
from gateway.dialects.frames import body
from gateway.request import EmbeddingRequest, all_unapplied

TYPES = ("float", "base64")


class TextContent(msgspec.Struct, frozen=True, kw_only=True):
    """A part of what is embedded as one."""

    type: str
    text: str = ""


class EmbedInput(msgspec.Struct, frozen=True):
    """What is embedded as one."""

    content: list[TextContent]


class EmbedWire(msgspec.Struct, frozen=True, kw_only=True):
    """Texts whose vectors are wanted."""

    model: str = ""
    texts: list[str] | None = None
    inputs: list[EmbedInput] | None = None
    images: list[str] = []
    input_type: str | None = None
    embedding_types: list[str] = []  # none: float
    output_dimension: int | None = None
    max_tokens: int | None = None
    truncate: Literal["NONE", "START", "END"] = "END"


class TypedVectors(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors in each form that is wanted."""

    floats: Sequence[list[float] | str] | UnsetType = msgspec.field(default=UNSET, name="float")
    base64: Sequence[list[float] | str] | UnsetType = UNSET


class Version(msgspec.Struct, frozen=True):
    """Which of Cohere's versions was asked."""

    version: str


class BilledInput(msgspec.Struct, frozen=True):
    """Tokens."""

    input_tokens: int


class EmbedMeta(msgspec.Struct, frozen=True, kw_only=True):
    """What it cost."""

    api_version: Version
    billed_units: BilledInput


class Embedded(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors of all texts, in their order."""

    id: str
    embeddings: TypedVectors
    texts: Sequence[str]
    meta: EmbedMeta
    response_type: Literal["embeddings_by_type"] = "embeddings_by_type"


class TokenizeWire(msgspec.Struct, frozen=True, kw_only=True):
    """A text whose tokens are wanted."""

    text: str
    model: str = ""


class Tokenized(msgspec.Struct, frozen=True):
    """The tokens of a text, and the text of each."""

    tokens: Sequence[int]
    token_strings: Sequence[str]


class DetokenizeWire(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens whose text is wanted."""

    tokens: list[Annotated[int, Meta(ge=0)]]
    model: str = ""


class Detokenized(msgspec.Struct, frozen=True):
    """The text of tokens."""

    text: str


class CohereEmbedding(msgspec.Struct, frozen=True, kw_only=True):
    """A request, and the forms of its vectors."""

    request: EmbeddingRequest
    texts: tuple[str, ...]
    types: tuple[str, ...]


_FIELDS = frozenset(EmbedWire.__struct_fields__)


def read_embed(content: bytes) -> CohereEmbedding:
    """What a body of `/v2/embed` means. Raises InvalidRequest, which names the field."""
    fields = read_fields(content)
    wire = fields.read(EmbedWire)
    _refuse(fields, wire)
    texts = _texts(fields, wire)
    purpose = PURPOSES.get((wire.input_type or "").lower())
    other = all_unapplied("input_type") if wire.input_type and purpose is None else ()
    return CohereEmbedding(
        request=EmbeddingRequest(
            model=wire.model,
            field="inputs" if wire.texts is None else "texts",
            inputs=texts,
            dimensions=positive(fields, "output_dimension", wire.output_dimension),
            purpose=purpose,
            truncate=wire.truncate == "END",
            most_tokens=positive(fields, "max_tokens", wire.max_tokens),
            further=further(fields, _FIELDS),
            unapplied=(*fields.unapplied(_FIELDS), *other),
        ),
        texts=texts,
        types=tuple(wire.embedding_types) or TYPES[:1],
    )


def _refuse(fields: Fields, wire: EmbedWire) -> None:
    """What would change the vectors and isn't here."""
    if wire.images:
        raise fields.wrong("images", "Not available: no model embeds pictures.")
    if wire.truncate == "START":
        raise fields.wrong("truncate", "Texts are cut at their end alone: 'END' or 'NONE'.")
    for kind in wire.embedding_types:
        if kind not in TYPES:
            message = f"Expected 'float' or 'base64', got {kind!r:.64}."
            raise fields.wrong("embedding_types", message)


def _texts(fields: Fields, wire: EmbedWire) -> tuple[str, ...]:
    if wire.texts:
        return tuple(wire.texts)
    if not wire.inputs:
        raise fields.wrong("texts", "At least one text is required.")
    for k, given in enumerate(wire.inputs):
        if any(part.type != "text" for part in given.content):
            raise fields.wrong(f"inputs[{k}].content", "Texts alone are embedded.")
    return tuple("\n".join(part.text for part in given.content) for given in wire.inputs)


def embed_body(exchange: CohereEmbedding, id: str, vectors: Sequence[bytes], tokens: int) -> bytes:
    """The JSON body of `vectors`, which cost `tokens`."""
    forms = {
        kind: [written(vector, base64=kind == "base64") for vector in vectors]
        for kind in exchange.types
    }
    return body(
        Embedded(
            id=id,
            embeddings=TypedVectors(
                floats=forms.get("float", UNSET), base64=forms.get("base64", UNSET)
            ),
            texts=exchange.texts,
            meta=EmbedMeta(api_version=Version("2"), billed_units=BilledInput(tokens)),
        )
    )
