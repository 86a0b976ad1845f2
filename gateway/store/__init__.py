"""The store of the responses API: responses and conversations, in one SQLite file.

In WAL mode what is committed survives the end of this process, however sudden
(https://sqlite.org/wal.html). Everything belongs to an owner, and is found by its owner alone.
When there is too much, whoever has most gives up the oldest that it has (`shares`).
Knows no API: documents and items are bytes.
"""

from gateway.store.store import Part, Room, Store
from gateway.store.tables import KeptConversation, KeptItem, KeptResponse, KeptTurn

__all__ = ["KeptConversation", "KeptItem", "KeptResponse", "KeptTurn", "Part", "Room", "Store"]
