"""Drafts from repetitions: what a text repeats, of itself or of its owner's recent answers, is
likely to go on as it did (an edit, code, JSON that is given back).

All of it is pure: it knows tokens, and nothing of what a draft is worth
(`backends.engines.speculation`).
"""

from collections import deque
from collections.abc import Iterable, Sequence
from math import inf

import msgspec

from backends.contract.latest import Latest

SHORTEST = 3  # tokens that must be repeated before what followed them is drafted
LONGEST = 24  # tokens compared
CHANGED = 48  # tokens that may be others in a copy that goes on
TRIED = 4  # places compared, the newest ones
INDEXED = 16_384  # tokens of a text, the newest ones: 150 bytes each
AT_ONCE = 1_024  # tokens taken into the index in one step, a quarter of a millisecond
_BITS = 20  # of a token; of longer ones the lowest, since what is found is compared
_RUN = (1 << _BITS * SHORTEST) - 1


class Draft(msgspec.Struct, frozen=True):
    """What may come next. `sureness`: an index of `PRIORS`, the higher the more was repeated; of
    each token an index of its own, where a model drafted them (`classes`).
    """

    tokens: Sequence[int]
    sureness: int
    classes: Sequence[int] = ()

    def first(self, count: int) -> "Draft":
        """No more than so many of its tokens."""
        return Draft(self.tokens[:count], self.sureness, self.classes[:count])


class Repetitions:
    """Finds in a growing text an earlier place that reads like its end. Costs the same for each
    token, however long the text is.

    The list is its owner's, who extends it and may shorten it. Then places are known that aren't
    there any more: what is found is compared before it is used.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._latest: dict[int, int] = {}  # behind which place a run of tokens stood last
        self._before: dict[int, int] = {}  # the place before that, of the same run
        self._read = max(0, len(tokens) - INDEXED)
        self._lag = 0  # how far behind the end the text was that was drafted last; 0: none was
        self._copied = inf  # the text's length when a long copy was last gone on with

    def read(self) -> bool:
        """Take the next tokens into the index. Whether all are there."""
        tokens = self._tokens
        if len(tokens) == self._read and self._read:
            return True
        if len(self._latest) > 2 * INDEXED:
            self._latest.clear()
            self._before.clear()
            self._read = max(0, len(tokens) - INDEXED)
        self._read = min(self._read, len(tokens))
        first, end = self._read, min(len(tokens), self._read + AT_ONCE)
        run = self._numbered(tokens[max(0, first - SHORTEST) : first])
        for place in range(first, end):
            run = (run << _BITS | tokens[place] & _TOKEN) & _RUN
            known = self._latest.get(run)
            if known is not None:
                self._before[place + 1] = known
            self._latest[run] = place + 1
        self._read = end
        return end == len(tokens)

    def find(self, end: Sequence[int], most: int) -> Draft | None:
        """What followed where the text last read like `end`, which may be its own end."""
        own = end is self._tokens
        place, length = self._longest(end, own=own)
        if not length:
            return None
        sureness = max(index for index, least in enumerate(FROM) if length >= least)
        if own:
            sureness = self._followed(len(end), place, sureness)
        tokens = self._following(place, most, own=own)
        return Draft(tokens, sureness) if tokens else None

    def _followed(self, end: int, place: int, sureness: int) -> int:
        """A copy goes on from `place`. How sure it is, by what went before, too: a change in a copy
        that was long until lately may be over soon.
        """
        lag = end - place
        copying = 0 <= end - self._copied <= CHANGED
        if sureness == LONG:
            self._copied = end
        elif copying and abs(lag - self._lag) > CHANGED:
            return sureness
        elif copying:
            sureness = RESUMED
        self._lag = lag
        return sureness

    def _longest(self, end: Sequence[int], *, own: bool) -> tuple[int, int]:
        """The place with the longest repetition before it, and how long that is. What was drafted
        last is gone on with: there a shorter one will do.
        """
        place, longest = 0, 0
        if own and 0 < self._lag < len(end):
            place = len(end) - self._lag
            longest = self._alike(place, end, 1)
        found = self._latest.get(self._numbered(end[-SHORTEST:]))
        for _ in range(TRIED):
            if found is None or longest == LONGEST:
                break
            length = self._alike(found, end, SHORTEST)
            if length > longest:
                place, longest = found, length
            found = self._before.get(found)
        return place, longest

    def _alike(self, place: int, end: Sequence[int], least: int) -> int:
        """How many of the tokens before `place` are the last of `end`; none at the text's end, nor
        where they are fewer than `least`, which mostly shows in one comparison.
        """
        tokens, last, length = self._tokens, len(end) - 1, 0
        most = min(LONGEST, place, len(end))
        if place >= len(tokens) or least > most or tokens[place - least] != end[-least]:
            return 0
        while length < most and tokens[place - 1 - length] == end[last - length]:
            length += 1
        return length if length >= least else 0

    def _following(self, place: int, most: int, *, own: bool) -> Sequence[int]:
        """What comes after `place`; where that is the text's own end, what it repeats goes on."""
        following = list(self._tokens[place : place + most])
        period = len(following)
        if own and period < most:
            following += [following[at % period] for at in range(period, most)]
        for at, token in enumerate(following):
            if token < 0:  # a part of a picture
                return following[:at]
        return following

    @staticmethod
    def _numbered(tokens: Iterable[int]) -> int:
        run = 0
        for token in tokens:
            run = run << _BITS | token & _TOKEN
        return run & _RUN


_TOKEN = (1 << _BITS) - 1

# How often a token is drawn that follows so much, until it is measured; from so many tokens on. The
# last is what goes on with a long copy after a change in it.
PRIORS: Sequence[float] = (0.4, 0.5, 0.65, 0.8, 0.9, 0.85)
FROM: Sequence[int] = (1, SHORTEST, 6, 10, 16)
LONG, RESUMED = 4, 5


# A key's recent answers, which its next ones may repeat.
ANSWERS, ANSWER_TOKENS, OWNERS = 4, 4_096, 64
WORTH_KEEPING = 32  # tokens


class RecentAnswers:
    """What was answered lately, by owner. An owner's jobs are drafted from its own answers alone:
    how fast an answer comes says what it repeats.
    """

    def __init__(self) -> None:
        self._known = Latest[str, deque[Repetitions]](OWNERS)

    def keep(self, owner: str, answer: Sequence[int]) -> None:
        """The last of the answer's tokens; the oldest answers make room."""
        if len(answer) < WORTH_KEEPING:
            return
        kept = Repetitions(list(answer[-ANSWER_TOKENS:]))
        while not kept.read():
            pass
        answers = self._known.get(owner) or deque(maxlen=ANSWERS)
        answers.append(kept)
        self._known[owner] = answers

    def find(self, owner: str, end: Sequence[int], most: int) -> Draft | None:
        """See `Repetitions.find`; the newest answer first."""
        for answer in reversed(self._known.get(owner, ())):
            if (draft := answer.find(end, most)) is not None:
                return draft
        return None
