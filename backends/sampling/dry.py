"""DRY: a penalty on the token that would continue a repetition, the longer the repetition the
higher.

After p-e-w's proposal (text-generation-webui #5677): a match of n tokens between the text's end and
an earlier place costs that place's next token multiplier * base ** (n - allowed_length). A match
doesn't reach over a sequence breaker. Pure Python on one job's tokens; knows no tensors.
"""

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from backends.protocol import Sampling

_LONGEST = 50  # tokens compared; a longer match would overflow the penalty long before


class Dry:
    """One job's DRY parameters."""

    def __init__(self, sampling: Sampling, breakers: AbstractSet[int]) -> None:
        self._sampling = sampling
        self._breakers = breakers

    def penalties(self, tokens: Sequence[int]) -> dict[int, float]:
        """What to subtract from which token's logit after `tokens`."""
        sampling = self._sampling
        window = tokens[-sampling.dry_range :] if sampling.dry_range > 0 else tokens
        return {
            token: self._cost(length - sampling.dry_allowed_length)
            for token, length in self._matches(window).items()
            if length >= sampling.dry_allowed_length
        }

    def _cost(self, excess: int) -> float:
        """Without limit where it is more than a float holds."""
        try:
            return float(self._sampling.dry_multiplier * self._sampling.dry_base**excess)
        except OverflowError:
            return math.copysign(math.inf, self._sampling.dry_multiplier)

    def _matches(self, window: Sequence[int]) -> dict[int, int]:
        """Each token that continues an earlier copy of the window's end, with the longest copy's
        length.
        """
        longest: dict[int, int] = {}
        limit = self._since_breaker(window)
        last = len(window) - 1
        if not limit:
            return longest
        for at in range(last):
            if window[at] != window[last] or window[at + 1] in self._breakers:
                continue
            length = 1
            while length < limit and length <= at and window[at - length] == window[last - length]:
                length += 1
            longest[window[at + 1]] = max(longest.get(window[at + 1], 0), length)
        return longest

    def _since_breaker(self, window: Sequence[int]) -> int:
        for count in range(min(len(window), _LONGEST)):
            if window[-1 - count] in self._breakers:
                return count
        return min(len(window), _LONGEST)
