"""Models as llama-server's clients manage them: its `/props`, which say what a frontend needs to
know of a model; `transformers chat`, which loads before it asks; and simple calls for people and
scripts, which list what is loaded and unload it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from litestar import get, post
from litestar.types import ASGIApp
from msgspec import UNSET, UnsetType

from backends.contract.catalog import CPU
from backends.contract.protocol import Generation
from config.product import VERSION
from config.values import UNITS, alike, gibibytes
from gateway.dialects import openai
from gateway.dialects.dialect import frame
from gateway.dialects.llamaserver import request as wire
from gateway.dialects.llamaserver.request import MaybeNamedModel, NamedModel, Success, settings
from gateway.dialects.models import ModelList
from gateway.http.auth import AnyRequest
from gateway.http.openapi import NAMED
from gateway.http.request_log import audit
from gateway.http.routes.tabby import unload_models
from gateway.http.routing import Routes
from gateway.http.services import Services, card, context_length, status_wire
from gateway.http.sse import EventStream, attended
from gateway.prompt import DEFAULT_TEMPLATE
from gateway.registry import ModelStatus, UnloadReport, Waiting
from gateway.terms.errors import NotSupported
from gateway.terms.request import GenerationParams
from gateway.terms.tasks import relayed

api = Routes(wire.read)


@api(post, "/load_model", access="user", events=(wire.LlamaLoadEvent,), examples=NAMED)
async def load_model(request: AnyRequest, services: Services, order: NamedModel) -> ASGIApp:
    """Load a model and stream the progress. `transformers chat` calls this first."""
    name = (await services.registry.find(order.model, request.auth)).name
    audit(request, "load", model=name)

    async def send_events(events: EventStream) -> bytes:
        was_loaded = services.registry.status(name).state == "loaded"

        async def write(waiting: Waiting) -> None:
            if waiting.progress is None:
                events.wait(waiting)
            else:
                await events.write(wire.progress(name, waiting.progress))

        # A lease, given back at once: so a user's request has a user's place in line.
        async with (
            relayed(write) as report,
            services.registry.lease(name, on_wait=report, access=request.auth),
        ):
            pass
        return wire.ready(name, cached=was_loaded)

    return services.progress(request.auth, send_events, lambda error: wire.failed(name, error))


@api(get, "/models", access="user")
async def models(request: AnyRequest, services: Services) -> ModelList:
    """List all models, and in a second list those stored on this machine, including the hub's
    cache.
    """
    statuses = services.visible(request.auth)
    cards = await services.cards(statuses)
    cached = () if request.auth.models else await services.hub.cached()
    found = [
        openai.Stored(repo_id=one.repo_id, repo_type=one.repo_type, size_on_disk=one.size_on_disk)
        for one in cached
    ]
    return openai.stored_list(cards, found)


@api(get, "/models/sse", access="user", events=(wire.StateEvent,))
async def model_events(request: AnyRequest, services: Services) -> ASGIApp:
    """Stream the state of every model that the caller may use, then each change. A slow reader
    misses intermediate states, but never the last one.
    """

    async def send_events(events: EventStream) -> bytes:
        with services.registry.watchers.watching() as changes:
            sent: dict[str, wire.StateData] = {}
            await events.write(_changed(services.visible(request.auth), sent))
            while names := await changes.read():
                statuses = services.visible(request.auth, names)
                gone = names.difference(status.id for status in statuses)
                if frames := _changed(statuses, sent) + _removed(gone, sent):
                    await events.write(frames)
        return b""

    return services.progress(request.auth, send_events, openai.error_event)


def _changed(statuses: Sequence[ModelStatus], sent: dict[str, wire.StateData]) -> bytes:
    """Events of the states that aren't those that were `sent`."""
    frames = b""
    for status in statuses:
        state = status_wire(status)
        data = wire.StateData(
            status=state.value,
            progress=wire.load_stages(status.progress) if status.progress else UNSET,
            failed=state.failed or UNSET,
            reason=status.why_failed or UNSET,
        )
        if sent.get(status.id) != data:
            sent[status.id] = data
            frames += frame(wire.StateEvent(model=status.id, event="model_status", data=data))
    return frames


