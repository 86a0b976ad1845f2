"""Models from a hub: what lies in its local cache, and downloads. Knows no HTTP route and no engine."""

from gateway.hub.cache import CachedFiles
from gateway.hub.hub import Hub
from gateway.hub.order import Order, Step

__all__ = ["CachedFiles", "Hub", "Order", "Step"]
