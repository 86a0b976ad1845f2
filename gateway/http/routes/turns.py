"""The conversations that were answered lately: what of each was found in the cache, and where its
prompts parted. A key sees its own, an administrator all of them.
"""

from collections.abc import Mapping

import msgspec
from litestar import get

from config.values import alike
from gateway.http.auth import AnyRequest
from gateway.http.routing import Routes
from gateway.http.services import Services

api = Routes()


class PartingWire(msgspec.Struct, frozen=True, kw_only=True):
    """The last time that a prompt didn't go on from the one before: it has `at` tokens in common
    with it, of `of`. `what`: tools, system, message, template.
    """

    at: int
    of: int
    what: str
    sentence: str


class TalkWire(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation. `began` and `last` are Unix time; `hit_rate`: the part of the tokens of all
    turns behind the first that was cached, null before the second; `partings`: how often, by what.
    """

    conversation: str | None
    model: str
    key: str | None
    turns: int
    began: float
    last: float
    prompt_tokens: int
    hit_rate: float | None
    parting: PartingWire | None
    partings: Mapping[str, int]


class TalksWire(msgspec.Struct, frozen=True, kw_only=True):
    """Conversations, the last answered first."""

    object: str = "list"
    data: list[TalkWire]


@api(get, "/v1/admin/conversations", access="user")
async def talks(request: AnyRequest, services: Services) -> TalksWire:
    """List the conversations that were answered lately, with their hit rates."""
    found = [
        alike(TalkWire, talk)(
            conversation=talk.name or None,
            key=services.authenticator.label(talk.owner),
            hit_rate=None if talk.hit_rate is None else round(talk.hit_rate, 4),
            parting=alike(PartingWire, talk.parting)() if talk.parting else None,
        )
        for talk in services.pipeline.turns
        if request.auth.oversees(talk.owner) and request.auth.allows(talk.model)
    ]
    return TalksWire(data=found)
