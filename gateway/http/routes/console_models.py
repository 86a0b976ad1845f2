"""Model management from the console: load, unload, pin, duplicate, download and upload; and which
sampling parameters a model's engine applies, for forms.

The progress of loads and downloads is reported by the stream of events; these routes don't wait
for it.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from anyio import to_thread
from litestar import delete, get, post, put
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from backends.contract.samplers import ROWS, Number, Slider
from config.models import written
from config.schema import OptionFacts, facts
from config.settings import ModelConfig
from config.values import alike, hub_id
from gateway.answers.parameters import undrafted, unsupported
from gateway.http.auth import AnyRequest
from gateway.http.gauges import ModelWire
from gateway.http.openapi import DEFAULT, NAMED
from gateway.http.publishing import model_updates
from gateway.http.request_log import audit
from gateway.http.routes.hub import fetched, to_fetch
from gateway.http.routing import Routes
from gateway.http.services import Services
from gateway.http.sse import attended
from gateway.hub.downloads import DownloadState, Report
from gateway.hub.repository import OfferedModel, choices, hub_model, needed
from gateway.hub.search import FORMATS, SORTINGS, FoundModel, Search
from gateway.keys.access import Access
from gateway.reconfiguring.reloading import ModelCopy
from gateway.registry import ModelEntry
from gateway.registry.overview import Fit, Proposal
from gateway.terms.errors import InvalidRequest, ModelNotFound, ModelUnavailable

MOST_CHARACTERS = 200  # of a copy's name
A_COPY = {"A copy": {"model": DEFAULT, "name": "another"}}
UPLOAD = "/v1/admin/uploads/{name:str}"

api = Routes()


class ModelOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The model that is meant."""

    model: str


class LoadOrder(ModelOrder, frozen=True, kw_only=True):
    """The model, and options that override its own."""

    options: dict[str, Any] | None = None


class UnloadOrder(ModelOrder, frozen=True, kw_only=True):
    """The model. `force` aborts running answers."""

    force: bool = False


class PinOrder(ModelOrder, frozen=True, kw_only=True):
    """The model, and whether it is pinned."""

    pinned: bool = True


class CopyOrder(ModelOrder, frozen=True, kw_only=True):
    """The model to duplicate, the new name, and the options that differ."""

    name: str
    options: dict[str, Any] = {}
    pinned: bool | UnsetType = UNSET
    ttl: float | UnsetType | None = UNSET


class PathOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The path of a file or folder on the server's disk, and the model's name. None: the file's."""

    path: str
    name: str | None = None


class CopiedWire(msgspec.Struct, frozen=True):
    """The model added, and the lines for `models` in the configuration that make it permanent."""

    model: ModelWire
    yaml: str


class RemovedWire(msgspec.Struct, frozen=True):
    """The removed entry."""

    removed: str


class OptionWire(OptionFacts, frozen=True, kw_only=True):
    """An option of an engine and its value for one model."""

    name: str
    value: Any


class OptionsWire(msgspec.Struct, frozen=True, kw_only=True):
    """The load options of a model."""

    model: str
    backend: str
    options: Sequence[OptionWire]


class EstimateWire(Proposal, frozen=True, kw_only=True):
    """The effect of a load with these options."""

    model: str


async def _model_wire(services: Services, name: str) -> ModelWire:
    """A model as an administrator sees it."""
    statuses = services.registry.statuses({name})  # with those of its presets
    (update,) = await model_updates(services, [one for one in statuses if one.id == name])
    return update.model


