"""Downloads and uploads of models: a repository's models, downloads in the background, and uploaded
files.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from anyio import to_thread
from litestar import Request, delete, get, post, put
from litestar.types import ASGIApp

from gateway.dialects.fields import Fields, order_object
from gateway.dialects.frames import body
from gateway.errors import InvalidRequest
from gateway.http.plain import Plain
from gateway.http.request_log import audit
from gateway.http.routes.hub import fetched, to_fetch
from gateway.http.services import Services
from gateway.http.sse import WholeErrand
from gateway.hub import SCHEME, DownloadState, OfferedModel, choices, hub_model, needed
from gateway.hub.downloads import Report
from gateway.registry.survey import Verdict

AnyRequest = Request[Any, Any, Any]


class RoomWire(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a model that isn't here would fit, by its size."""

    verdict: Verdict
    unload: Sequence[str]
    why: str | None
    device: str | None  # that takes most of it
    needs: int
    estimate: str = "size"


class ChoiceWire(msgspec.Struct, frozen=True, kw_only=True):
    """One model of a repository."""

    name: str | None
    model: str
    files: Sequence[str]
    bytes: int
    here: bool
    fit: RoomWire


class RepositoryWire(msgspec.Struct, frozen=True, kw_only=True):
    """What a repository offers."""

    repository: str
    commit: str
    bytes: int
    quantizations: Sequence[ChoiceWire]


class DownloadOrder(msgspec.Struct, frozen=True):
    """What to fetch: `owner/name`, or `owner/name:Q4_K_M`."""

    model: str


class DownloadsWire(msgspec.Struct, frozen=True):
    """All downloads, the newest first."""

    downloads: Sequence[DownloadState]


class RemovedDownload(msgspec.Struct, frozen=True):
    """What is no longer listed."""

    removed: str


class UploadedWire(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is here now, and the models that it is."""

    name: str
    bytes: int
    models: Sequence[str]


# ------------------------------------------------------------------------------------------ the hub


@get("/v1/admin/hub/files")
async def files(request: AnyRequest, services: Services, repository: str = "") -> ASGIApp:
    """The models that a repository of the hub offers, and whether each would fit."""
    services.authenticator.admit(request.headers).require_admin()
    name = repository.removeprefix(SCHEME)

    async def whole() -> bytes:
        found = await services.hub.listing(name)
        offered = choices(name, found, services.catalog)
        here = await to_thread.run_sync(lambda: [_is_here(services, one) for one in offered])
        wire = RepositoryWire(
            repository=name,
            commit=found.commit,
            bytes=sum(file.size for file in found.files),
            quantizations=[
                _offered(services, one, here=there)
                for one, there in zip(offered, here, strict=True)
            ],
        )
        return body(wire)

    return WholeErrand(whole)


def _is_here(services: Services, choice: OfferedModel) -> bool:
    """Whether a download would find it there already. Blocks."""
    try:
        return services.hub.here(hub_model(SCHEME + choice.model), lambda _: False) is not None
    except InvalidRequest:  # no folder, or a name that can't be one
        return False


def _offered(services: Services, choice: OfferedModel, *, here: bool) -> ChoiceWire:
    return ChoiceWire(
        name=choice.name,
        model=choice.model,
        files=choice.files,
        bytes=choice.size,
        here=here,
        fit=_room(services, choice),
    )


def _room(services: Services, choice: OfferedModel) -> RoomWire:
    """With the engine's defaults, on the devices that they choose."""
    survey = services.registry.survey
    needs = needed(choice, services.config, services.catalog, survey.cards)
    fit, devices = survey.room_for(choice.model, needs), survey.fitting(needs)
    return RoomWire(
        verdict=fit.verdict,
        unload=fit.unload,
        why=fit.why,
        device=max(devices, key=lambda name: devices[name], default=None),
        needs=sum(devices.values()),
    )


# ---------------------------------------------------------------------------------------- downloads


@get("/v1/admin/downloads")
async def downloads(request: AnyRequest, services: Services) -> ASGIApp:
    """Downloads that run, and those that ended."""
    services.authenticator.admit(request.headers).require_admin()
    return Plain(body(DownloadsWire(services.downloads.states())))


@post("/v1/admin/downloads", status_code=202)
async def begin(request: AnyRequest, services: Services) -> ASGIApp:
    """Begin a download in the background, or go on with it."""
    services.authenticator.admit(request.headers).require_admin()
    asked = Fields(order_object(await request.body()), {}).read(DownloadOrder)
    model = asked.model.removeprefix(SCHEME)
    order = to_fetch(model)
    services.hub.root()  # that there is none is known at once
    audit(request, "download", repository=order.repository)

    async def fetch(report: Report) -> str:
        return await fetched(services, order, report)

    return Plain(body(services.downloads.begin(model, fetch)), status=202)


@post("/v1/admin/downloads/{id:str}/stop", status_code=200)
async def stop(request: AnyRequest, services: Services, id: str) -> ASGIApp:
    """Stop one; what has come stays."""
    services.authenticator.admit(request.headers).require_admin()
    return Plain(body(services.downloads.stop(id)))


@post("/v1/admin/downloads/{id:str}/resume", status_code=202)
async def resume(request: AnyRequest, services: Services, id: str) -> ASGIApp:
    """Go on with one."""
    services.authenticator.admit(request.headers).require_admin()
    return Plain(body(services.downloads.resume(id)), status=202)


@delete("/v1/admin/downloads/{id:str}", status_code=200)
async def remove_download(request: AnyRequest, services: Services, id: str) -> ASGIApp:
    """Take one out of the list."""
    services.authenticator.admit(request.headers).require_admin()
    services.downloads.remove(id)
    return Plain(body(RemovedDownload(id)))


# ------------------------------------------------------------------------------------------ uploads


@put("/v1/admin/uploads/{name:str}", status_code=201, request_max_body_size=None)
async def upload(request: AnyRequest, services: Services, name: str) -> ASGIApp:
    """A GGUF file into the folder for downloads."""
    services.authenticator.admit(request.headers).require_admin()
    length = request.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit() and len(length) <= 18):
        raise InvalidRequest("content-length: the file's bytes are wanted", param="content-length")
    audit(request, "upload", file=name, bytes=int(length))
    path = await services.uploads.take(name, int(length), _pieces(request))
    await services.registry.refresh()
    models = [
        one.id for one in services.registry.statuses() if one.files and one.files.path == path
    ]
    wire = UploadedWire(name=name, bytes=int(length), models=models)
    return Plain(body(wire), status=201)


async def _pieces(request: AnyRequest) -> AsyncIterator[bytes]:
    async for piece in request.stream():
        yield piece


ROUTES = (files, downloads, begin, stop, resume, remove_download, upload)
