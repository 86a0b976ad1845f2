"""Reranking in the format of Jina and Cohere, on which llama-server, vLLM and others agree, and of
TEI, by its `texts` field; scores of pairs in vLLM's format (`/v1/score`).

Pure: bytes in, a request out (`read_rerank`, `read_score`); scores in, bytes out (`rerank_body`,
`score_body`). Documents are cut where they are too long, unless `truncate` is false: Jina and
Cohere do so too.
"""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from backends.contract.encoder import values
from gateway.dialects.dialect import Dialect, body
from gateway.dialects.encoding import (
    BilledInput,
    CohereVersion,
    EncodingWire,
    InputUsage,
    Limit,
    RerankExchange,
    ScoreExchange,
    limit,
    positive,
    read_encoding,
    usage_of,
)
from gateway.dialects.fields import Fields, read_fields
from gateway.terms.events import Encodings
from gateway.terms.request import RerankRequest, ScoreRequest

DIALECT = Dialect(name="Rerank", tag="Rerank")


class DocumentWire(msgspec.Struct, frozen=True):
    """A document as an object; its other fields are not read. As such it is repeated in results."""

    text: str


class RerankWire(EncodingWire, frozen=True, kw_only=True):
    """Documents to rank by relevance to the query. `texts`: TEI's name for them."""

    query: str
    documents: list[str | DocumentWire] | None = None
    texts: list[str] | None = None
    top_n: int | None = None
    top_k: int | None = None  # Voyage's name for it
    return_documents: bool = False
    return_text: bool = False
    truncate: bool = True
    truncation: bool = True  # Voyage's name for it
    truncate_prompt_tokens: Limit | None = None


class RankedWire(msgspec.Struct, frozen=True, kw_only=True):
    """One document's score; `index`: its place in the request."""

    index: int
    relevance_score: float
    document: DocumentWire | UnsetType = UNSET


class ScoreWire(msgspec.Struct, frozen=True, kw_only=True):
    """One document's score, in TEI's format."""

    index: int
    score: float
    text: str | UnsetType = UNSET


class RerankMeta(msgspec.Struct, frozen=True):
    """Cohere's metadata."""

    api_version: CohereVersion
    tokens: BilledInput


class RerankList(msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="list"):
    """The documents, the best first. `usage` is Jina's, `meta` Cohere's, and `data` Voyage's name
    for the results, sent to its clients.
    """

    id: str
    model: str
    results: Sequence[RankedWire]
    data: Sequence[RankedWire] | UnsetType = UNSET
    usage: InputUsage
    meta: RerankMeta


_SENT = ("truncate", "truncate_prompt_tokens")
VOYAGE = frozenset(("top_k", "truncation"))  # its client sends them always


def read_rerank(content: bytes, version: str = "1") -> RerankExchange:
    """`version`: Cohere's, of the path. Raises InvalidRequest, which names the field."""
    fields = read_fields(content)
    wire = fields.read(RerankWire)
    field, documents = _documents(fields, wire)
    top_n, top_k = (positive(fields, name, getattr(wire, name)) for name in ("top_n", "top_k"))
    return RerankExchange(
        request=read_encoding(RerankRequest, fields, wire, field, *_SENT)(
            query=wire.query,
            documents=documents,
            truncate=wire.truncate and wire.truncation,
            most_tokens=limit(wire.truncate_prompt_tokens),
        ),
        top_n=top_k if top_n is None else top_n,
        texts=wire.return_documents or wire.return_text,
        voyage=not VOYAGE.isdisjoint(fields.values),
        version=version,
    )


def _documents(fields: Fields, wire: RerankWire) -> tuple[str, tuple[str, ...]]:
    """What the client called them, and their texts."""
    field = "texts" if wire.documents is None and wire.texts is not None else "documents"
    given = wire.texts if field == "texts" else wire.documents
    if not given:
        raise fields.wrong(field, "At least one document is required.")
    return field, tuple(one if isinstance(one, str) else one.text for one in given)


def rerank_body(exchange: RerankExchange, encoded: Encodings, id: str) -> bytes:
    """The JSON body of scores, one for each document."""
    found = [values(score)[0] for score in encoded.vectors]
    best = sorted(range(len(found)), key=lambda at: (-found[at], at))[: exchange.top_n]
    documents = exchange.request.documents
    if exchange.request.field == "texts":  # TEI's form
        return body([_score(at, found[at], documents[at], exchange) for at in best])
    results = [_ranked(at, found[at], documents[at], exchange) for at in best]
    return body(
        RerankList(
            id=id,
            model=encoded.model,
            results=results,
            data=results if exchange.voyage else UNSET,
            usage=usage_of(encoded),
            meta=RerankMeta(CohereVersion(exchange.version), BilledInput(encoded.prompt_tokens)),
        )
    )


def _ranked(at: int, score: float, text: str, exchange: RerankExchange) -> RankedWire:
    document = DocumentWire(text) if exchange.texts else UNSET
    return RankedWire(index=at, relevance_score=score, document=document)


def _score(at: int, score: float, text: str, exchange: RerankExchange) -> ScoreWire:
    return ScoreWire(index=at, score=score, text=text if exchange.texts else UNSET)


Texts: TypeAlias = str | list[str]


class ScoreBody(EncodingWire, frozen=True, kw_only=True):
    """Texts to compare: one to each of several, or as many of both. `queries` and `documents` are
    vLLM's newer names for its `text_1` and `text_2`.
    """

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    truncate_prompt_tokens: Limit | None = None


class PairScore(msgspec.Struct, frozen=True, tag_field="object", tag="score"):
    """The score of one pair."""

    index: int
    score: float


class ScoreUsage(InputUsage, frozen=True):
    """The usage."""

    completion_tokens: int = 0


class ScoreList(msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="list"):
    """The scores of all pairs, in their order. `created` is Unix time."""

    id: str
    created: int
    model: str
    data: Sequence[PairScore]
    usage: ScoreUsage


def read_score(content: bytes) -> ScoreExchange:
    """What a body of `/v1/score` means. Raises InvalidRequest, which names the field."""
    fields = read_fields(content)
    wire = fields.read(ScoreBody)
    first = _texts(fields, ("text_1", wire.text_1), ("queries", wire.queries))
    second = _texts(fields, ("text_2", wire.text_2), ("documents", wire.documents))
    field = "text_2" if wire.documents is None else "documents"
    if len(first) == 1:
        first *= len(second)
    if len(first) != len(second):
        message = f"Expected as many texts as those they are compared with: {len(first)}."
        raise fields.wrong(field, message)
    return ScoreExchange(
        request=read_encoding(ScoreRequest, fields, wire, field, "truncate_prompt_tokens")(
            pairs=tuple(zip(first, second, strict=True)),
            truncate=wire.truncate_prompt_tokens is not None,
            most_tokens=limit(wire.truncate_prompt_tokens),
        ),
    )


def _texts(fields: Fields, *named: tuple[str, Texts | None]) -> tuple[str, ...]:
    """Those of the first name that has any."""
    name, given = next((one for one in named if one[1] is not None), named[0])
    if not given:
        raise fields.wrong(name, "At least one text is required.")
    return (given,) if isinstance(given, str) else tuple(given)


def score_body(encoded: Encodings, id: str, created: int) -> bytes:
    """The JSON body of scores, one for each pair."""
    data = [PairScore(at, values(score)[0]) for at, score in enumerate(encoded.vectors)]
    usage = ScoreUsage(encoded.prompt_tokens, encoded.prompt_tokens)
    return body(ScoreList(id=id, created=created, model=encoded.model, data=data, usage=usage))