def _removed(names: frozenset[str], sent: dict[str, wire.StateData]) -> bytes:
    """Events of models that are gone, of those whose state was `sent`."""
    known = [name for name in sorted(names) if sent.pop(name, None) is not None]
    return b"".join(frame(wire.StateEvent(model=name, event="model_remove")) for name in known)


@api(post, "/models/load", access="admin", examples=NAMED)
async def begin_load(request: AnyRequest, services: Services, order: NamedModel) -> Success:
    """Start loading a model. `GET /models` returns the progress."""
    name = (await services.registry.find(order.model, request.auth)).name
    audit(request, "load", model=name)
    async with services.registry.loading(name):
        return Success()


@api(post, "/models/unload", access="admin", examples=NAMED)
async def end_load(request: AnyRequest, services: Services, order: NamedModel) -> Success:
    """Unload a model after its running answers have ended."""
    name = await services.id_of(order.model, request.auth)
    audit(request, "unload", model=name)
    async with attended(request):
        await services.registry.unload(name)
    return Success()


BUILD = f"roundhouse-{VERSION}"


@api(get, "/props", access="user")
async def props(request: AnyRequest, services: Services, model: str = "") -> wire.Props:
    """Get the properties of a model: the named one, otherwise the one in use, otherwise the
    default.
    """
    status = await services.meant(model, request.auth)
    known = await services.capabilities.of(status)
    shown = card(status, known, services.facts(status))
    entry, info = status.entry, status.info
    assert entry is not None, "a name that resolves has its files"
    context = shown.context_length or entry.files.context_length
    asked = services.presets.current.over(GenerationParams())
    sampling = asked.sampling.over(entry.usual_sampling)
    job = Generation(prompt=(), sampling=sampling, max_tokens=asked.max_tokens)
    params = settings(job, context_length=context)
    is_path = request.auth.role == "admin" and entry.files.remote is None
    return wire.Props(
        total_slots=info.max_concurrent if info else entry.options.max_concurrent,
        chat_template=known.template if known else DEFAULT_TEMPLATE,
        default_generation_settings=wire.Settings(context, params, entry.sampling_from),
        modalities=wire.Modalities(vision="image" in shown.modalities),
        model_alias=status.id,
        build_info=BUILD,
        is_sleeping=info is None,
        model_path=str(entry.files.path) if is_path else UNSET,
        bos_token=info.special.bos if info else UNSET,
        eos_token=info.special.eos if info else UNSET,
    )


class ResidentWire(msgspec.Struct, frozen=True, kw_only=True):
    """A model in memory. Times are in seconds; null: it is in use, or is never unloaded. `devices`:
    bytes used per device. `parent`: of a preset, the model that is loaded for it, whose the other
    figures are.
    """

    model: str
    state: str
    parent: str | UnsetType = UNSET
    engine: str | None
    context_length: int | None
    devices: Mapping[str, int] | None
    in_use: int
    waiting: int
    idle_seconds: float | None
    remaining_time_seconds: float | None


