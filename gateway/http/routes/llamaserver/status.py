"""Loaded models and unloading: simple calls for people and scripts."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from litestar import Request, get, post
from litestar.types import ASGIApp
from msgspec import UNSET, UnsetType

from backends.catalog import CPU
from gateway.dialects.frames import body
from gateway.dialects.llamaserver import wire
from gateway.http.plain import Plain
from gateway.http.request_log import audit
from gateway.http.routes.tabby import unload_models
from gateway.http.services import Services
from gateway.http.sse import WholeErrand
from gateway.registry import ModelStatus, UnloadReport
from gateway.registry.memory import gibibytes

AnyRequest = Request[Any, Any, Any]


class ResidentWire(msgspec.Struct, frozen=True, kw_only=True):
    """A model in memory. Times are seconds; null: it is in use, or stays for good."""

    model: str
    state: str
    in_use: int
    waiting: int
    idle_seconds: float | None
    remaining_time_seconds: float | None


class FailedWire(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can't be used, or whose last load failed."""

    model: str
    reason: str | None


class LlamaStatusWire(msgspec.Struct, frozen=True, kw_only=True):
    """What is in memory: the model in use, and all of them; `failed`: what can't be, if any."""

    loaded_model: str | None
    remaining_time_seconds: float | None
    status: Literal["loaded", "loading", "unloaded"]
    models: Sequence[ResidentWire]
    failed: Sequence[FailedWire] | UnsetType = UNSET


class UnloadedWire(msgspec.Struct, frozen=True):
    """What an unload did."""

    message: str
    status: Literal["unloaded"] = "unloaded"


@get("/status")
async def status(request: AnyRequest, services: Services) -> ASGIApp:
    """What is in memory now."""
    access = services.authenticator.admit(request.headers)
    statuses = services.visible(access)
    there = [one for one in statuses if one.state in ("loading", "loaded", "draining")]
    failed = [one for one in statuses if one.state == "failed"]
    in_use = services.registry.in_use(access)
    first = next((one for one in there if in_use and one.id == in_use.name), None)
    state: Literal["loaded", "loading", "unloaded"] = "loading" if there else "unloaded"
    found = LlamaStatusWire(
        loaded_model=first.id if first else None,
        remaining_time_seconds=first.remaining_seconds if first else None,
        status="loaded" if first else state,
        models=[_resident(one) for one in there],
        failed=[FailedWire(model=one.id, reason=one.why_failed) for one in failed] or UNSET,
    )
    return Plain(body(found))


def _resident(one: ModelStatus) -> ResidentWire:
    return ResidentWire(
        model=one.id,
        state=one.state,
        in_use=one.in_use,
        waiting=one.waiting,
        idle_seconds=one.idle_seconds,
        remaining_time_seconds=one.remaining_seconds,
    )


@post("/unload")
async def unload(request: AnyRequest, services: Services) -> ASGIApp:
    """Unload the named model, or all."""
    access = services.authenticator.admit(request.headers)
    access.require_admin()
    order = wire.read(await request.body(), wire.MaybeNamedModel)
    audit(request, "unload", model=order.model)

    async def whole() -> bytes:
        reports = await unload_models(services, order.model, access, force=order.force)
        return body(UnloadedWire(_unloaded(reports)))

    return WholeErrand(whole)


def _unloaded(reports: Sequence[UnloadReport]) -> str:
    """`Model a, b unloaded in 0.2 s; 1.5 GiB of cpu are kept for other models. The process itself
    holds 0.4 GiB of cuda:0, CUDA's context with it.`
    """
    if not reports:
        return "No model was loaded."
    names, seconds = ", ".join(one.name for one in reports), sum(one.seconds for one in reports)
    last = reports[-1]
    cards = any(name != CPU for name in last.held)
    return (
        f"Model {names} unloaded in {seconds:.1f} s; {_sizes(last.promised)} are kept for other "
        f"models. The process itself holds {_sizes(last.held)}"
        f"{', CUDA’s context with it' if cards else ''}."
    )


def _sizes(memory: Mapping[str, int]) -> str:
    return ", ".join(f"{gibibytes(size)} of {name}" for name, size in memory.items())


class ForgottenWire(msgspec.Struct, frozen=True):
    """Whose measured memory was forgotten."""

    models: Sequence[str]


@post("/measurements/reset")
async def reset_measurements(request: AnyRequest, services: Services) -> ASGIApp:
    """Forget what the named model's loads seemed to take, or all models': the next load of each is
    planned by its estimate and measured anew.
    """
    services.authenticator.admit(request.headers).require_admin()
    order = wire.read(await request.body(), wire.MaybeNamedModel)
    audit(request, "forget measurements", model=order.model)
    return Plain(body(ForgottenWire(await services.registry.forget_measurements(order.model))))


ROUTES = (status, unload, reset_measurements)
