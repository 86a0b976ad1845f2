"""How many rows of how many cells the KV cache should have. Pure: decides, touches nothing."""

import msgspec

BLOCK = 64  # cells; capacities are multiples of it
GENEROSITY = 1.5  # a grid that must grow grows by this much, so that it seldom has to


class Size(msgspec.Struct, frozen=True):
    """`rows` sequences of up to `capacity` tokens."""

    rows: int
    capacity: int


class Limit(msgspec.Struct, frozen=True):
    """What the grid may take: `rows` at most, `tokens` cells in all, `length` cells in one row."""

    rows: int
    tokens: int
    length: int


def fit(present: Size, rows: int, cells: int, limit: Limit) -> Size | None:
    """The size with room for `rows` sequences, the longest of `cells` tokens; `present` if that
    will do.

    None: they don't fit together. One row of `limit.length` always fits.
    """
    if present.rows >= rows and present.capacity >= cells:
        return present
    affordable = max(limit.tokens, limit.length) // rows
    if rows > limit.rows or cells > affordable:
        return None
    generous = -(-int(cells * GENEROSITY) // BLOCK) * BLOCK
    capacity = max(cells, min(generous, affordable, limit.length))
    return Size(rows=max(rows, min(limit.rows, limit.tokens // capacity)), capacity=capacity)
