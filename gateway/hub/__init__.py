"""Models from a hub: what its local cache holds, and downloads. Knows no route and no engine."""

from gateway.hub.cache import CachedFiles, CachedModels
from gateway.hub.hub import Hub, cached_models
from gateway.hub.named import SCHEME, HubModel, hub_model
from gateway.hub.order import DownloadProgress, Order

__all__ = [
    "SCHEME",
    "CachedFiles",
    "CachedModels",
    "DownloadProgress",
    "Hub",
    "HubModel",
    "Order",
    "cached_models",
    "hub_model",
]
