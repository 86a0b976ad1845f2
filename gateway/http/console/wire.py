"""The console API's structs, as docs/console-api.md describes them. Data alone.

Sizes are bytes, times of day Unix seconds, durations seconds.
"""

from collections.abc import Mapping, Sequence

import msgspec

from backends.protocol import Modality
from gateway.registry import State
from gateway.registry.record import Bytes
from gateway.registry.survey import Fit, Parts


class LoadProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A load on its way. `seconds_left` by the last load; None where there was none."""

    stage: str
    done: int
    total: int
    began_at: float
    seconds_left: float | None


class ModelWire(msgspec.Struct, frozen=True, kw_only=True):
    """One model and what is known of it."""

    id: str
    aliases: Sequence[str]
    state: State
    progress: LoadProgress | None
    why_failed: str | None
    backend: str | None
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
    """What one model holds of a device."""

    id: str
    state: State
    bytes: int
    parts: Parts
    kept_tokens: int | None


class ClaimWire(msgspec.Struct, frozen=True):
    """What a model that is waited for will take."""

    id: str
    bytes: int


class DeviceWire(msgspec.Struct, frozen=True, kw_only=True):
    """One device; None: it can't be measured."""

    device: str
    total: int | None
    budget: int
    promised: int
    free: int
    others: int | None
    process: int | None
    available: int | None
    models: Sequence[HeldWire]
    claims: Sequence[ClaimWire]


class SpeedWire(msgspec.Struct, frozen=True, kw_only=True):
    """What a model does now: tokens per second over the last few."""

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
    """A device's last hour, each as long as the times."""

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
