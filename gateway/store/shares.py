"""Who gives up what, when more is to be kept than fits. Knows owners and sizes, no tables.

An owner loses nothing to others as long as it has no more than an equal part: whoever has most
gives up first.
"""

from collections.abc import Collection


def share(total: int, others: Collection[int]) -> int:
    """The most that an owner can have of `total`, where the others have so much now."""
    left, owners = total, len(others) + 1
    for size in sorted(others):
        if size * owners > left:
            break  # this owner and all behind it have more than an equal part
        left -= size
        owners -= 1
    return left // owners
