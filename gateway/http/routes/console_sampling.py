"""What a model's engine does with each sampling parameter, so that a form can grey out the rest."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from litestar import Request, get
from litestar.types import ASGIApp

from backends.bound_kinds import Number
from backends.bounds import SAMPLING
from backends.protocol import SAMPLERS, Sampling
from gateway.answers.parameters import lacking
from gateway.dialects.frames import body
from gateway.http.plain import Plain
from gateway.http.services import Services
from gateway.registry import ModelStatus

AnyRequest = Request[Any, Any, Any]


class ParameterWire(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter by our name. `applied` None: known when the model is loaded."""

    name: str
    applied: bool | None
    why: str | None  # it isn't
    default: Any  # of a request that says nothing
    minimum: float | None
    maximum: float | None


class SamplingWire(msgspec.Struct, frozen=True, kw_only=True):
    """What a request to a model may ask for."""

    model: str
    backend: str
    known: bool  # whether the model is loaded, which knows best
    parameters: Sequence[ParameterWire]
    logprobs: bool | None
    schemas: bool | None
    images: bool
    tools: bool | None
    reasoning: bool | None


@get("/v1/admin/sampling")
async def sampling(request: AnyRequest, services: Services, model: str = "") -> ASGIApp:
    """Which sampling parameters a model's engine applies, and why it doesn't the others."""
    access = services.doorman.admit(request.headers)
    status = services.status((await services.find(model, access)).name, access)
    known = await services.capabilities.of(status)
    can = known.capabilities if known else None
    assert status.entry is not None, "a name that resolves has its files"
    found = SamplingWire(
        model=status.id,
        backend=status.entry.files.backend,
        known=status.info is not None,
        parameters=_parameters(status),
        logprobs=True if status.info is not None else None,
        schemas=status.info.constrains if status.info is not None else None,
        images="image" in status.modalities,
        tools=None if can is None else "tools" in can,
        reasoning=None if can is None else "reasoning" in can,
    )
    return Plain(body(found))


def _parameters(status: ModelStatus) -> list[ParameterWire]:
    info, defaults = status.info, _defaults(status)
    missing: Mapping[str, str] = lacking(info, SAMPLERS) if info is not None else {}
    return [
        ParameterWire(
            name=name,
            applied=None if info is None else name not in missing,
            why=missing.get(name),
            default=getattr(defaults, name),
            minimum=bound.low if isinstance(bound := SAMPLING[name], Number) else None,
            maximum=bound.high if isinstance(bound, Number) else None,
        )
        for name in SAMPLERS
    ]


def _defaults(status: ModelStatus) -> Sampling:
    """As a request is completed: what is said nearer to it wins."""
    entry, info = status.entry, status.info
    assert entry is not None, "a name that resolves has its files"
    own = info.generation_defaults if info is not None else entry.files.generation_defaults
    return entry.sampling.over(own or Sampling())


ROUTES = (sampling,)
