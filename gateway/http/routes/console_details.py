"""The details of one model beyond its state: its template, what its makers say, its files; and its
deletion. docs/console-api.md has the fields.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from anyio import to_thread
from litestar import delete, get

from backends.contract.samplers import DEFAULTS, SAMPLERS
from gateway.answers.interpreter import Known
from gateway.answers.recording import Split
from gateway.http.auth import AnyRequest
from gateway.http.request_log import audit
from gateway.http.routes.hub import deletion
from gateway.http.routing import Routes
from gateway.http.services import Services
from gateway.http.sse import attended
from gateway.keys.access import Access
from gateway.registry import ModelStatus
from gateway.registry.origins import HubOrigin, origin_of
from gateway.terms.errors import Forbidden, GatewayError, InvalidRequest, ModelNotFound

CARD, MOST_CARD = "README.md", 64 << 10  # the hub's model card, and bytes that are read of it
LICENSES = ("LICENSE", "LICENSE.txt", "LICENSE.md")
FENCE = "---"
CARD_FIELDS = frozenset(
    {"license", "license_name", "license_link", "base_model", "pipeline_tag", "library_name"}
)
LONGEST = 300  # characters of a value

api = Routes()


class FileWire(msgspec.Struct, frozen=True):
    """One file of a model."""

    name: str
    bytes: int


class DetailsWire(msgspec.Struct, frozen=True, kw_only=True):
    """One model. Files and what can be done with them are for administrators."""

    model: str
    repository: str | None  # on the hub, that it was downloaded from
    download: str | None  # what to ask for to download it again
    license: str | None
    described: Mapping[str, str]  # what its makers wrote of it
    template: str | None
    split: Split | None  # by which rules its answers are split
    capabilities: Sequence[str] | None
    sampling: Mapping[str, Any]  # that it recommends
    trained_context: int | None
    layers: int | None
    vocabulary: int | None
    folder: str | None
    files: Sequence[FileWire]
    deletable: bool
    why_not: str | None  # it isn't deletable


class DeletedWire(msgspec.Struct, frozen=True):
    """The deleted model."""

    deleted: str


@api(get, "/v1/admin/models/details", access="user")
async def details(request: AnyRequest, services: Services, model: str = "") -> DetailsWire:
    """Get a model's template, its makers' description, its licence and its files."""
    status = _status(services, model, request.auth)
    known = await services.capabilities.of(status)
    why_not = await _obstacle(services, status, request.auth)
    return await to_thread.run_sync(_details, status, known, request.auth, why_not)


def _status(services: Services, model: str, access: Access) -> ModelStatus:
    """Of a model that can't be used, too. Raises ModelNotFound."""
    try:
        return services.status(model, access)
    except GatewayError:
        broken = (one for one in services.visible(access) if one.id == model)
        if (found := next(broken, None)) is None:
            raise ModelNotFound(f"Model {model!r:.80} not found.", param="model") from None
        return found


async def _obstacle(services: Services, status: ModelStatus, access: Access) -> str | None:
    """Why its files can't be deleted; None: they can."""
    try:
        await _deletion(services, status, access)
    except GatewayError as error:
        return error.message
    return None


async def _deletion(
    services: Services, status: ModelStatus, access: Access
) -> Callable[[], Awaitable[None]]:
    """What deletes its files. Raises what forbids it."""
    access.require_admin()
    if status.id in services.reloader.copies:
        raise InvalidRequest("It is a copy: the files are another model's.", param="model")
    if status.unusable is None:
        if status.files is None or status.files.remote is not None:
            raise InvalidRequest("It has no files here.", param="model")
        return await deletion(services, status.id, access)
    path = status.unusable
    services.hub.require_deletable((path,))
    if path.resolve() == services.hub.root().resolve():
        raise Forbidden("this is the folder for downloads itself")

    async def delete_files() -> None:
        await services.hub.delete((path,))
        await services.registry.refresh()

    return delete_files


@api(delete, "/v1/admin/models", status_code=200, access="admin")
async def delete_model(request: AnyRequest, services: Services, model: str = "") -> DeletedWire:
    """Unload a model and delete its files, if the configuration allows it; one that can't be used,
    too.
    """
    status = _status(services, model, request.auth)
    delete_files = await _deletion(services, status, request.auth)
    audit(request, "delete", model=status.id)
    async with attended(request):
        await delete_files()
    return DeletedWire(status.id)


def _details(
    status: ModelStatus, known: Known | None, access: Access, why_not: str | None
) -> DetailsWire:
    """Blocks: it reads what lies beside the model."""
    files = status.files
    is_here = files is not None and files.remote is None and files.node is None
    path = files.path if files is not None and is_here else status.unusable
    folder = None if path is None else path if path.is_dir() else path.parent
    origin = None if folder is None else origin_of(folder)
    card = {} if folder is None else _card(folder)
    described = {**card, **(files.described if files else {})}
    shown = access.role == "admin"
    return DetailsWire(
        model=status.id,
        repository=origin.repository if origin else None,
        download=_download(origin),
        license=described.pop("license", None) or (_license_file(folder) if folder else None),
        described=described,
        template=known.template if known else None,
        split=Split(known.recognised.format.id, known.recognised.why) if known else None,
        capabilities=known.capabilities if known else None,
        sampling=_recommended(status),
        trained_context=(files.context_length or None) if files else None,
        layers=(files.layers or None) if files else None,
        vocabulary=(files.vocab_size or None) if files else None,
        folder=str(folder) if shown and folder is not None else None,
        files=_files(status) if shown and path is not None else (),
        deletable=why_not is None,
        why_not=why_not if shown else None,
    )


def _download(origin: HubOrigin | None) -> str | None:
    if origin is None:
        return None
    named = (name for name in origin.names if ":" in name)
    return next(named, origin.repository)


def _recommended(status: ModelStatus) -> Mapping[str, Any]:
    found = status.files.generation_defaults if status.files else DEFAULTS
    said = found.requested() if found != DEFAULTS else ()
    return {name: getattr(found, name) for name in SAMPLERS if name in said}


def _files(status: ModelStatus) -> list[FileWire]:
    files = status.files
    if files is None:
        paths = [status.unusable] if status.unusable is not None else []
    else:
        paths = [*(files.parts or (files.path,)), *filter(None, [files.projector])]
    return [FileWire(path.name, _size(path)) for path in paths]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # it is gone, as the list will say soon
        return 0


def _card(folder: Path) -> dict[str, str]:
    """The fields at the head of the hub's model card that name a single thing."""
    try:
        with (folder / CARD).open(encoding="utf-8", errors="replace") as file:
            lines = file.read(MOST_CARD).splitlines()
    except OSError:
        return {}
    if not lines or lines[0].strip() != FENCE or FENCE not in lines[1:]:
        return {}
    head = lines[1 : lines.index(FENCE, 1)]
    pairs = (line.partition(":") for line in head if not line.startswith((" ", "-", "#")))
    return {
        name: value.strip().strip("'\"")[:LONGEST]
        for name, colon, value in pairs
        if colon and name in CARD_FIELDS and value.strip()
    }


def _license_file(folder: Path) -> str | None:
    """The first line of the licence's file."""
    for name in LICENSES:
        try:
            with (folder / name).open(encoding="utf-8", errors="replace") as file:
                lines = file.read(LONGEST).splitlines()
        except OSError:
            continue
        return next((line.strip() for line in lines if line.strip()), None)
    return None
