"""TabbyAPI's routes for embedding models: listing them, loading one, unloading it."""

from typing import Any

from litestar import Request, get, post
from litestar.types import ASGIApp

from gateway.dialects import openai
from gateway.dialects.tabby import reply
from gateway.dialects.tabby import request as wants
from gateway.errors import ModelUnavailable
from gateway.http.cards import card
from gateway.http.exchange import ignoring
from gateway.http.plain import Plain
from gateway.http.request_log import audit
from gateway.http.services import Services
from gateway.http.sse import WholeErrand
from gateway.registry import require_task

AnyRequest = Request[Any, Any, Any]


@get("/v1/model/embedding/list")
async def embedding_list(request: AnyRequest, services: Services) -> ASGIApp:
    """The embedding models that the caller may use."""
    access = services.authenticator.admit(request.headers)
    statuses = [one for one in services.usable(access) if one.task == "embed"]
    known = await services.capabilities.of_all(statuses)
    cards = [card(one, known.get(one.id), services.facts(one)) for one in statuses]
    return Plain(openai.model_list(cards))


@get("/v1/model/embedding")
async def current_embedding(request: AnyRequest, services: Services) -> ASGIApp:
    """The loaded embedding model that is in use, or was last; else the first, whose `state` says
    that it isn't loaded; 503 where there is none.
    """
    access = services.authenticator.admit(request.headers)
    statuses = [one for one in services.usable(access) if one.task == "embed"]
    in_use = services.registry.in_use(access, "embed")
    status = next((one for one in statuses if in_use and one.id == in_use.name), None)
    status = status or next(iter(statuses), None)
    if status is None:
        raise ModelUnavailable("There is no embedding model for this key.")
    known = await services.capabilities.of(status)
    return Plain(openai.model_card(card(status, known, services.facts(status))))


@post("/v1/model/embedding/load")
async def embedding_load(request: AnyRequest, services: Services) -> ASGIApp:
    """Load an embedding model; the answer comes when it is there."""
    access = services.authenticator.admit(request.headers)
    access.require_admin()
    order = wants.read(await request.body(), wants.EmbeddingLoad)
    entry = await services.find(order.embedding_model_name, access)
    require_task(entry, "embed")
    audit(request, "load", model=entry.name)
    unread = () if order.embeddings_device in (None, "auto") else ("embeddings_device",)

    async def whole() -> bytes:
        await services.registry.load(entry.name)
        return reply.embedding_load_body()

    return WholeErrand(whole, ignoring(unread))


@post("/v1/model/embedding/unload")
async def embedding_unload(request: AnyRequest, services: Services) -> ASGIApp:
    """Unload all embedding models; running requests end first."""
    access = services.authenticator.admit(request.headers)
    access.require_admin()
    audit(request, "unload", task="embed")

    async def whole() -> bytes:
        for one in services.usable(access):
            if one.task == "embed" and one.state in ("loading", "loaded"):
                await services.registry.unload(one.id)
        return reply.NULL

    return WholeErrand(whole)


ROUTES = (embedding_list, current_embedding, embedding_load, embedding_unload)
