"""The signatures of thinking blocks. Anthropic's models take their own thinking back only with the
signature it came with, which no other API has a field for; so they are kept here, by the thinking.

What is forgotten, or was thought elsewhere, is left out of the conversation.
"""

import hashlib
from collections import OrderedDict

KEPT = 4_096  # signatures
MOST_BYTES = 16 << 20  # of all signatures
MOST_SIGNATURE = 1 << 20  # characters of one; longer ones are not kept


class Signatures:
    """One upstream's; the last used are kept."""

    def __init__(self, most: int = KEPT, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._left = most_bytes
        self._kept: OrderedDict[bytes, str] = OrderedDict()

    def keep(self, digest: bytes, signature: str) -> None:
        """`digest`: of the thinking, see `digest_of`."""
        if not signature or len(signature) > MOST_SIGNATURE:
            return
        self._left += len(self._kept.pop(digest, ""))
        self._kept[digest] = signature
        self._left -= len(signature)
        while self._left < 0 or len(self._kept) > self._most:
            _, forgotten = self._kept.popitem(last=False)
            self._left += len(forgotten)

    def of(self, thinking: str) -> str | None:
        """The signature that `thinking` came with."""
        digest = digest_of(thinking)
        if digest in self._kept:
            self._kept.move_to_end(digest)
        return self._kept.get(digest)


def digest_of(thinking: str) -> bytes:
    """Sixteen bytes that stand for it."""
    return hasher(thinking).digest()


def hasher(thinking: str = "") -> "hashlib.blake2b":
    """Takes thinking as it comes."""
    return hashlib.blake2b(thinking.encode(errors="replace"), digest_size=16)
