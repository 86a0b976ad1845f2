"""Shared by the embedding and reranking APIs: texts and token ids as clients send them, and the
encoding of vectors.
"""

from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from backends.contract.encoder import values
from gateway.dialects.fields import Fields
from gateway.terms.events import Encodings
from gateway.terms.request import (
    EmbeddingRequest,
    EncodingParams,
    Purpose,
    RerankRequest,
    ScoreRequest,
    Unapplied,
)

Asked = TypeVar("Asked", bound=EncodingParams)

Token: TypeAlias = Annotated[int, Meta(ge=0)]
Input: TypeAlias = str | list[str | Token | list[Token]]
Text: TypeAlias = str | tuple[int, ...]
Limit: TypeAlias = Annotated[int, Meta(ge=-1)]  # -1: as many as the model reads

# Cohere's, Jina's and NVIDIA's words for what a text is for, and ours.
PURPOSES: dict[str, Purpose] = {
    "query": "query",
    "search_query": "query",
    "retrieval.query": "query",
    "document": "document",
    "passage": "document",
    "search_document": "document",
    "retrieval.passage": "document",
}


class InputUsage(msgspec.Struct, frozen=True):
    """The usage of a request for which nothing is generated."""

    prompt_tokens: int
    total_tokens: int


class CohereVersion(msgspec.Struct, frozen=True):
    """The version of Cohere's API."""

    version: str


class BilledInput(msgspec.Struct, frozen=True):
    """Tokens, by Cohere's count."""

    input_tokens: int


class EmbeddingExchange(msgspec.Struct, frozen=True, kw_only=True):
    """A request, and how its vectors are to be written."""

    request: EmbeddingRequest
    base64: bool = False


class RerankExchange(msgspec.Struct, frozen=True, kw_only=True):
    """A request, and the form of its scores. `voyage`: by Voyage's name, too."""

    request: RerankRequest
    top_n: int | None = None
    texts: bool = False  # with the documents
    voyage: bool = False
    version: str = "1"


class ScoreExchange(msgspec.Struct, frozen=True, kw_only=True):
    """A request for the scores of pairs."""

    request: ScoreRequest


class EncodingWire(msgspec.Struct, frozen=True, kw_only=True):
    """The field that all of their bodies have."""

    model: str = ""


def read_encoding(
    kind: type[Asked],
    fields: Fields,
    wire: EncodingWire,
    field: str,
    *sent: str,
    unapplied: Sequence[Unapplied] = (),
) -> Callable[..., Asked]:
    """A request for vectors or scores of what the client calls `field`, as far as it is read alike;
    a call gives the rest, as with `alike`. `sent`: what is read here, and handed on all the same;
    `unapplied`: what has no meaning here although it is read.
    """
    return partial(
        kind,
        model=wire.model,
        field=field,
        further=fields.further(type(wire), sent=sent),
        unapplied=(*fields.unapplied(type(wire)), *unapplied),
    )


def read_texts(fields: Fields, field: str, wire: Input, called: str = "text") -> tuple[Text, ...]:
    """One text, several texts, one list of token ids, or several. Raises InvalidRequest."""
    if isinstance(wire, str):
        return (wire,)
    if not wire:
        raise fields.wrong(field, f"At least one {called} is required.")
    tokens = tuple(item for item in wire if isinstance(item, int))
    if len(tokens) == len(wire):
        return (tokens,)
    return tuple(_text(fields, f"{field}[{k}]", item, called) for k, item in enumerate(wire))


def _text(fields: Fields, path: str, item: str | int | list[int], called: str) -> Text:
    match item:
        case str(text):
            return text
        case int():
            raise fields.wrong(path, f"A token id can't stand among whole {called}s.")
        case []:
            raise fields.wrong(path, f"A {called} of token ids has at least one.")
        case tokens:
            return tuple(tokens)


def read_purpose(fields: Fields, given: str | None) -> Purpose | None:
    """What the texts are for. Raises InvalidRequest."""
    return None if given is None else fields.meant("input_type", given.lower(), PURPOSES)


def limit(number: int | None) -> int | None:
    """Tokens of one text, of vLLM's `truncate_prompt_tokens` and its like; None: no number."""
    return number if number is not None and number > 0 else None


def usage_of(encoded: Encodings) -> InputUsage:
    """What it cost."""
    return InputUsage(encoded.prompt_tokens, encoded.prompt_tokens)


def written(vector: bytes, *, base64: bool) -> list[float] | str:
    """A vector in a body: its numbers, or the base64 of them as float32, the lowest byte first."""
    return b64encode(vector).decode() if base64 else values(vector)


def positive(fields: Fields, name: str, value: int | None) -> int | None:
    """Raises InvalidRequest below 1."""
    if value is not None and value < 1:
        raise fields.wrong(name, "Expected at least 1.")
    return value
