"""What another server says that it has: its list of models."""

from typing import Any

import msgspec

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
    meta: _Meta | None = None
    capabilities: Any = None
    modalities: Any = None
    state: str | None = None


class _List(msgspec.Struct, frozen=True):
    data: list[Any]


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A model that another server has, as far as it tells."""

    id: str
    context_length: int | None = None
    capabilities: tuple[str, ...] | None = None
    roundhouse: bool = False
    state: str | None = None  # a Roundhouse's: "loaded", "loading", …


def read_offers(body: bytes) -> tuple[Offer, ...]:
    """The models of a list; entries that make no sense are passed over. Raises Unhealthy."""
    try:
        cards = msgspec.json.decode(body, type=_List).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise broken("no list of models") from None
    found = (offer for card in cards[:MOST_MODELS] if (offer := _offer(card)) is not None)
    return tuple({offer.id: offer for offer in found}.values())


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
        state=card.state if ours else None,
    )


def _length(card: _Card) -> int | None:
    meta = card.meta or _Meta()
    for length in (card.max_model_len, card.context_length, meta.n_ctx, meta.n_ctx_train):
        if length is not None and length > 0:
            return length
    return None


def _capabilities(card: _Card) -> tuple[str, ...] | None:
    known = card.capabilities
    if not isinstance(known, list):
        return None
    return tuple(word for word in ("tools", "reasoning", "vision") if word in known)
