"""Routes that download models from a hub and delete them: TabbyAPI's, and llama-server's."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal, TypeVar

import anyio
import msgspec
from litestar import delete, post
from litestar.types import ASGIApp

from gateway.dialects import openai, tabby
from gateway.dialects.dialect import body, frame
from gateway.dialects.fields import read_given
from gateway.dialects.llamaserver import request as wire
from gateway.dialects.llamaserver.request import NamedModel, Success
from gateway.http.auth import AnyRequest
from gateway.http.request_log import audit
from gateway.http.routing import Routes
from gateway.http.services import Services
from gateway.http.sse import EventStream, Plain, attended
from gateway.hub.repository import DownloadProgress, Order, fits_in, hub_model
from gateway.keys.access import Access
from gateway.registry import ModelEntry
from gateway.terms.errors import InvalidRequest, ModelUnavailable
from gateway.terms.tasks import relayed

T = TypeVar("T")

tabby_api = Routes(read_given)
llamaserver_api = Routes(wire.read)


@tabby_api(
    post,
    "/v1/download",
    access="admin",
    gives=(tabby.Downloaded,),
    events=(tabby.DownloadEvent,),
)
async def download(request: AnyRequest, services: Services, order: tabby.Download) -> ASGIApp:
    """Download a model: `owner/name`, or `owner/name:Q4_K_M`. Without a quantization, one that fits
    is chosen. One response is sent at the end, because TabbyAPI's clients read its status.

    With `text/event-stream` in `Accept`, or with `stream`, the progress is streamed.
    """
    wanted = _order(order)
    audit(request, "download", repository=wanted.repository)
    if not (order.stream or "text/event-stream" in request.headers.get("accept", "")):
        async with attended(request):
            path = await _timed(fetched(services, wanted), order.timeout)
        return Plain(body(tabby.Downloaded(path)))

    async def send_events(events: EventStream) -> bytes:
        return await _timed(_progress(events, services, wanted), order.timeout)

    return services.progress(request.auth, send_events, openai.error_event)


def _order(asked: tabby.Download) -> Order:
    if asked.repo_type != "model":
        raise InvalidRequest.at("repo_type", "only models can be downloaded")
    return msgspec.structs.replace(
        to_fetch(asked.repo_id),
        revision=asked.revision,
        folder=asked.folder_name,
        token=asked.token,
        include=asked.include,
        exclude=asked.exclude,
    )


async def _timed(work: Awaitable[T], seconds: float | None) -> T:
    """Raises ModelUnavailable after `seconds`."""
    try:
        with anyio.fail_after(seconds):
            return await work
    except TimeoutError:
        raise ModelUnavailable(f"the download took longer than {seconds:g} s") from None


async def fetched(
    services: Services,
    order: Order,
    report: Callable[[DownloadProgress], None] = lambda _step: None,
) -> str:
    """Download, and list the new model at once; its path."""
    fits = fits_in(services.registry.budgets, services.config, services.catalog)
    path = await services.hub.download(order, report, fits)
    await services.registry.refresh()
    return str(path)


async def fetched_with_progress(
    events: EventStream,
    services: Services,
    order: Order,
    framed: Callable[[DownloadProgress], bytes],
) -> str:
    """As `fetched`; how far it is is written as `framed` says."""

    async def write(step: DownloadProgress) -> None:
        await events.write(framed(step))

    async with relayed(write) as report:
        return await fetched(services, order, report)


async def _progress(events: EventStream, services: Services, order: Order) -> bytes:
    """All but the last event."""
    last = DownloadProgress("", 0, 0)

    def framed(step: DownloadProgress) -> bytes:
        nonlocal last
        last = step
        return _event("downloading", step)

    path = await fetched_with_progress(events, services, order, framed)
    return _event("finished", last, path)


def _event(
    status: Literal["downloading", "finished"], step: DownloadProgress, path: str | None = None
) -> bytes:
    said = msgspec.structs.asdict(step)
    return frame(tabby.DownloadEvent(status=status, download_path=path, **said))


@llamaserver_api(post, "/models", access="admin")
async def fetch_model(request: AnyRequest, services: Services, order: NamedModel) -> Success:
    """Download a repository: `owner/name`, or `owner/name:Q4_K_M` for one with GGUF files. The
    prefix `hf:` is optional. Without a quantization, one that fits is chosen.
    """
    wanted = to_fetch(order.model)
    audit(request, "download", repository=wanted.repository)
    async with attended(request):
        await fetched(services, wanted)
    return Success()


def to_fetch(model: str) -> Order:
    """What `model` names: a repository, or one quantization of it. Raises InvalidRequest."""
    if ":" not in model:
        return Order(repository=model)
    try:
        return hub_model(model)
    except InvalidRequest as error:
        raise InvalidRequest.at("model", error.message) from None


@llamaserver_api(delete, "/models", status_code=200, access="admin")
async def delete_model(request: AnyRequest, services: Services, model: str) -> Success:
    """Unload a model and delete its files, if the configuration allows deletion."""
    await delete_audited(request, services, model)
    return Success()


async def delete_audited(request: AnyRequest, services: Services, model: str) -> None:
    """Delete a model's files, for whoever may. Raises as `deletion`."""
    delete_files = await deletion(services, model, request.auth)
    audit(request, "delete", model=model)
    async with attended(request):
        await delete_files()


async def deletion(services: Services, model: str, access: Access) -> Callable[[], Awaitable[None]]:
    """What deletes a model's files. Raises at once what forbids it, and ModelNotFound."""
    entry = await services.registry.find(model, access)
    if entry.files.node is not None:
        text = f"{entry.name} lies on another machine, {entry.files.node.node.name}"
        raise InvalidRequest(text, param="model")
    paths = _files_of(entry, services)
    services.hub.require_deletable(paths)

    async def delete_files() -> None:
        await services.registry.unload(entry.name)
        services.registry.kept.store.drop(lambda one: one.model == str(entry.files.path))
        await services.hub.delete(paths)
        await services.registry.refresh()

    return delete_files


def _files_of(entry: ModelEntry, services: Services) -> tuple[Path, ...]:
    """Files of this model alone: quantizations in one folder share the projector beside them."""
    files = entry.files
    own = (files.path,) if files.path.is_dir() else files.parts or (files.path,)
    projector = files.projector
    if projector is None or projector.parent != files.path.parent:
        return own
    others = (one.files for one in services.registry.statuses() if one.id != entry.name)
    shared = any(other is not None and other.projector == projector for other in others)
    return own if shared else (*own, projector)