def _free_options(services: Services, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """Raises InvalidRequest for those that no request may set."""
    for name in asked:
        if name in services.catalog.configured_only:
            text = f"{name} runs code or refers to files; it can only be set in the configuration"
            raise InvalidRequest(text, param=f"options.{name}")
    return asked


async def _local(services: Services, name: str, access: Access) -> ModelEntry:
    """The model, where it runs here. Raises InvalidRequest for any other."""
    entry = await services.registry.find(name, access)
    if entry.files.elsewhere is not None:
        text = f"{entry.name} runs on another server, which has its own options."
        raise InvalidRequest(text, param="model")
    return entry


@api(post, "/v1/admin/models/load", status_code=202, access="admin", examples=NAMED)
async def load(request: AnyRequest, services: Services, order: LoadOrder) -> ModelWire:
    """Start loading a model, optionally with other options."""
    options = _free_options(services, order.options) if order.options is not None else None
    find = services.registry.find if not options else lambda *named: _local(services, *named)
    name = (await find(order.model, request.auth)).name
    audit(request, "load", model=name)
    async with services.registry.loading(name, options=options):
        return await _model_wire(services, name)


@api(post, "/v1/admin/models/unload", status_code=200, access="admin", examples=NAMED)
async def unload(request: AnyRequest, services: Services, order: UnloadOrder) -> ModelWire:
    """Unload a model after its running answers have ended, and wait for it."""
    name = await services.id_of(order.model, request.auth)
    audit(request, "unload", model=name, force=order.force)
    async with attended(request):
        await services.registry.unload(name, force=order.force)
        return await _model_wire(services, name)


@api(post, "/v1/admin/models/pin", status_code=200, access="admin", examples=NAMED)
async def pin(request: AnyRequest, services: Services, order: PinOrder) -> ModelWire:
    """Pin or unpin a model until the server restarts. A pinned model is never evicted or unloaded
    for idleness.
    """
    name = (await _local(services, order.model, request.auth)).name
    audit(request, "pin" if order.pinned else "unpin", model=name)
    await services.registry.pin(name, pinned=order.pinned)
    return await _model_wire(services, name)


@api(get, "/v1/admin/models/options", access="admin")
async def options(request: AnyRequest, services: Services, model: str = "") -> OptionsWire:
    """List the load options of a model and their current values."""
    entry = await _local(services, model, request.auth)
    chosen = services.registry.status(entry.name).options or entry.options
    hidden = services.catalog.configured_only
    found = [
        OptionWire(name=name, value=getattr(chosen, name), **msgspec.structs.asdict(one))
        for name, one in facts(type(chosen)).items()
        if name not in hidden
    ]
    return OptionsWire(model=entry.name, backend=entry.files.backend, options=found)


@api(post, "/v1/admin/models/estimate", status_code=200, access="admin", examples=NAMED)
async def estimate(request: AnyRequest, services: Services, order: LoadOrder) -> EstimateWire:
    """Estimate what a load with other options would take of each device. Nothing is loaded."""
    entry = await _local(services, order.model, request.auth)
    wanted = _free_options(services, order.options or {})
    proposal = services.registry.overview.proposal(entry, wanted)
    return EstimateWire(model=entry.name, **msgspec.structs.asdict(proposal))


@api(post, "/v1/admin/models/duplicate", status_code=201, access="admin", examples=A_COPY)
async def duplicate(request: AnyRequest, services: Services, order: CopyOrder) -> CopiedWire:
    """Add a model with the same files, another name and other options."""
    entry = await _local(services, order.model, request.auth)
    known = next((one for one in services.config.models if one.name == entry.name), None)
    original = known or ModelConfig(
        name=entry.name,
        path=str(entry.files.path),
        backend=entry.files.backend,
        aliases=entry.aliases,
    )
    copied = replace(
        original,
        name=_free(services, order.name),
        aliases=(),
        preload=False,
        options={**original.options, **_free_options(services, order.options)},
        pinned=original.pinned if order.pinned is UNSET else order.pinned,
        ttl=original.ttl if order.ttl is UNSET else order.ttl,
    )
    written_there = known is not None and known not in services.reloader.originals
    audit(request, "copy", model=entry.name, name=copied.name)
    copy = ModelCopy(entry.name, copied, None if written_there else original)
    await services.reloader.add(copy)
    return CopiedWire(await _model_wire(services, copied.name), written(copied))


@api(post, "/v1/admin/models/add", status_code=201, access="admin")
async def add(request: AnyRequest, services: Services, order: PathOrder) -> CopiedWire:
    """Add a model by its path on the server's disk, below a folder of `console.model_paths`."""
    path = await to_thread.run_sync(_allowed, services.config.console.model_paths, order.path)
    added = ModelConfig(name=_free(services, order.name or path.stem), path=str(path))
    audit(request, "add", model=added.name, path=added.path)
    await services.reloader.add(ModelCopy(added.path, added))
    try:
        await _local(services, added.name, request.auth)
    except ModelUnavailable as error:
        await services.reloader.remove(added.name)
        raise InvalidRequest.at("path", error.message) from error
    return CopiedWire(await _model_wire(services, added.name), written(added))


def _allowed(folders: Sequence[str], given: str) -> Path:
    """The file or folder. Raises InvalidRequest alike where it isn't there and where it isn't below
    one of `folders`. Blocks.
    """
    try:
        path = Path(given).resolve(strict=True)
        if any(path.is_relative_to(Path(one).expanduser().resolve()) for one in folders):
            return path
    except (OSError, ValueError, RuntimeError):  # a zero byte; links in a circle
        pass
    raise InvalidRequest.at("path", "nothing is there below console.model_paths")


def _free(services: Services, name: str) -> str:
    if not (name and name.isprintable() and len(name) <= MOST_CHARACTERS):
        raise InvalidRequest.at("name", f"expected 1 to {MOST_CHARACTERS} characters")
    try:
        with suppress(ModelUnavailable):  # a request may mean something by it all the same
            services.registry.resolve(name)
    except ModelNotFound:
        return name
    raise InvalidRequest.at("name", f"{name!r} is taken already")


@api(post, "/v1/admin/models/remove", status_code=200, access="admin")
async def remove(request: AnyRequest, services: Services, order: ModelOrder) -> RemovedWire:
    """Remove a model that was duplicated or added by its path. Its files are kept."""
    audit(request, "remove copy", model=order.model)
    await services.reloader.remove(order.model)
    return RemovedWire(order.model)


class ParameterWire(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter by our name. `applied` None: known when the model is loaded."""

    name: str
    applied: bool | None
    why: str | None  # it isn't
    default: Any  # of a request that says nothing
    minimum: float | None
    maximum: float | None
    slider: Slider | None  # how people set it; None: it is seldom set


class SamplingWire(msgspec.Struct, frozen=True, kw_only=True):
    """What a request to a model may ask for."""

    model: str
    backend: str
    known: bool  # whether the model is loaded, then it is certain
    parameters: Sequence[ParameterWire]
    logprobs: bool | None
    schemas: bool | None
    drafts: bool | None  # whether it may choose how much is drafted
    undrafted: str | None  # why not
    images: bool
    tools: bool | None
    reasoning: bool | None


@api(get, "/v1/admin/sampling", access="user")
async def sampling(request: AnyRequest, services: Services, model: str = "") -> SamplingWire:
    """List the sampling parameters that a model's engine supports, and why others are not
    supported.
    """
    status = await services.found(model, request.auth)
    known, info, entry = await services.capabilities.of(status), status.info, status.entry
    can = known.capabilities if known else None
    assert entry is not None, "a name that resolves has its files"
    reasons: Mapping[str, str] = unsupported(info, ROWS) if info is not None else {}
    return SamplingWire(
        model=status.id,
        backend=entry.files.backend,
        known=info is not None,
        parameters=[
            ParameterWire(
                name=name,
                applied=None if info is None else name not in reasons,
                why=reasons.get(name),
                default=getattr(entry.usual_sampling, name),
                minimum=bound.low if isinstance(bound := row.bound, Number) else None,
                maximum=bound.high if isinstance(bound, Number) else None,
                slider=row.slider,
            )
            for name, row in ROWS.items()
        ],
        logprobs=True if info is not None else None,
        schemas=info.constrains if info is not None else None,
        drafts=info.drafts if info is not None else None,
        undrafted=undrafted(info) if info is not None else None,
        images="image" in status.modalities,
        tools=None if can is None else "tools" in can,
        reasoning=None if can is None else "reasoning" in can,
    )


class RoomWire(Fit, frozen=True, kw_only=True):
    """Whether a model that isn't downloaded would fit, by its size."""

    device: str | None  # that takes most of it
    needs: int
    speed: float | None  # tokens a second at best, if each reads all weights
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
    """The models of a repository."""

    repository: str
    commit: str
    bytes: int
    quantizations: Sequence[ChoiceWire]


class FoundWire(FoundModel, frozen=True, kw_only=True):
    """A repository that the hub lists, and whether it would fit."""

    fit: RoomWire | None  # None: its size is not known


class SearchWire(msgspec.Struct, frozen=True, kw_only=True):
    """What the hub lists. `suggested`: nothing was asked for; these fit this machine."""

    models: Sequence[FoundWire]
    suggested: bool


class DownloadsWire(msgspec.Struct, frozen=True):
    """All downloads, the newest first."""

    downloads: Sequence[DownloadState]


class UploadedWire(msgspec.Struct, frozen=True, kw_only=True):
    """An uploaded file, and the models in it."""

    name: str
    bytes: int
    models: Sequence[str]


@api(get, "/v1/admin/hub/search", access="admin")
async def search(
    request: AnyRequest, services: Services, words: str = "", format: str = "gguf", sort: str = ""
) -> SearchWire:
    """Search the hub by words. Without words, list what many take now and this machine can hold."""
    wanted = _search(words.strip(), format, sort)
    async with attended(request):
        listed = await services.hub.search(wanted)
        speeds = await services.registry.overview.read_speeds()
    found = []
    for model in listed:
        offered = model.offered(services.catalog)
        fit = None if offered is None else _room(services, offered, speeds)
        found.append(FoundWire(fit=fit, **msgspec.structs.asdict(model)))
    if not wanted.words:
        found = [one for one in found if one.fit and one.fit.verdict != "too_large"]
    return SearchWire(models=found, suggested=not wanted.words)


def _search(words: str, format: str, sort: str) -> Search:
    """Raises InvalidRequest."""
    if len(words) > MOST_CHARACTERS:
        raise InvalidRequest.at("words", f"at most {MOST_CHARACTERS} characters")
    sort = sort or ("downloads" if words else "trending")
    for name, value, known in (("format", format, FORMATS), ("sort", sort, SORTINGS)):
        if value not in known:
            raise InvalidRequest.at(name, f"expected one of {', '.join(known)}")
    return msgspec.convert({"words": words, "format": format, "sort": sort}, Search)


@api(get, "/v1/admin/hub/files", access="admin")
async def files(request: AnyRequest, services: Services, repository: str = "") -> RepositoryWire:
    """List the models in a hub repository and whether each fits in memory."""
    name = hub_id(repository)
    async with attended(request):
        found = await services.hub.listing(name)
        offered = choices(name, found, services.catalog)
        here = await to_thread.run_sync(lambda: [_is_here(services, one) for one in offered])
        speeds = await services.registry.overview.read_speeds()
    return RepositoryWire(
        repository=name,
        commit=found.commit,
        bytes=sum(file.size for file in found.files),
        quantizations=[
            alike(ChoiceWire, one)(bytes=one.size, here=there, fit=_room(services, one, speeds))
            for one, there in zip(offered, here, strict=True)
        ],
    )


def _is_here(services: Services, choice: OfferedModel) -> bool:
    """Whether a download would find it there already. Blocks."""
    try:
        return services.hub.here(hub_model(choice.model), lambda _: False) is not None
    except InvalidRequest:  # no folder, or a name that can't be one
        return False


def _room(services: Services, choice: OfferedModel, speeds: Mapping[str, float]) -> RoomWire:
    """With the engine's defaults, on the devices that they choose."""
    overview = services.registry.overview
    needs = needed(choice, services.config, services.catalog, overview.cards)
    fit, devices = overview.room_for(choice.model, needs), overview.fitting(needs)
    whole, known = sum(devices.values()), devices.keys() <= speeds.keys()
    read = sum(part / speeds[name] for name, part in devices.items()) if known else 0
    return RoomWire(
        device=max(devices, key=lambda name: devices[name], default=None),
        needs=whole,
        speed=whole / choice.size / read if read and choice.size else None,
        **msgspec.structs.asdict(fit),
    )


@api(get, "/v1/admin/downloads", access="admin")
async def downloads(services: Services) -> DownloadsWire:
    """List running and finished downloads."""
    return DownloadsWire(services.downloads.states())


@api(post, "/v1/admin/downloads", status_code=202, access="admin")
async def begin(request: AnyRequest, services: Services, order: ModelOrder) -> DownloadState:
    """Start or resume a download in the background: `owner/name`, or `owner/name:Q4_K_M`."""
    model = hub_id(order.model)
    wanted = to_fetch(model)
    services.hub.root()  # that there is none is known at once
    audit(request, "download", repository=wanted.repository)

    async def fetch(report: Report) -> str:
        return await fetched(services, wanted, report)

    return services.downloads.begin(model, fetch)


@api(post, "/v1/admin/downloads/{id:str}/stop", status_code=200, access="admin")
async def stop(services: Services, id: str) -> DownloadState:
    """Stop a download. Its partial files are kept."""
    return services.downloads.stop(id)


@api(post, "/v1/admin/downloads/{id:str}/resume", status_code=202, access="admin")
async def resume(services: Services, id: str) -> DownloadState:
    """Resume a download."""
    return services.downloads.resume(id)


@api(delete, "/v1/admin/downloads/{id:str}", status_code=200, access="admin")
async def remove_download(services: Services, id: str) -> RemovedWire:
    """Remove a download from the list."""
    services.downloads.remove(id)
    return RemovedWire(id)


@api(put, UPLOAD, status_code=201, request_max_body_size=None, access="admin", takes_file=True)
async def upload(request: AnyRequest, services: Services, name: str) -> UploadedWire:
    """Upload a GGUF file to the folder for downloads."""
    length = request.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit() and len(length) <= 18):
        raise InvalidRequest.at("content-length", "the file's bytes are wanted")
    audit(request, "upload", file=name, bytes=int(length))
    path = await services.uploads.take(name, int(length), request.stream())
    await services.registry.refresh()
    models = [
        one.id for one in services.registry.statuses() if one.files and one.files.path == path
    ]
    return UploadedWire(name=name, bytes=int(length), models=models)
