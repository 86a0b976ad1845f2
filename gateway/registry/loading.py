"""Plans loads: each model's options and the memory it will take; and the loaders."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeAlias

import msgspec
from anyio import to_thread

from backends.catalog import BACKENDS, Catalog, ModelFiles
from backends.errors import BackendError, BackendMissing
from backends.protocol import MemoryNeed, Report
from backends.remote import Container
from backends.upstream.fleet import Fleet
from config.check import convert
from config.engines import EngineOptions
from config.errors import ConfigError, Source
from gateway.errors import InvalidRequest, ModelUnavailable
from gateway.registry.history import History
from gateway.registry.library import ModelEntry
from gateway.registry.memory import corrected, shares
from gateway.registry.record import Bytes, Model

# ------------------------------------------------------------------------------------------- loader
# How models get into memory: through their backends' modules, which are imported late.
#
# It chooses no model and no moment.


class Loader(Protocol):
    """What the registry wants of the backends."""

    def estimate(self, files: ModelFiles, options: EngineOptions) -> MemoryNeed:
        """What the model will take, by its headers. Raises BackendError."""
        ...

    def placement(
        self, files: ModelFiles, options: EngineOptions, cards: Mapping[str, int]
    ) -> Mapping[str, float]:
        """See `backends.catalog.FilesModule.placement`."""
        ...

    async def load(self, files: ModelFiles, options: EngineOptions, report: Report) -> Container:
        """Load off the event loop. Raises LoadFailed; leaves nothing behind then, or cancelled."""
        ...


class CatalogLoader:
    """Each model with its own backend, as the catalog has them."""

    def __init__(self, catalog: Catalog = BACKENDS) -> None:
        self._catalog = catalog

    def estimate(self, files: ModelFiles, options: EngineOptions) -> MemoryNeed:
        return self._catalog[files.backend].files.estimate(files, options)

    def placement(
        self, files: ModelFiles, options: EngineOptions, cards: Mapping[str, int]
    ) -> Mapping[str, float]:
        return self._catalog[files.backend].files.placement(options, cards)

    async def load(self, files: ModelFiles, options: EngineOptions, report: Report) -> Container:
        backend = self._catalog[files.backend]
        try:  # the first import of an engine takes seconds
            container = await to_thread.run_sync(lambda: backend.container)
        except ImportError as error:
            raise BackendMissing(f"{backend.name} can't be used here: {error}") from error
        load = container.load if files.task == "generate" else container.load_encoder
        return await load(files, options, report)


NOTHING = MemoryNeed(weights=0, cache=0, engine=0)


class FleetLoader:
    """`local` loads what lies here; for another server's model, `fleet` checks that a replica is
    up, and a Roundhouse loads it there. A `Loader`.
    """

    def __init__(self, local: Loader, fleet: Fleet) -> None:
        self._local = local
        self._fleet = fleet

    def estimate(self, files: ModelFiles, options: EngineOptions) -> MemoryNeed:
        return NOTHING if files.remote else self._local.estimate(files, options)

    def placement(
        self, files: ModelFiles, options: EngineOptions, cards: Mapping[str, int]
    ) -> Mapping[str, float]:
        return {} if files.remote else self._local.placement(files, options, cards)

    async def load(self, files: ModelFiles, options: EngineOptions, report: Report) -> Container:
        if files.remote is not None:
            return await self._fleet.load(files.remote, report)
        return await self._local.load(files, options, report)


REMOTE_BACKOFF = 1.0  # seconds after a load that only checked the upstream
SLOTS_PER_STREAM = 2  # leases per job that an engine computes at once: the next one stands ready
Obstacle: TypeAlias = Callable[[str, Bytes], str | None]
READING_SPEED = 1e9  # bytes a second; a guess at a load's time before the first was measured


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A model as it is to be loaded."""

    entry: ModelEntry
    options: EngineOptions  # the entry's own, or what an administrator asked for
    estimate: MemoryNeed
    need: MemoryNeed  # the estimate, or what an earlier load took
    measured: bool
    devices: Bytes  # `need` per device
    load_seconds: float  # of the last load, or a guess


