"""Parses bodies of `/v1/rerank` and `/v2/rerank`, and makes the bodies of their results. Knows no
model.

Documents are cut where they are too long, unless `truncate` is false: Jina and Cohere do so too.
"""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from backends.encoding import values
from gateway.dialects.encoding import Limit, RerankExchange, further, limit, positive
from gateway.dialects.fields import Fields, read_fields
from gateway.dialects.frames import body
from gateway.request import RerankRequest


class DocumentWire(msgspec.Struct, frozen=True):
    """A document as an object; its other fields are not read."""

    text: str


class RerankWire(msgspec.Struct, frozen=True, kw_only=True):
    """Documents to be ranked by how well they answer the query. `texts`: TEI's name for them."""

    query: str
    documents: list[str | DocumentWire] | None = None
    texts: list[str] | None = None
    model: str = ""
    top_n: int | None = None
    top_k: int | None = None  # Voyage's name for it
    return_documents: bool = False
    return_text: bool = False
    truncate: bool = True
    truncation: bool = True  # Voyage's name for it
    truncate_prompt_tokens: Limit | None = None


class RankedDocument(msgspec.Struct, frozen=True):
    """A document, repeated in the result."""

    text: str


class RankedWire(msgspec.Struct, frozen=True, kw_only=True):
    """One document's score; `index`: its place in the request."""

    index: int
    relevance_score: float
    document: RankedDocument | UnsetType = UNSET


class ScoreWire(msgspec.Struct, frozen=True, kw_only=True):
    """The same in TEI's form."""

    index: int
    score: float
    text: str | UnsetType = UNSET


class RerankUsage(msgspec.Struct, frozen=True):
    """What it cost."""

    prompt_tokens: int
    total_tokens: int


class ApiVersion(msgspec.Struct, frozen=True):
    """Which of Cohere's versions was asked."""

    version: str


class BilledTokens(msgspec.Struct, frozen=True):
    """Cohere's count."""

    input_tokens: int


class RerankMeta(msgspec.Struct, frozen=True):
    """Cohere's metadata."""

    api_version: ApiVersion
    tokens: BilledTokens


class RerankList(msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="list"):
    """The documents, the best first. `usage` is Jina's, `meta` Cohere's, and `data` Voyage's name
    for the results, sent to its clients.
    """

    id: str
    model: str
    results: Sequence[RankedWire]
    data: Sequence[RankedWire] | UnsetType = UNSET
    usage: RerankUsage
    meta: RerankMeta


VOYAGE = frozenset(("top_k", "truncation"))  # its client sends them always
_RERANK_FIELDS = frozenset(RerankWire.__struct_fields__)
_EXTRA = ("truncate", "truncate_prompt_tokens")


def read_rerank(content: bytes, version: str = "1") -> RerankExchange:
    """`version`: Cohere's, of the path. Raises InvalidRequest, which names the field."""
    fields = read_fields(content)
    wire = fields.read(RerankWire)
    field, documents = _documents(fields, wire)
    top_n, top_k = (positive(fields, name, getattr(wire, name)) for name in ("top_n", "top_k"))
    return RerankExchange(
        request=RerankRequest(
            model=wire.model,
            field=field,
            query=wire.query,
            documents=documents,
            truncate=wire.truncate and wire.truncation,
            most_tokens=limit(wire.truncate_prompt_tokens),
            further=further(fields, _RERANK_FIELDS, *_EXTRA),
        ),
        top_n=top_k if top_n is None else top_n,
        texts=wire.return_documents or wire.return_text,
        bare=field == "texts",
        voyage=not VOYAGE.isdisjoint(fields.values),
        version=version,
        ignored=fields.beyond(_RERANK_FIELDS),
    )


def _documents(fields: Fields, wire: RerankWire) -> tuple[str, tuple[str, ...]]:
    """What the client called them, and their texts."""
    field = "texts" if wire.documents is None and wire.texts is not None else "documents"
    given = wire.texts if field == "texts" else wire.documents
    if not given:
        raise fields.wrong(field, "At least one document is required.")
    return field, tuple(one if isinstance(one, str) else one.text for one in given)


def rerank_body(
    exchange: RerankExchange, *, id: str, model: str, scores: Sequence[bytes], tokens: int
) -> bytes:
    """The JSON body of `scores`, one for each document, which cost `tokens`."""
    found = [values(score)[0] for score in scores]
    best = sorted(range(len(found)), key=lambda at: (-found[at], at))[: exchange.top_n]
    documents = exchange.request.documents
    if exchange.bare:
        return body([_score(at, found[at], documents[at], exchange) for at in best])
    results = [_ranked(at, found[at], documents[at], exchange) for at in best]
    return body(
        RerankList(
            id=id,
            model=model,
            results=results,
            data=results if exchange.voyage else UNSET,
            usage=RerankUsage(tokens, tokens),
            meta=RerankMeta(ApiVersion(exchange.version), BilledTokens(tokens)),
        )
    )


def _ranked(at: int, score: float, text: str, exchange: RerankExchange) -> RankedWire:
    document = RankedDocument(text) if exchange.texts else UNSET
    return RankedWire(index=at, relevance_score=score, document=document)


def _score(at: int, score: float, text: str, exchange: RerankExchange) -> ScoreWire:
    return ScoreWire(index=at, score=score, text=text if exchange.texts else UNSET)
