"""The console's gauges: memory per device and model, speed of each model, and the history of the
last hour in columns (docs/console-api.md).

Speeds are differences of counters, so they don't depend on how often they are requested. Reads the
registry and the activity, changes neither. The caller decides what is sampled and when. Sizes are
bytes, times of day Unix seconds, durations seconds.
"""

import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import anyio
import msgspec

from backends.contract.catalog import CPU
from backends.contract.protocol import Modality, SlotState
from config.values import alike
from gateway.http.books import Activity
from gateway.http.standing import RequestStanding
from gateway.registry import ModelStatus, Registry, State
from gateway.registry.overview import Fit, Measured, Parts
from gateway.registry.protocol import Bytes


class LoadProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A load in progress. `seconds_left` is estimated from the last load; null without one."""

    stage: str
    done: int
    total: int
    began_at: float
    seconds_left: float | None


class ModelWire(msgspec.Struct, frozen=True, kw_only=True):
    """One model and its details."""

    id: str
    aliases: Sequence[str]
    state: State
    progress: LoadProgress | None
    why_failed: str | None
    backend: str | None
    library: str | None = None  # what computes it, and why, where its engine has several
    format: str | None
    architecture: str | None
    remote: bool
    context_length: int | None
    size_bytes: int | None
    modalities: Sequence[Modality]
    capabilities: Sequence[str] | None
    pinned: bool
    preload: bool
    default: bool = False
    copy_of: str | None = None
    same_as: str | None = None  # of a preset: the model that is loaded for it
    cost: Bytes | None
    parts: Parts | None
    measured: bool
    load_seconds: float | None
    missing_bytes: int | None
    memory: str | None
    fit: Fit | None
    in_use: int
    waiting: int
    slots: int | None
    ttl: float | None
    idle_seconds: float | None
    expires_at: float | None
    loaded_at: float | None
    file: str | None


class HeldWire(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of a device that one model uses."""

    id: str
    state: State
    bytes: int
    parts: Parts
    kept_tokens: int | None


class ClaimWire(msgspec.Struct, frozen=True):
    """The memory that a requested model needs."""

    id: str
    bytes: int


class DeviceWire(msgspec.Struct, frozen=True, kw_only=True):
    """One device. Null: it can't be measured. `kept`: of `free`, what conversations have that no
    slot holds; models get it when they need it.
    """

    device: str
    total: int | None
    budget: int
    promised: int
    free: int
    kept: int
    others: int | None
    process: int | None
    available: int | None
    models: Sequence[HeldWire]
    claims: Sequence[ClaimWire]


class SpeedWire(msgspec.Struct, frozen=True, kw_only=True):
    """A model's current speed: tokens per second over the last few seconds."""

    id: str
    in_use: int
    waiting: int
    tokens_per_second: float
    prompt_tokens_per_second: float
    ttft: float | None


class GaugesWire(msgspec.Struct, frozen=True, kw_only=True):
    """All numbers at one moment."""

    time: float
    devices: Sequence[DeviceWire]
    models: Sequence[SpeedWire]
    waiting: int
    in_use: int
    tokens_per_second: float


class DeviceColumns(msgspec.Struct, frozen=True, kw_only=True):
    """A device's last hour. Each column has as many entries as the times."""

    promised: Sequence[int | None]
    others: Sequence[int | None]
    process: Sequence[int | None]
    models: Mapping[str, Sequence[int]]


class SpeedColumns(msgspec.Struct, frozen=True, kw_only=True):
    """A model's last hour."""

    tokens_per_second: Sequence[float | None]
    ttft: Sequence[float | None]
    waiting: Sequence[int | None]
    in_use: Sequence[int | None]


class HistoryWire(msgspec.Struct, frozen=True, kw_only=True):
    """The last hour in columns."""

    every: float
    times: Sequence[float]
    devices: Mapping[str, DeviceColumns]
    models: Mapping[str, SpeedColumns]


