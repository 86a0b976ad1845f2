"""A store that keeps what a tiny model computes in no time. A tool of tests."""

from collections.abc import Sequence

import msgspec

from backends.contract.beginnings import Taken
from backends.places.kept.store import ModelBeginnings

DEARER = 1_000.0


class DearBeginnings(ModelBeginnings):
    """To it, computing takes a thousand times as long as it did."""

    def wants(self, owner: str, tokens: Sequence[int], size: int, seconds: float) -> bool:
        return super().wants(owner, tokens, size, seconds * DEARER)

    def keep(self, taken: Taken, seconds: float) -> None:
        dear = msgspec.structs.replace(taken, seconds=taken.seconds * DEARER)
        super().keep(dear, seconds)