class LoadPlanner:
    """`cards`: this machine's, with their bytes, in CUDA's order. `obstacle`: why so many bytes per
    device can never be had for a model, or None.
    """

    def __init__(self, loader: Loader, history: History, cards: Bytes, obstacle: Obstacle) -> None:
        self._loader = loader
        self._history = history
        self._cards = cards
        self._obstacle = obstacle
        self._options: dict[str, EngineOptions] = {}
        self._plan: dict[str, LoadPlan] = {}
        self._pinned: dict[str, bool] = {}  # in place of what entries say

    @property
    def cards(self) -> Bytes:
        """This machine's, with their bytes, in CUDA's order."""
        return self._cards

    def plan(self, entry: ModelEntry) -> LoadPlan:
        """What a load of `entry` takes now. Raises ModelUnavailable where it can't be estimated."""
        options = self.options(entry)
        known = self._plan.get(entry.name)
        if known is None or known.entry is not entry or known.options != options:
            known = self._plan[entry.name] = self._estimated(entry, options)
        if self._is_refused_by_measurement(known):
            self.forget_measurements([entry])
        return self._plan[entry.name]

    def _is_refused_by_measurement(self, plan: LoadPlan) -> bool:
        """Whether only an earlier measurement keeps it from being loaded."""
        return (
            plan.measured
            and self._obstacle(plan.entry.name, plan.devices) is not None
            and self._obstacle(plan.entry.name, self._unmeasured(plan).devices) is None
        )

    def _unmeasured(self, plan: LoadPlan) -> LoadPlan:
        """By its estimate alone, so that its next load is measured again."""
        return msgspec.structs.replace(
            plan,
            need=plan.estimate,
            measured=False,
            devices=self._spread(plan.entry.files, plan.options, plan.estimate),
        )

    def forget_measurements(self, entries: Iterable[ModelEntry]) -> tuple[str, ...]:
        """Forget the measurements of `entries`; returns whose were known."""
        found = tuple(entry for entry in entries if self._history.forget_sizes(entry.files.path))
        for entry in found:
            if (known := self._plan.get(entry.name)) is not None:
                self._plan[entry.name] = self._unmeasured(known)
        return tuple(entry.name for entry in found)

    def known(self, entry: ModelEntry) -> LoadPlan | None:
        """As `plan`, but None where it can't be estimated."""
        try:
            return self.plan(entry)
        except ModelUnavailable:
            return None

    def planned(self, name: str) -> LoadPlan:
        """The plan that was last made known to the scheduler under this name."""
        return self._plan[name]

    def model(self, entry: ModelEntry) -> Model:
        """`entry` as the scheduler needs it. Raises as `plan`."""
        plan = self.plan(entry)
        return Model(
            name=entry.name,
            need=plan.devices,
            load_seconds=plan.load_seconds,
            slots=plan.options.max_concurrent * (1 if entry.files.remote else SLOTS_PER_STREAM),
            backoff=REMOTE_BACKOFF if entry.files.remote else None,
            pinned=self._pinned.get(entry.name, entry.pinned),
            ttl=entry.ttl,
        )

    def pin(self, name: str, *, pinned: bool) -> None:
        """Whatever its entry says, from now on."""
        self._pinned[name] = pinned

    def last_load(self, plan: LoadPlan) -> float | None:
        """Seconds that the last load of this model with these options took."""
        last = self._history.get(plan.entry.files, plan.options)
        return last.load_seconds if last else None

    def options(self, entry: ModelEntry) -> EngineOptions:
        """The options in force."""
        return self._options.get(entry.name, entry.options)

    def proposed(self, entry: ModelEntry, changes: Mapping[str, Any]) -> LoadPlan:
        """The plan with `changes` over the entry's options; nothing is in force yet.

        Raises InvalidRequest, naming the option at fault, and as `plan`.
        """
        kind = type(entry.options)
        try:
            new = convert(dict(changes), kind, Source(entry.name), path="$.options")
        except ConfigError as error:
            field = error.path.removeprefix("$.options").lstrip(".")
            text = f"{entry.files.backend}: {field}: {error.problem}"
            raise InvalidRequest(text, param=field or "options") from None
        values = {name: getattr(new, name) for name in changes}
        return self._estimated(entry, msgspec.structs.replace(entry.options, **values))

    def adopt(self, plan: LoadPlan) -> None:
        """Put the options of a proposed plan in force."""
        self._options[plan.entry.name] = plan.options
        self._plan[plan.entry.name] = plan

    def forget_options(self, name: str) -> None:
        """Back to the entry's own."""
        self._options.pop(name, None)

    def arrived(self, plan: LoadPlan, seconds: float, measured: int | None) -> Bytes:
        """What a model just loaded holds. Its next load is planned with these figures."""
        need = plan.need if measured is None else corrected(plan.estimate, measured)
        devices = self._spread(plan.entry.files, plan.options, need)
        self._plan[plan.entry.name] = msgspec.structs.replace(
            plan,
            need=need,
            measured=plan.measured or measured is not None,
            devices=devices,
            load_seconds=seconds,
        )
        return devices

    def _estimated(self, entry: ModelEntry, options: EngineOptions) -> LoadPlan:
        try:
            estimate = self._loader.estimate(entry.files, options)
        except (BackendError, OSError, ValueError) as error:
            raise ModelUnavailable(f"{entry.name}: {error}", param="model") from error
        last = self._history.get(entry.files, options)
        size = last.size if last else None
        need = corrected(estimate, size)
        return LoadPlan(
            entry=entry,
            options=options,
            estimate=estimate,
            need=need,
            measured=size is not None,
            devices=self._spread(entry.files, options, need),
            load_seconds=last.load_seconds if last else entry.files.size_bytes / READING_SPEED,
        )

    def _spread(self, files: ModelFiles, options: EngineOptions, need: MemoryNeed) -> Bytes:
        return shares(need, self._loader.placement(files, options, self._cards))
