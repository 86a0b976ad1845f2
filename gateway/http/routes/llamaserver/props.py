"""What a frontend of llama-server must know of a model before it asks for anything."""

from typing import Any

from litestar import Request, get
from litestar.types import ASGIApp

from gateway.dialects.frames import body
from gateway.dialects.llamaserver import wire
from gateway.http.cards import card
from gateway.http.plain import Plain
from gateway.http.services import Services
from gateway.prompt import DEFAULT_TEMPLATE

AnyRequest = Request[Any, Any, Any]


@get("/props")
async def props(request: AnyRequest, services: Services, model: str = "") -> ASGIApp:
    """What a frontend must know of a model: the named one, the one in use, or the default."""
    access = services.doorman.admit(request.headers)
    if model in wire.NOBODY:
        one = await services.answering(access)
    else:
        one = services.status((await services.find(model, access)).name, access)
    known = await services.capabilities.of(one)
    shown = card(one, known, services.facts(one))
    entry, info = one.entry, one.info
    assert entry is not None, "a name that resolves has its files"
    found = wire.Props(
        total_slots=info.max_concurrent if info else entry.options.max_concurrent,
        chat_template=known.template if known else DEFAULT_TEMPLATE,
        default_generation_settings=wire.Settings(
            shown.context_length or entry.files.context_length
        ),
        modalities=wire.Modalities(vision="image" in shown.modalities),
        model_alias=one.id,
    )
    return Plain(body(found))


ROUTES = (props,)
