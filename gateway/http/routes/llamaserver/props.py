"""llama-server's `/props`: what a frontend needs to know of a model."""

from importlib.metadata import version
from typing import Any

from litestar import Request, get
from litestar.types import ASGIApp
from msgspec import UNSET

from backends.protocol import Generation, Sampling
from gateway.dialects.frames import body
from gateway.dialects.llamaserver import wire
from gateway.dialects.llamaserver.settings import settings
from gateway.http.cards import card
from gateway.http.plain import Plain
from gateway.http.services import Services
from gateway.prompt import DEFAULT_TEMPLATE
from gateway.registry import ModelEntry, ModelStatus
from gateway.request import GenerationParams

AnyRequest = Request[Any, Any, Any]

BUILD = f"roundhouse-{version('roundhouse')}"


@get("/props")
async def props(request: AnyRequest, services: Services, model: str = "") -> ASGIApp:
    """What a frontend must know of a model: the named one, the one in use, or the default."""
    access = services.authenticator.admit(request.headers)
    if model in wire.NO_MODEL:
        one = await services.answering(access)
    else:
        one = services.status((await services.find(model, access)).name, access)
    known = await services.capabilities.of(one)
    shown = card(one, known, services.facts(one))
    entry, info = one.entry, one.info
    assert entry is not None, "a name that resolves has its files"
    context = shown.context_length or entry.files.context_length
    params = settings(_by_default(services, one, entry), context_length=context)
    is_path = access.role == "admin" and entry.files.remote is None
    found = wire.Props(
        total_slots=info.max_concurrent if info else entry.options.max_concurrent,
        chat_template=known.template if known else DEFAULT_TEMPLATE,
        default_generation_settings=wire.Settings(context, params),
        modalities=wire.Modalities(vision="image" in shown.modalities),
        model_alias=one.id,
        build_info=BUILD,
        is_sleeping=info is None,
        model_path=str(entry.files.path) if is_path else UNSET,
        bos_token=info.special.bos if info else UNSET,
        eos_token=info.special.eos if info else UNSET,
    )
    return Plain(body(found))


def _by_default(services: Services, status: ModelStatus, entry: ModelEntry) -> Generation:
    """A job of a request that says nothing."""
    own = status.info.generation_defaults if status.info else entry.files.generation_defaults
    asked = services.presets.current.over(GenerationParams())
    sampling = asked.sampling.over(entry.sampling.over(own or Sampling()))
    return Generation(prompt=(), sampling=sampling, max_tokens=asked.max_tokens)


ROUTES = (props,)
