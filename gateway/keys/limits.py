"""The limits of an API key: requests at once, requests and tokens per minute, tokens per day.

Pure: the time comes with each call, in seconds since 1970, so that days begin at midnight UTC.
A request is charged before it costs anything, with the tokens that it is expected to take, and
corrected with what it took in the end. Nothing is charged for what is refused.

What is promised: in no 60 seconds are more requests begun than `requests_per_minute`, and none is
begun while the tokens of the last 60 seconds, with its own expected ones, are more than
`tokens_per_minute`. An answer that takes more than expected is not cut: the next ones wait for it.
"""

import math
from collections import deque
from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec

from gateway.terms.errors import RateLimited

MINUTE, DAY = 60.0, 86_400.0  # seconds
STEPS = 60  # of a minute, in which what was taken is counted together
STEP = MINUTE / STEPS
RETRY = 1.0  # seconds; when a running request ends is not known

Unit: TypeAlias = Literal["requests", "tokens"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Of one key; None: no limit."""

    parallel: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # of prompts and answers
    tokens_per_day: int | None = None


UNLIMITED = Limits()


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a limit, and in how many seconds all of it is there again."""

    limit: int
    left: int
    reset: float


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """What a key has left. Of two limits of tokens, the one of which less is left."""

    requests: Rate | None = None
    tokens: Rate | None = None


class Window:
    """Counts what was taken in the last `steps` steps of `step` seconds and in the one that is
    going on: each counts until the last moment of it is that long ago.
    """

    def __init__(self, step: float = STEP, steps: int = STEPS) -> None:
        self._step = step
        self._most = steps
        self._steps: deque[list[int]] = deque()  # number and amount, the oldest first
        self._used = 0

    def add(self, now: float, amount: int) -> None:
        self.used(now)
        number = self._number(now)
        if not self._steps or self._steps[-1][0] != number:
            self._steps.append([number, 0])
        self._steps[-1][1] += amount
        self._used += amount

    def give_back(self, since: float, amount: int) -> None:
        """Of what was added at `since`, unless it doesn't count any more."""
        for step in self._steps:
            if step[0] == self._number(since):
                given = min(amount, step[1])
                step[1] -= given
                self._used -= given

    def used(self, now: float) -> int:
        number = self._number(now)
        # A clock that was set back leaves steps in the future: they are as old as they were.
        ahead = max(0, self._steps[-1][0] - number) if self._steps else 0
        for step in self._steps if ahead else ():
            step[0] -= ahead
        while self._steps and self._steps[0][0] < number - self._most:
            self._used -= self._steps.popleft()[1]
        return self._used

    def falls_to(self, now: float, amount: int) -> float:
        """Seconds until no more than `amount` counts, if no more is added."""
        left = self.used(now)
        for number, taken in self._steps:
            if left <= amount:
                break
            left -= taken
            if left <= amount:
                return (number + 1 + self._most) * self._step - now
        return 0.0

    def _number(self, moment: float) -> int:
        return math.floor(moment / self._step)


class _Bound(msgspec.Struct, frozen=True):
    """A limit that is in force, and what counts against it."""

    name: str  # as it is configured
    unit: Unit
    limit: int
    meter: Window

    def rate(self, now: float) -> Rate:
        left = max(0, self.limit - self.meter.used(now))
        return Rate(limit=self.limit, left=left, reset=self.meter.falls_to(now, 0))

    def wait(self, now: float, amount: int) -> float | None:
        """Seconds until there is room for `amount`, of which no more counts than the limit itself;
        None: there is.
        """
        most = self.limit - min(amount, self.limit)
        return self.meter.falls_to(now, most) if self.meter.used(now) > most else None


class _Account:
    """What one key has taken."""

    def __init__(self) -> None:
        self.running = 0
        self.requests = Window()
        self.tokens = Window()
        self.tokens_today = Window(DAY, 0)  # since midnight UTC

    def bounds(self, limits: Limits) -> Iterator[_Bound]:
        for name, unit, limit, meter in (
            ("requests_per_minute", "requests", limits.requests_per_minute, self.requests),
            ("tokens_per_minute", "tokens", limits.tokens_per_minute, self.tokens),
            ("tokens_per_day", "tokens", limits.tokens_per_day, self.tokens_today),
        ):
            if limit is not None:
                yield _Bound(name, unit, limit, meter)  # type: ignore[arg-type]  # of the table


class Charge:
    """One request's, from its beginning to its end: `settle` is called once."""

    def __init__(self, account: _Account, now: float, tokens: int) -> None:
        self._account = account
        self._began = now
        self._tokens = tokens
        account.running += 1
        account.requests.add(now, 1)
        account.tokens.add(now, tokens)
        account.tokens_today.add(now, tokens)

    def settle(self, now: float, tokens: int | None, *, began: bool = True) -> None:
        """It is over. `tokens`: that it took; None: not known, so what was expected stays.
        `began`: the model has worked for it, so that it counts as a request.
        """
        account = self._account
        account.running -= 1
        if not began:
            account.requests.give_back(self._began, 1)
        more = 0 if tokens is None else tokens - self._tokens
        for meter in (account.tokens, account.tokens_today):
            if more > 0:
                meter.add(now, more)
            else:
                meter.give_back(self._began, -more)


class Limiter:
    """One per server: all keys, each by its owner's digest."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}

    def charge(self, now: float, owner: str, limits: Limits, tokens: int) -> Charge:
        """A request begins, which is expected to take so many tokens. Raises RateLimited."""
        account = self._accounts.setdefault(owner, _Account())
        if limits.parallel is not None and account.running >= limits.parallel:
            raise RateLimited(
                f"This key may have {limits.parallel} requests at a time (parallel), and so many "
                "are running.",
                retry_after=RETRY,
            )
        for bound in account.bounds(limits):
            amount = 1 if bound.unit == "requests" else tokens
            if (seconds := bound.wait(now, amount)) is not None:
                raise RateLimited(_explained(bound, now, amount), retry_after=seconds)
        return Charge(account, now, tokens)

    def restore(self, now: float, tokens: dict[str, int]) -> None:
        """What keys took today before this server was started, by owner."""
        for owner, taken in tokens.items():
            self._accounts.setdefault(owner, _Account()).tokens_today.add(now, taken)

    def allowance(self, now: float, owner: str, limits: Limits) -> Allowance:
        """What a key has left."""
        account = self._accounts.get(owner) or _Account()
        rates = [(bound.unit, bound.rate(now)) for bound in account.bounds(limits)]
        requests = next((rate for unit, rate in rates if unit == "requests"), None)
        tokens = (rate for unit, rate in rates if unit == "tokens")
        return Allowance(
            requests=requests, tokens=min(tokens, key=lambda rate: rate.left, default=None)
        )


def _explained(bound: _Bound, now: float, amount: int) -> str:
    return (
        f"This key may have {bound.limit:,} {bound.unit} in the time of {bound.name}: "
        f"{bound.meter.used(now):,} are taken, {amount:,} more are expected."
    )
