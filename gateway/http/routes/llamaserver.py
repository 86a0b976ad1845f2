"""Calls to manage models: llama-server's, transformers serve's, and simple ones for people."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from litestar import Request, get, post
from litestar.types import ASGIApp
from msgspec import UNSET, UnsetType

from backends.catalog import CPU
from gateway.access import Access
from gateway.answers.tokens import foremost
from gateway.dialects import openai
from gateway.dialects.frames import body, frame
from gateway.dialects.llamaserver import loading, wire
from gateway.dialects.llamaserver.completion import CompletionReply
from gateway.http.auth import caller
from gateway.http.cards import card, status_wire
from gateway.http.exchange import Exchange, Telling, ignoring, new_id
from gateway.http.plain import Plain
from gateway.http.routes.tabby import unload_models
from gateway.http.services import Services
from gateway.http.sse import EventStream, ProgressStream, WholeErrand
from gateway.prompt import DEFAULT_TEMPLATE
from gateway.registry import ModelStatus, UnloadReport, Waiting
from gateway.registry.memory import gibibytes
from gateway.tasks import relayed

AnyRequest = Request[Any, Any, Any]


# ---------------------------------------------------------------------------------- people, scripts


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
    statuses = services.visible(services.doorman.admit(request.headers))
    there = [one for one in statuses if one.state in ("loading", "loaded", "draining")]
    failed = [one for one in statuses if one.state == "failed"]
    first = foremost(there)
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
    access = services.doorman.admit(request.headers)
    access.require_admin()
    order = wire.read(await request.body(), wire.MaybeNamedModel)

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
    services.doorman.admit(request.headers).require_admin()
    order = wire.read(await request.body(), wire.MaybeNamedModel)
    return Plain(body(ForgottenWire(await services.registry.forget_measurements(order.model))))


# ------------------------------------------------------------------------------- transformers serve


@post("/load_model")
async def load_model(request: AnyRequest, services: Services) -> ASGIApp:
    """Load as a request would, and report how it goes: what `transformers chat` does first."""
    access = services.doorman.admit(request.headers)
    name = (
        await services.find(wire.read(await request.body(), wire.NamedModel).model, access)
    ).name

    async def tell(events: EventStream) -> None:
        await _tell_load(events, name, services, access)

    return ProgressStream(
        tell,
        services.failed(access, lambda error: loading.failed(name, error)),
        quiet=services.config.server.comment_after,
    )


async def _tell_load(events: EventStream, name: str, services: Services, access: Access) -> None:
    """A lease, given back at once: so a user's request has a user's place in line."""
    was_loaded = services.registry.status(name).state == "loaded"

    async def write(waiting: Waiting) -> None:
        if waiting.progress is None:
            events.wait(waiting)
        else:
            await events.begin()
            await events.write(loading.progress(name, waiting.progress))

    async with (
        relayed(write) as report,
        services.registry.lease(name, on_wait=report, access=access),
    ):
        pass
    await events.begin()
    await events.write(loading.ready(name, cached=was_loaded))


# ------------------------------------------------------------------------------------ llama-server


@get("/models")
async def models(request: AnyRequest, services: Services) -> ASGIApp:
    """All models; and in a second list what lies on this machine, the hub's cache included."""
    access = services.doorman.admit(request.headers)
    statuses = services.visible(access)
    known = await services.capabilities.of_all(statuses)
    cards = [card(one, known.get(one.id), services.facts(one)) for one in statuses]
    cached = () if access.models else await services.hub.cached()
    found = [
        openai.Stored(repo_id=one.repository, repo_type=one.kind, size_on_disk=one.size)
        for one in cached
    ]
    return Plain(openai.stored_list(cards, found))


@get("/models/sse")
async def model_events(request: AnyRequest, services: Services) -> ASGIApp:
    """The state of every model the caller may use, and then each change of one.

    Who reads slowly misses states in between, never the last.
    """
    access = services.doorman.admit(request.headers)

    async def tell(events: EventStream) -> None:
        with services.registry.watchers.watching() as changes:
            sent: dict[str, wire.StateData] = {}
            await events.begin()
            await events.write(_changed(services.visible(access), sent))
            while names := await changes.read():
                statuses = services.visible(access, names)
                gone = names.difference(one.id for one in statuses)
                if frames := _changed(statuses, sent) + _removed(gone, sent):
                    await events.write(frames)

    return ProgressStream(
        tell,
        services.failed(access, openai.error_event),
        quiet=services.config.server.comment_after,
    )


def _changed(statuses: Sequence[ModelStatus], sent: dict[str, wire.StateData]) -> bytes:
    """Events of the states that aren't those that were `sent`."""
    frames = b""
    for status in statuses:
        data = _state_data(status)
        if sent.get(status.id) != data:
            sent[status.id] = data
            frames += frame(wire.StateEvent(model=status.id, event="model_status", data=data))
    return frames


