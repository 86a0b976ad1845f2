"""Models from a hub: what its local cache holds, and downloads. Knows no route and no engine."""

from gateway.hub.cache import CachedFiles, CachedModels
from gateway.hub.downloads import Downloads, DownloadState
from gateway.hub.hub import Hub, Uploads, cached_models
from gateway.hub.repository import (
    DownloadProgress,
    Fits,
    HubModel,
    OfferedModel,
    Order,
    choices,
    fits_in,
    hub_model,
    needed,
)
from gateway.hub.search import FORMATS, SORTINGS, FoundModel, Search

__all__ = [
    "FORMATS",
    "SORTINGS",
    "CachedFiles",
    "CachedModels",
    "DownloadProgress",
    "DownloadState",
    "Downloads",
    "Fits",
    "FoundModel",
    "Hub",
    "HubModel",
    "OfferedModel",
    "Order",
    "Search",
    "Uploads",
    "cached_models",
    "choices",
    "fits_in",
    "hub_model",
    "needed",
]
