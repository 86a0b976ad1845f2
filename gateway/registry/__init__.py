"""Which models there are, who is in memory, who waits. A lease is the only way to a model."""

from gateway.registry.gauges import Gauge
from gateway.registry.history import History
from gateway.registry.library import ModelEntry, ModelLibrary
from gateway.registry.line import Waiting
from gateway.registry.registry import Registry
from gateway.registry.status import (
    Happening,
    Lease,
    ModelLoaded,
    ModelLoadFailed,
    ModelStatus,
    ModelUnloaded,
    State,
    UnloadReport,
)

__all__ = [
    "Gauge",
    "Happening",
    "History",
    "Lease",
    "ModelEntry",
    "ModelLibrary",
    "ModelLoadFailed",
    "ModelLoaded",
    "ModelStatus",
    "ModelUnloaded",
    "Registry",
    "State",
    "UnloadReport",
    "Waiting",
]
