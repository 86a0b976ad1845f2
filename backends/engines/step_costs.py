"""What steps cost that have drafts in them, and what they bring: how often drafted tokens are drawn
(`Acceptance`), what steps of so many tokens take (`StepCosts`), what drafts may lose meanwhile
(`Allowance`), and so which of several drafts makes most tokens a second (`StepTerms.best`).

All of it is pure: it knows no engine, no clock and no text. Times are seconds.
"""

from bisect import bisect
from collections.abc import Iterable, Sequence

import msgspec

MOST = 31  # tokens drafted for a job at a time: a pass of 32
TOGETHER = 32  # for all jobs of a step

TRUSTED = 6.0  # tokens as which a prior counts


class Acceptance:
    """How many of the drafted tokens are drawn, by what is known of them."""

    def __init__(self, priors: Sequence[float]) -> None:
        self._priors = priors
        self._counts = [[0.0, 0.0] for _ in priors]  # drawn, and verified

    def of(self, sureness: int) -> float:
        """How likely the next token of such a draft is drawn, where those before it were."""
        drawn, verified = self._counts[sureness]
        return (drawn + TRUSTED * self._priors[sureness]) / (verified + TRUSTED)

    def count(self, sureness: int, drafted: int, drawn: int) -> None:
        """The first that isn't drawn is verified, too; those behind it aren't."""
        counts = self._counts[sureness]
        counts[0] += drawn
        counts[1] += drawn + (drawn < drafted)

    def fade(self) -> None:
        """Half of what is known counts no more."""
        self._counts = [[count / 2 for count in counts] for counts in self._counts]


HOPE = 0.15  # of what tokens cost so far: what those beyond all that is known may cost
REACH = 4  # times the largest step that is known: the largest one to be tried
FASTER, SLOWER = 0.4, 0.08  # weights of a step that took less than is known, and more
SURE_OF = 3  # steps of a size by which it is known


class KnownCost(msgspec.Struct):
    """Of steps of one size: `seconds` that they take, known from so many `steps`."""

    seconds: float
    steps: int = 1


class StepCosts(msgspec.Struct, eq=False):
    """What steps take, by the tokens in them.

    A pass of two tokens may take as long as one of eight: what multiplies matrices is another
    program there, which computes them together in tiles. So what is larger than all that was
    measured is hoped to cost little, and is measured where that would pay.

    What took less counts more: of a machine that others use too, the time that a step takes is one
    that it took when it was let.
    """

    _known: dict[int, KnownCost] = {}
    _rows: list[int] = []  # ascending

    def measured(self, rows: int, seconds: float) -> None:
        """A step of `rows` tokens took `seconds`."""
        known = self._known.get(rows)
        if known is None:
            self._known[rows] = KnownCost(seconds)
            self._rows = sorted(self._known)
            return
        weight = FASTER if seconds < known.seconds else SLOWER
        known.seconds += weight * (min(seconds, 4 * known.seconds) - known.seconds)
        known.steps += 1

    def forget(self) -> None:
        """Now and then: what isn't measured any more may be otherwise by now."""
        self._known.clear()
        self._rows.clear()

    def sure_of(self, rows: int) -> bool:
        """Whether such steps were measured often enough."""
        known = self._known.get(rows)
        return known is not None and known.steps >= SURE_OF

    @property
    def known(self) -> bool:
        """Whether any step was measured."""
        return bool(self._rows)

    @property
    def reach(self) -> int:
        """The tokens of the largest step that may be tried."""
        return REACH * self._rows[-1]

    def of(self, rows: int) -> float:
        """Seconds; between what is known, along straight lines. At least one size must be known."""
        known = self._known.get(rows)
        if known is not None:
            return known.seconds
        at = bisect(self._rows, rows)
        if at == 0:
            return self.of(self._rows[0])
        low = self._rows[at - 1]
        if at == len(self._rows):
            return self.of(low) + (rows - low) * (HOPE * self.of(low) / low)
        high = self._rows[at]
        part = (rows - low) / (high - low)
        return self.of(low) + part * (self.of(high) - self.of(low))


EARNED = 0.0015  # of the time of steps: what drafts may lose
SAVED = 12.0  # plain steps that may be saved up, of what drafts have won, too
OWED = 4.0  # plain steps that may be owed: a long draft that failed isn't the last


class Allowance(msgspec.Struct, eq=False):
    """What drafts may lose: a part of all time, and some of what they have won. The surer a draft
    is, the more may be owed for it: what unsure ones have lost is not in its way.
    """

    _left: float = 0.0  # seconds
    _owed: float = 0.0  # at most

    def earned(self, plain: float) -> None:
        """A step was done that would have taken so long without drafts."""
        self._owed = OWED * plain
        self._left = min(max(self._left, -self._owed) + EARNED * plain, SAVED * plain)

    def spent(self, seconds: float) -> None:
        """A step took so much more for its drafts; or less, for a token that was drafted came."""
        self._left -= seconds

    def covers(self, seconds: float, wrong: float) -> bool:
        """Whether a draft may cost so much that is so likely `wrong`."""
        return self._left + self._owed * (1 - wrong) >= seconds * wrong


PAYS = 1.03  # so many times the tokens a second make drafts worth their trouble


class StepTerms(msgspec.Struct, frozen=True):
    """What a step of so many `jobs` costs and may lose. `even`: each pass has as many tokens of
    each job; `rate`: tokens a second that it is expected to make in any case.
    """

    jobs: int
    costs: StepCosts
    allowance: Allowance
    even: bool
    rate: float = 0.0

    @property
    def plain(self) -> float:
        """Seconds of a step without drafts."""
        return self.costs.of(self.jobs)

    def each(self, drafted: int) -> int:
        """The rows by which it grows where the drafts of so many jobs are one token longer."""
        return self.jobs if self.even else drafted

    def best(self, ways: Iterable[tuple[float, float]], wrong: float) -> tuple[int, float]:
        """Which of `ways` to go on, the first of which is 1, makes most tokens a second, and how
        many; 0: none does that is worth it. Each is the tokens and the seconds of a step; `wrong`:
        how likely none of what it drafts is drawn. More may pay where fewer don't: see `StepCosts`.
        """
        plain = self.plain
        best, rate = 0, max(self.rate, PAYS * self.jobs / plain)
        for way, (tokens, seconds) in enumerate(ways, 1):
            if tokens > rate * seconds and self.allowance.covers(seconds - plain, wrong):
                best, rate = way, tokens / seconds
        return best, rate if best else 0.0