def _removed(names: frozenset[str], sent: dict[str, wire.StateData]) -> bytes:
    """Events of models that are gone, of those whose state was `sent`."""
    known = [name for name in sorted(names) if sent.pop(name, None) is not None]
    return b"".join(frame(wire.StateEvent(model=name, event="model_remove")) for name in known)


def _state_data(status: ModelStatus) -> wire.StateData:
    state = status_wire(status)
    return wire.StateData(
        status=state.value,
        progress=wire.load_stages(status.progress) if status.progress else UNSET,
        failed=state.failed or UNSET,
        reason=status.why_failed or UNSET,
    )


@post("/models/load")
async def begin_load(request: AnyRequest, services: Services) -> ASGIApp:
    """Begin to load a model; `GET /models` tells how it goes."""
    access = services.doorman.admit(request.headers)
    access.require_admin()
    name = (
        await services.find(wire.read(await request.body(), wire.NamedModel).model, access)
    ).name
    async with services.registry.loading(name):
        return Plain(wire.SUCCESS)


@post("/models/unload")
async def end_load(request: AnyRequest, services: Services) -> ASGIApp:
    """Unload a model once its answers have ended."""
    access = services.doorman.admit(request.headers)
    access.require_admin()
    named = wire.read(await request.body(), wire.NamedModel)
    name = (await services.find(named.model, access)).name

    async def whole() -> bytes:
        await services.registry.unload(name)
        return wire.SUCCESS

    return WholeErrand(whole)


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


@post("/tokenize")
async def tokenize(request: AnyRequest, services: Services) -> ASGIApp:
    """The tokens of a text, as llama-server and as vLLM tell them."""
    access = services.doorman.admit(request.headers)
    data = await request.body()
    order, left = wire.read(data, wire.Tokenize), wire.unread(data, wire.Tokenize)
    text, name = order.text, await services.wording.named(order.model, access)
    tokens = await services.wording.encode(
        name, text, access, special=order.parse_special, add_bos=order.add_bos
    )
    length = card(services.registry.status(name), None, None).context_length or 0
    told = wire.LlamaTokens(tokens=tokens, count=len(tokens), max_model_len=length)
    return Plain(body(told), headers=ignoring(left))


@post("/detokenize")
async def detokenize(request: AnyRequest, services: Services) -> ASGIApp:
    """The text of tokens."""
    access = services.doorman.admit(request.headers)
    data = await request.body()
    order, left = wire.read(data, wire.Detokenize), wire.unread(data, wire.Detokenize)
    text = await services.wording.decode(order.model, order.tokens, access)
    return Plain(body(wire.LlamaText(text, text)), headers=ignoring(left))


@post("/apply-template")
async def apply_template(request: AnyRequest, services: Services) -> ASGIApp:
    """The text that a conversation becomes for its model."""
    access = services.doorman.admit(request.headers)
    asked = (await services.read(openai.read_chat, await request.body())).request

    async def whole() -> bytes:
        text = await services.wording.render_chat(asked.model, asked, access)
        return body(wire.Rendered(text))

    return WholeErrand(whole)


@post(["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"])
async def input_tokens(request: AnyRequest, services: Services) -> ASGIApp:
    """How many tokens a conversation has, its pictures left out."""
    access = services.doorman.admit(request.headers)
    asked = (await services.read(openai.read_chat, await request.body())).request

    async def whole() -> bytes:
        tokens = await services.wording.encode_chat(asked.model, asked, access)
        return body(wire.InputTokens(len(tokens)))

    return WholeErrand(whole)


@post("/completion")
async def completion(request: AnyRequest, services: Services) -> ASGIApp:
    """A text goes on, in llama-server's form."""
    access = services.doorman.admit(request.headers)
    exchange = await services.read(openai.read_text, await request.body())
    asked, request_id = exchange.request, new_id(request)
    return Exchange(
        lambda on_wait: services.pipeline.text(
            asked, access, on_wait, caller(request.headers, request_id)
        ),
        lambda answer: CompletionReply(
            model=answer.model,
            choices=len(asked.prompts) * asked.answering.n,
            parameters=answer.parameters,
        ),
        services.failed(access, openai.error_event),
        services.account("completion", asked.model, request_id),
        exchange,
        Telling(quiet=services.config.server.comment_after),
    )


ROUTES = (
    status,
    unload,
    reset_measurements,
    load_model,
    models,
    model_events,
    begin_load,
    end_load,
    props,
    tokenize,
    detokenize,
    apply_template,
    input_tokens,
    completion,
)
