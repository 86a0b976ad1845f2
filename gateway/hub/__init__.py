"""Models from a hub: what its local cache holds, and downloads. Knows no route and no engine."""

from gateway.hub.cache import CachedFiles
from gateway.hub.hub import Hub
from gateway.hub.named import SCHEME, HubModel, hub_model
from gateway.hub.order import DownloadProgress, Order

__all__ = ["SCHEME", "CachedFiles", "DownloadProgress", "Hub", "HubModel", "Order", "hub_model"]
