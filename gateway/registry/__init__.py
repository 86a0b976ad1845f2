"""The registry: models, loads and unloads, and the lines for them. A lease is the only way to a
model.
"""

from gateway.registry.entry import ModelEntry
from gateway.registry.gauges import Gauge
from gateway.registry.history import History
from gateway.registry.library import CacheOfModels, ModelLibrary
from gateway.registry.line import Waiting
from gateway.registry.reconfiguration import ModelChanges, PreparedModels
from gateway.registry.registry import Registry
from gateway.registry.status import (
    Lease,
    ModelEvent,
    ModelLoaded,
    ModelLoadFailed,
    ModelProgressed,
    ModelStatus,
    ModelUnloaded,
    State,
    UnloadReport,
    require_task,
)
