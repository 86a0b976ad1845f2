"""Models from a hub: what its local cache holds, and downloads. Knows no route and no engine."""

from gateway.hub.cache import CachedFiles
from gateway.hub.hub import Hub
from gateway.hub.named import SCHEME, Named, named
from gateway.hub.order import Order, Step

__all__ = ["SCHEME", "CachedFiles", "Hub", "Named", "Order", "Step", "named"]