PATIENCE = 0.1  # seconds for engines to say what their caches hold
WINDOW = 3.0  # seconds over which speeds are taken


ANSWERS, PROMPTS = range(2)  # tokens of answers, and of prompts that were computed
Totals: TypeAlias = Counter[tuple[str, int]]  # by model, of either


class TokenTotals:
    """Tokens since the server began, out of what the requests say now and said the last time."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, int]] = {}  # by request, those still listed
        self._all: Totals = Counter()
        self.ttft: dict[str, float] = {}  # of each model's last answer

    def take(self, standings: Iterable[RequestStanding]) -> Totals:
        """The totals now. `standings`: the newest first, as they are listed."""
        seen: dict[int, tuple[int, int]] = {}
        first: dict[str, float] = {}
        for request in standings:
            seen[request.number] = now = _counted(request)
            before = self._seen.get(request.number, (0, 0))
            for kind in (ANSWERS, PROMPTS):
                self._all[request.model, kind] += max(0, now[kind] - before[kind])
            if request.ttft is not None:
                first.setdefault(request.model, request.ttft)
        self._seen = seen
        self.ttft |= first
        return self._all.copy()


def _counted(request: RequestStanding) -> tuple[int, int]:
    """A prompt counts when its answer begins: only then the number of cached tokens is known."""
    prompts = request.prompt_tokens - request.cached_tokens if request.ttft is not None else 0
    return request.completion_tokens, prompts


class GaugeSampler(msgspec.Struct):
    """Makes gauges. One per server."""

    registry: Registry
    activity: Activity
    _totals: TokenTotals = msgspec.field(default_factory=TokenTotals)
    _kept: dict[str, int] = {}
    _before: deque[tuple[float, Totals]] = msgspec.field(default_factory=deque)

    async def sample(self) -> GaugesWire:
        """As it is now."""
        measured = await self.registry.overview.measured()
        statuses = [status for status in self.registry.statuses() if _is_active(status)]
        await self._sample_caches(statuses)
        speeds = self._speeds(statuses, time.monotonic())
        return GaugesWire(
            time=time.time(),
            devices=self._devices(measured, statuses),
            models=speeds,
            waiting=sum(one.waiting for one in statuses if not one.is_replica),
            in_use=sum(one.in_use for one in statuses if not one.is_replica),
            tokens_per_second=sum(speed.tokens_per_second for speed in speeds),
        )

    async def _sample_caches(self, statuses: Sequence[ModelStatus]) -> None:
        """Each engine answers between two of its steps; for one that takes longer the previous
        figures are used.
        """
        with anyio.move_on_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                for status in statuses:
                    tasks.start_soon(self._sample_cache, status)
        there = {status.id for status in statuses if status.slots is not None}
        self._kept = {name: kept for name, kept in self._kept.items() if name in there}

    async def _sample_cache(self, status: ModelStatus) -> None:
        if status.slots is None:
            return
        try:
            states = await status.slots.states()
        except Exception:  # noqa: BLE001 - an engine that closes, or broke, may raise anything
            return
        if (kept := kept_tokens(states)) is not None:
            self._kept[status.id] = kept

    def _speeds(self, statuses: Sequence[ModelStatus], now: float) -> list[SpeedWire]:
        """By the totals now and those of about `WINDOW` ago."""
        totals = self._totals.take(standing for _, standing in self.activity.all())
        while len(self._before) > 1 and now - self._before[1][0] >= WINDOW:
            self._before.popleft()
        self._before.append((now, totals))
        then, before = self._before[0]
        over, grown = now - then or 1.0, totals - before
        return [
            alike(SpeedWire, one)(
                tokens_per_second=grown[one.id, ANSWERS] / over,
                prompt_tokens_per_second=grown[one.id, PROMPTS] / over,
                ttft=self._totals.ttft.get(one.id),
            )
            for one in statuses
        ]

    def _devices(self, measured: Measured, statuses: Iterable[ModelStatus]) -> Sequence[DeviceWire]:
        """The devices that models may have, or that there are."""
        ledger = self.registry.overview.ledger()
        states = {status.id: status.state for status in statuses}

        def shown(name: str) -> DeviceWire:
            held = [part for part in ledger.held if part.device == name]
            promised, budget = sum(part.size for part in held), ledger.budgets.get(name, 0)
            total, available = measured.total.get(name), measured.available.get(name)
            process = measured.process.get(name)
            known = total is not None and available is not None and process is not None
            return DeviceWire(
                device=name,
                total=total,
                budget=budget,
                promised=promised,
                free=budget - promised,
                kept=ledger.kept if name == CPU else 0,
                others=max(0, (total or 0) - (available or 0) - (process or 0)) if known else None,
                process=process,
                available=available,
                models=[
                    HeldWire(
                        id=part.model,
                        # where it is gone from the lists, not from memory
                        state=states.get(part.model, "draining"),
                        bytes=part.size,
                        parts=part.parts,
                        kept_tokens=self._kept.get(part.model),
                    )
                    for part in held
                ],
                claims=[
                    ClaimWire(one.model, one.size) for one in ledger.claimed if one.device == name
                ],
            )

        return [shown(name) for name in dict.fromkeys((*ledger.budgets, *measured.total))]


def _is_active(status: ModelStatus) -> bool:
    there = status.state in ("loading", "loaded", "draining")
    return there or bool(status.waiting or status.in_use)


def kept_tokens(states: Sequence[SlotState]) -> int | None:
    """Tokens of conversations that have no running request; None where the engine doesn't report
    it.
    """
    cells = [slot.cells for slot in states if slot.task is None]
    known = [count for count in cells if count is not None]
    return sum(known) if len(known) == len(cells) and states else None


EVERY = 10.0  # seconds between two samples
KEPT = 360  # samples: an hour
MOST_MODELS = 100


class GaugeHistory:
    """One per server."""

    def __init__(self) -> None:
        self._samples: deque[GaugesWire] = deque(maxlen=KEPT)

    def take(self, gauges: GaugesWire) -> None:
        """Keep them, unless the last ones are younger than `EVERY`."""
        late = not self._samples or gauges.time - self._samples[-1].time >= EVERY
        went_back = bool(self._samples) and gauges.time < self._samples[-1].time
        if late or went_back:  # clocks are set
            self._samples.append(gauges)

    def columns(self) -> HistoryWire:
        """All that is kept."""
        samples = tuple(self._samples)
        devices = dict.fromkeys(device.device for sample in samples for device in sample.devices)
        often = Counter(model.id for sample in samples for model in sample.models)
        models = [name for name, _ in often.most_common(MOST_MODELS)]
        return HistoryWire(
            every=EVERY,
            times=[sample.time for sample in samples],
            devices={name: _columns_of(samples, name) for name in devices},
            models={name: _speed(samples, name) for name in models},
        )


def _columns_of(samples: Sequence[GaugesWire], name: str) -> DeviceColumns:
    rows = [
        next((device for device in sample.devices if device.device == name), None)
        for sample in samples
    ]
    often = Counter(held.id for row in rows if row for held in row.models)
    holders = [holder for holder, _ in often.most_common(MOST_MODELS)]
    return DeviceColumns(
        **{name: _column(rows, name) for name in ("promised", "others", "process")},
        models={holder: [_held(row, holder) for row in rows] for holder in holders},
    )


def _held(row: DeviceWire | None, holder: str) -> int:
    return sum(model.bytes for model in row.models if model.id == holder) if row else 0


def _speed(samples: Sequence[GaugesWire], name: str) -> SpeedColumns:
    rows: list[SpeedWire | None] = [
        next((model for model in sample.models if model.id == name), None) for sample in samples
    ]
    return SpeedColumns(**{name: _column(rows, name) for name in SpeedColumns.__struct_fields__})


def _column(rows: Sequence[msgspec.Struct | None], name: str) -> list[Any]:
    return [None if row is None else getattr(row, name) for row in rows]
