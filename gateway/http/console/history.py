"""The gauges of the last hour, in columns. Pure: who samples says what and when."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from gateway.http.console.wire import (
    DeviceColumns,
    DeviceWire,
    GaugesWire,
    HistoryWire,
    SpeedColumns,
    SpeedWire,
)

EVERY = 10.0  # seconds between two samples
KEPT = 360  # samples: an hour
MOST_MODELS = 100

T = TypeVar("T")


class GaugeHistory:
    """One per server."""

    def __init__(self, every: float = EVERY, kept: int = KEPT) -> None:
        self.every = every
        self._samples: deque[GaugesWire] = deque(maxlen=kept)

    def take(self, gauges: GaugesWire) -> None:
        """Keep them, unless the last ones are younger than `every`."""
        late = not self._samples or gauges.time - self._samples[-1].time >= self.every
        went_back = bool(self._samples) and gauges.time < self._samples[-1].time
        if late or went_back:  # clocks are set
            self._samples.append(gauges)

    def columns(self) -> HistoryWire:
        """All that is kept."""
        samples = tuple(self._samples)
        devices = dict.fromkeys(one.device for each in samples for one in each.devices)
        often = Counter(one.id for each in samples for one in each.models)
        models = [name for name, _ in often.most_common(MOST_MODELS)]
        return HistoryWire(
            every=self.every,
            times=[one.time for one in samples],
            devices={name: _device(samples, name) for name in devices},
            models={name: _speed(samples, name) for name in models},
        )


def _device(samples: Sequence[GaugesWire], name: str) -> DeviceColumns:
    rows = [next((one for one in each.devices if one.device == name), None) for each in samples]
    often = Counter(held.id for row in rows if row for held in row.models)
    holders = [holder for holder, _ in often.most_common(MOST_MODELS)]
    return DeviceColumns(
        promised=_column(rows, lambda row: row.promised),
        others=_column(rows, lambda row: row.others),
        process=_column(rows, lambda row: row.process),
        models={holder: [_held(row, holder) for row in rows] for holder in holders},
    )


def _held(row: DeviceWire | None, holder: str) -> int:
    return sum(one.bytes for one in row.models if one.id == holder) if row else 0


def _speed(samples: Sequence[GaugesWire], name: str) -> SpeedColumns:
    rows: list[SpeedWire | None] = [
        next((one for one in each.models if one.id == name), None) for each in samples
    ]
    return SpeedColumns(
        tokens_per_second=_column(rows, lambda row: row.tokens_per_second),
        ttft=_column(rows, lambda row: row.ttft),
        waiting=_column(rows, lambda row: row.waiting),
        in_use=_column(rows, lambda row: row.in_use),
    )


R = TypeVar("R")


def _column(rows: Sequence[R | None], of: Callable[[R], T]) -> list[T | None]:
    return [None if row is None else of(row) for row in rows]
