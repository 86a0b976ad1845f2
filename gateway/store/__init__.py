"""The store of the responses API: responses and conversations, in one SQLite file.

In WAL mode what is committed survives the end of this process, however sudden
(https://sqlite.org/wal.html). Everything belongs to an owner, and is found by its owner alone.
Knows no API: documents and items are bytes.
"""

from gateway.store.store import Store
from gateway.store.tables import KeptConversation, KeptItem, KeptResponse

__all__ = ["KeptConversation", "KeptItem", "KeptResponse", "Store"]
