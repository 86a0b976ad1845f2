"""Models as llama-server's clients manage them, and `transformers chat`, which loads before it
asks.
"""

from collections.abc import Sequence
from typing import Any

from litestar import Request, get, post
from litestar.types import ASGIApp
from msgspec import UNSET

from gateway.access import Access
from gateway.dialects import openai
from gateway.dialects.frames import frame
from gateway.dialects.llamaserver import loading, wire
from gateway.http.cards import card, status_wire
from gateway.http.plain import Plain
from gateway.http.request_log import audit
from gateway.http.services import Services
from gateway.http.sse import EventStream, ProgressStream, WholeErrand
from gateway.registry import ModelStatus, Waiting
from gateway.tasks import relayed

AnyRequest = Request[Any, Any, Any]


# ------------------------------------------------------------------------------- transformers serve


@post("/load_model")
async def load_model(request: AnyRequest, services: Services) -> ASGIApp:
    """Load as a request would, and report how it goes: what `transformers chat` does first."""
    access = services.authenticator.admit(request.headers)
    name = (
        await services.find(wire.read(await request.body(), wire.NamedModel).model, access)
    ).name
    audit(request, "load", model=name)

    async def send_events(events: EventStream) -> None:
        await _send_load(events, name, services, access)

    return ProgressStream(
        send_events,
        services.failed(access, lambda error: loading.failed(name, error)),
        quiet=services.config.server.comment_after,
    )


async def _send_load(events: EventStream, name: str, services: Services, access: Access) -> None:
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
    access = services.authenticator.admit(request.headers)
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

    A slow reader misses states in between, never the last.
    """
    access = services.authenticator.admit(request.headers)

    async def send_events(events: EventStream) -> None:
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
        send_events,
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
    """Begin to load a model; `GET /models` has its progress."""
    access = services.authenticator.admit(request.headers)
    access.require_admin()
    name = (
        await services.find(wire.read(await request.body(), wire.NamedModel).model, access)
    ).name
    audit(request, "load", model=name)
    async with services.registry.loading(name):
        return Plain(wire.SUCCESS)


@post("/models/unload")
async def end_load(request: AnyRequest, services: Services) -> ASGIApp:
    """Unload a model once its answers have ended."""
    access = services.authenticator.admit(request.headers)
    access.require_admin()
    named = wire.read(await request.body(), wire.NamedModel)
    name = (await services.find(named.model, access)).name
    audit(request, "unload", model=name)

    async def whole() -> bytes:
        await services.registry.unload(name)
        return wire.SUCCESS

    return WholeErrand(whole)


ROUTES = (load_model, models, model_events, begin_load, end_load)