class FailedWire(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can't be used, or whose last load failed."""

    model: str
    reason: str | None


class ServerStatusWire(msgspec.Struct, frozen=True, kw_only=True):
    """The models in memory: the one in use, and all of them. `failed`: models that can't be loaded,
    if any.
    """

    loaded_model: str | None
    remaining_time_seconds: float | None
    status: Literal["loaded", "loading", "unloaded"]
    models: Sequence[ResidentWire]
    failed: Sequence[FailedWire] | UnsetType = UNSET


class UnloadedWire(msgspec.Struct, frozen=True):
    """The result of an unload."""

    message: str
    status: Literal["unloaded"] = "unloaded"


@api(get, "/lora-adapters", access="user")
async def lora_adapters(
    request: AnyRequest, services: Services, model: str = ""
) -> list[wire.LoraAdapter]:
    """List the LoRA adapters of a model, with the scales that count where a request names none: of
    the named model, otherwise the one in use, otherwise the default.
    """
    found = await services.meant(model, request.auth)
    facts = services.facts(found)
    adapters = facts.adapters if facts is not None else ()
    return [
        wire.LoraAdapter(id=number, name=one.name, path=one.file, scale=one.scale)
        for number, one in enumerate(adapters)
    ]


@api(post, "/lora-adapters", access="admin", takes=list[wire.LoraAdapter])
async def set_lora_adapters() -> ASGIApp:
    """Not supported. The error describes the alternatives."""
    raise NotSupported(
        "The scales of a loaded model don't change for everybody. Send `lora` with a request, or "
        "set adapter_scaling in the model's options."
    )


@api(get, "/status", access="user")
async def status(request: AnyRequest, services: Services) -> ServerStatusWire:
    """List the models in memory."""
    statuses = services.visible(request.auth)
    there = [status for status in statuses if status.state in ("loading", "loaded", "draining")]
    failed = [status for status in statuses if status.state == "failed"]
    in_use = services.registry.in_use(request.auth)
    first = next((status for status in there if in_use and status.id == in_use.name), None)
    state: Literal["loaded", "loading", "unloaded"] = "loading" if there else "unloaded"
    return ServerStatusWire(
        loaded_model=first.id if first else None,
        remaining_time_seconds=first.remaining_seconds if first else None,
        status="loaded" if first else state,
        models=[_resident(status) for status in there],
        failed=[FailedWire(model=status.id, reason=status.why_failed) for status in failed]
        or UNSET,
    )


def _resident(status: ModelStatus) -> ResidentWire:
    return alike(ResidentWire, status)(
        model=status.id,
        parent=status.entry.of.name if status.entry and status.entry.of else UNSET,
        engine=status.files.backend if status.files else None,
        context_length=context_length(status),
        devices=status.devices or None,
        remaining_time_seconds=status.remaining_seconds,
    )


@api(post, "/unload", access="admin", examples=NAMED)
async def unload(request: AnyRequest, services: Services, order: MaybeNamedModel) -> UnloadedWire:
    """Unload the named model, or all models."""
    audit(request, "unload", model=order.model)
    held = {one.id: one.devices for one in services.visible(request.auth)}
    async with attended(request):
        reports = await unload_models(services, order.model, request.auth, force=order.force)
    freed = Counter[str]()
    for report in reports:
        freed.update(held.get(report.name, {}) if report.was_loaded else {})
    return UnloadedWire(_unloaded(reports, freed))


def _unloaded(reports: Sequence[UnloadReport], freed: Mapping[str, int]) -> str:
    """`Model a, b unloaded in 0.2 s: 4.0 GiB of cpu came free; 1.5 GiB of cpu are kept for other
    models. The process itself holds 0.4 GiB of cuda:0, CUDA's context with it.`
    """
    if not reports:
        return "No model was loaded."
    names = ", ".join(report.name for report in reports)
    last, seconds = reports[-1], sum(report.seconds for report in reports)
    came, kept = _sizes(freed), _sizes(last.promised)
    free = f": {came} came free" if came else ""
    others = f"; {kept} are kept for other models" if kept else ""
    cards = any(name != CPU for name in last.held)
    return (
        f"Model {names} unloaded in {seconds:.1f} s{free}{others}. "
        f"The process itself holds {_sizes(last.held)}"
        f"{', CUDA’s context with it' if cards else ''}."
    )


def _sizes(memory: Mapping[str, int]) -> str:
    """Of real memory: what makes models take turns has a few units."""
    real = ((name, size) for name, size in memory.items() if size > UNITS)
    return ", ".join(f"{gibibytes(size)} of {name}" for name, size in real)


class ForgottenWire(msgspec.Struct, frozen=True):
    """The models whose measured memory was deleted."""

    models: Sequence[str]


@api(post, "/measurements/reset", access="admin", examples=NAMED)
async def reset_measurements(
    request: AnyRequest, services: Services, order: MaybeNamedModel
) -> ForgottenWire:
    """Delete the measured memory of the named model, or of all models. The next load is planned
    from an estimate and measured again.
    """
    audit(request, "forget measurements", model=order.model)
    return ForgottenWire(await services.registry.forget_measurements(order.model))
