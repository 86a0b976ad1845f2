"""Models from a hub: what its local cache holds, and downloads. Knows no route and no engine."""

from gateway.hub.cache import CachedFiles
from gateway.hub.hub import Hub
from gateway.hub.order import Order, Step

__all__ = ["CachedFiles", "Hub", "Order", "Step"]
