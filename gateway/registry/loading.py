"""Plans loads: each model's options and the memory it will take; and the loaders."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec
from anyio import to_thread

from backends.catalog import BACKENDS, Cards, Catalog, ModelFiles, Placement
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

    def placements(
        self, files: ModelFiles, options: EngineOptions, cards: Cards
    ) -> Sequence[Placement]:
        """See `backends.catalog.FilesModule.placements`."""
        ...

    def placed(
        self, files: ModelFiles, options: EngineOptions, placement: Placement, cards: Cards
    ) -> EngineOptions:
        """See `backends.catalog.FilesModule.placed`."""
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

    def placements(
        self, files: ModelFiles, options: EngineOptions, cards: Cards
    ) -> Sequence[Placement]:
        return self._catalog[files.backend].files.placements(files, options, cards)

    def placed(
        self, files: ModelFiles, options: EngineOptions, placement: Placement, cards: Cards
    ) -> EngineOptions:
        return self._catalog[files.backend].files.placed(options, placement, cards)

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

    def placements(
        self, files: ModelFiles, options: EngineOptions, cards: Cards
    ) -> Sequence[Placement]:
        return ({},) if files.remote else self._local.placements(files, options, cards)

    def placed(
        self, files: ModelFiles, options: EngineOptions, placement: Placement, cards: Cards
    ) -> EngineOptions:
        return options if files.remote else self._local.placed(files, options, placement, cards)

    async def load(self, files: ModelFiles, options: EngineOptions, report: Report) -> Container:
        if files.remote is not None:
            return await self._fleet.load(files.remote, report)
        return await self._local.load(files, options, report)


REMOTE_BACKOFF = 1.0  # seconds after a load that only checked the upstream
SLOTS_PER_STREAM = 2  # leases per job that an engine computes at once: the next one stands ready
Obstacle: TypeAlias = Callable[[str, Sequence[Bytes]], str | None]
READING_SPEED = 1e9  # bytes a second; a guess at a load's time before the first was measured


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A model as it is to be loaded."""

    entry: ModelEntry
    options: EngineOptions  # the entry's own, or what an administrator asked for
    estimate: MemoryNeed
    need: MemoryNeed  # the estimate, or what an earlier load took
    measured: bool
    placements: tuple[Placement, ...]  # the ways in which it can lie, the best first
    load_seconds: float  # of the last load, or a guess

    @property
    def needs(self) -> tuple[Bytes, ...]:
        """`need` per device, in each of these ways."""
        return tuple(shares(self.need, placement) for placement in self.placements)

    def at(self, devices: Bytes) -> "LoadPlan":
        """As it lies on `devices`, and in no other way."""
        there = [one for one in self.placements if shares(self.need, one).keys() == devices.keys()]
        return msgspec.structs.replace(self, placements=tuple(there[:1]) or self.placements[:1])


class LoadPlanner:
    """`cards`: this machine's. `obstacle`: why a model can have none of the rooms that it needs one
    of, or None.
    """

    def __init__(self, loader: Loader, history: History, cards: Cards, obstacle: Obstacle) -> None:
        self._loader = loader
        self._history = history
        self._cards = cards
        self._obstacle = obstacle
        self._options: dict[str, EngineOptions] = {}
        self._plan: dict[str, LoadPlan] = {}
        self._pinned: dict[str, bool] = {}  # in place of what entries say

    @property
    def cards(self) -> Cards:
        """This machine's."""
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
            and self._obstacle(plan.entry.name, plan.needs) is not None
            and self._obstacle(plan.entry.name, self._unmeasured(plan).needs) is None
        )

    def _unmeasured(self, plan: LoadPlan) -> LoadPlan:
        """By its estimate alone, so that its next load is measured again."""
        return msgspec.structs.replace(plan, need=plan.estimate, measured=False)

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
        need, *others = plan.needs
        return Model(
            name=entry.name,
            need=need,
            others=tuple(others),
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

    def ordered(self, plan: LoadPlan) -> EngineOptions:
        """The options that have the model lie in the first of the plan's ways."""
        files = plan.entry.files
        return self._loader.placed(files, plan.options, plan.placements[0], self._cards)

    def arrived(self, plan: LoadPlan, seconds: float, measured: int | None) -> Bytes:
        """What a model just loaded holds, in the one way of `plan`. Its next load is planned with
        these figures.
        """
        need = plan.need if measured is None else corrected(plan.estimate, measured)
        loaded = msgspec.structs.replace(
            plan,
            need=need,
            measured=plan.measured or measured is not None,
            load_seconds=seconds,
        )
        everywhere = self._placements(plan.entry, plan.options)
        self._plan[plan.entry.name] = msgspec.structs.replace(loaded, placements=everywhere)
        return loaded.needs[0]

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
            placements=self._placements(entry, options),
            load_seconds=last.load_seconds if last else entry.files.size_bytes / READING_SPEED,
        )

    def _placements(self, entry: ModelEntry, options: EngineOptions) -> tuple[Placement, ...]:
        return tuple(self._loader.placements(entry.files, options, self._cards))
