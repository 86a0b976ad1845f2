"""Parses another server's list of models."""

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from backends.remote import RemoteOrigin, RemoteStanding, RemoteState
from backends.upstream.faults import broken

MOST_MODELS = 10_000
MAX_NAME = 256  # characters
ROUNDHOUSE = "roundhouse"  # what our own lists have as `owned_by`


class _Meta(msgspec.Struct, frozen=True):
    """llama-server's."""

    n_ctx: int | None = None
    n_ctx_train: int | None = None


class _Card(msgspec.Struct, frozen=True):
    """One model, with what several kinds of servers add."""

    id: str
    owned_by: str | None = None
    max_model_len: int | None = None  # vLLM, SGLang
    context_length: int | None = None  # OpenRouter, Roundhouse
    max_input_tokens: int | None = None  # Anthropic
    meta: _Meta | None = None
    capabilities: Any = None
    modalities: Any = None
    origin: Any = None  # `_Origin`, Roundhouse


Count = Annotated[int, Meta(ge=0, le=2**62)]


class _Status(msgspec.Struct, frozen=True):
    percent: Annotated[int, Meta(ge=0, le=100)] | None = None


class _Origin(msgspec.Struct, frozen=True):
    """Where a Roundhouse's model is: see `RemoteOrigin`."""

    server: Annotated[str, Meta(min_length=1, max_length=64)]
    model: Annotated[str, Meta(max_length=MAX_NAME)]
    hops: Annotated[int, Meta(ge=0)] = 0


class _Standing(msgspec.Struct, frozen=True):
    """What of a Roundhouse's card changes while it runs."""

    state: RemoteState
    status: _Status = _Status()
    why_failed: str | None = None
    memory: str | None = None
    missing_bytes: Count | None = None
    in_use: Count = 0
    waiting: Count = 0


class _List(msgspec.Struct, frozen=True):
    data: list[Any]


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A model that another server has, as far as its list describes it."""

    id: str
    context_length: int | None = None
    capabilities: tuple[str, ...] | None = None
    roundhouse: bool = False
    owner: str = ""  # `owned_by`, which identifies some kinds of servers
    origin: RemoteOrigin | None = None  # of a Roundhouse's


class ServerModels(msgspec.Struct, frozen=True):
    """One server's list. `standings`: a Roundhouse's, by its own names; None: it is none."""

    offers: tuple[Offer, ...]
    standings: dict[str, RemoteStanding] | None


def read_list(body: bytes) -> ServerModels:
    """The models of a list; invalid entries are passed over. Raises Unhealthy."""
    try:
        cards = msgspec.json.decode(body, type=_List).data[:MOST_MODELS]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise broken("no list of models") from None
    found = {offer.id: (offer, card) for card in cards if (offer := _offer(card)) is not None}
    ours = {name: card for name, (offer, card) in found.items() if offer.roundhouse}
    standings = dict(_standings(ours)) if ours else None
    return ServerModels(tuple(offer for offer, _ in found.values()), standings)


def _standings(cards: dict[str, Any]) -> Iterator[tuple[str, RemoteStanding]]:
    for name, card in cards.items():
        try:
            standing = msgspec.convert(card, _Standing)
        except msgspec.ValidationError:
            continue
        yield (
            name,
            RemoteStanding(
                state=standing.state,
                percent=standing.status.percent,
                why_failed=standing.why_failed,
                memory=standing.memory or "",
                missing=standing.missing_bytes or 0,
                in_use=standing.in_use,
                waiting=standing.waiting,
            ),
        )


def _offer(data: Any) -> Offer | None:
    try:
        card = msgspec.convert(data, _Card)
    except msgspec.ValidationError:
        return None
    if not 0 < len(card.id) <= MAX_NAME or not card.id.isprintable():
        return None
    ours = card.owned_by == ROUNDHOUSE
    return Offer(
        id=card.id,
        context_length=_length(card),
        capabilities=_capabilities(card) if ours else None,
        roundhouse=ours,
        owner=(card.owned_by or "")[:MAX_NAME],
        origin=_origin(card) if ours else None,
    )


def _origin(card: _Card) -> RemoteOrigin | None:
    """As far from here as the other server is, and one more. None: an older one doesn't say it."""
    try:
        wire = msgspec.convert(card.origin, _Origin)
    except msgspec.ValidationError:
        return None
    return RemoteOrigin(wire.server, wire.model, wire.hops + 1)


def _length(card: _Card) -> int | None:
    meta = card.meta or _Meta()
    for length in (
        card.max_model_len,
        card.context_length,
        card.max_input_tokens,
        meta.n_ctx,
        meta.n_ctx_train,
    ):
        if length is not None and length > 0:
            return length
    return None


def _capabilities(card: _Card) -> tuple[str, ...] | None:
    known = card.capabilities
    if not isinstance(known, list):
        return None
    return tuple(word for word in ("tools", "reasoning", "vision") if word in known)
