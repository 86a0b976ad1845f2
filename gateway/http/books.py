"""The books of a server, in which each request that a model answers is entered, from its beginning
to its one report; and those requests that run, with the last that are over.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from time import time
from typing import Generic, TypeVar

import msgspec
from msgspec.structs import replace

from gateway.answers.call import Call, OnWait
from gateway.dialects.dialect import RATE_HEADERS, RateHeaders
from gateway.http.inspector import Inspector
from gateway.http.request_record import RequestRecord
from gateway.http.standing import RequestReport, RequestStanding
from gateway.http.tracing import Trace, Tracing
from gateway.keys.access import Access
from gateway.keys.limits import UNLIMITED, Charge, Limiter
from gateway.terms.errors import Cancelled, GatewayError, NotFound, NotSupported, ShuttingDown
from gateway.terms.events import Usage
from gateway.terms.request import expected_tokens
from gateway.terms.tasks import WorkerThreads

Wanted = TypeVar("Wanted")

LATELY = 200  # requests that are over


class Activity:
    """One per server: the requests that run, and the last that are over, for administrators and for
    the key that sent them. A request that is not watched costs two entries in a table.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._running: dict[int, RequestRecord] = {}
        self._lately: deque[tuple[str, RequestStanding]] = deque(maxlen=LATELY)  # and owners
        self._ended: set[int] = set()  # since `take_moved`

    def began(self, record: RequestRecord) -> None:
        """From now on it has a number."""
        record.number, record.moved = next(self._numbers), True
        self._running[record.number] = record

    def ended(self, report: RequestReport) -> None:
        """Its standing is the last."""
        number = report.standing.number
        del self._running[number]
        self._lately.append((report.access.owner, report.standing))
        self._ended.add(number)

    def seen_by(self, access: Access) -> list[RequestStanding]:
        """Those that run, the newest first, then those that are over."""
        return [one for owner, one in self.all() if access.oversees(owner)]

    def all(self) -> Iterator[tuple[str, RequestStanding]]:
        """Each with its owner, in the order of `seen_by`."""
        for record in reversed(self._running.values()):
            yield record.access.owner, record.standing()
        yield from reversed(self._lately)

    def take_moved(self, *, running: bool) -> list[tuple[str, RequestStanding]]:
        """What has changed since the last call, in the order it began; `running`: and all that
        runs, since its numbers grow. What came and was forgotten in between is left out.
        """
        ended, self._ended = self._ended, set()
        over = [item for item in self._lately if item[1].number in ended]
        moved = [record for record in self._running.values() if running or record.moved]
        for record in moved:
            record.moved = False
        now = [(record.access.owner, record.standing()) for record in moved]
        return sorted((*over, *now), key=lambda item: item[1].number)

    def cancel(self, number: int, access: Access) -> RequestStanding:
        """End a request that runs. Raises NotFound for one that doesn't, or that `access` may not
        see.
        """
        record = self._running.get(number)
        if record is None or not access.oversees(record.access.owner):
            raise NotFound(f"No running request {number}.", param="number")
        record.cancel()
        return record.standing()


class Books(msgspec.Struct, frozen=True):
    """One per server. `notify` is called with each request's report; `gaps` gives, by the model,
    what is called with the seconds between two deltas.
    """

    notify: Callable[[RequestReport], None]
    gaps: Callable[[str], Callable[[float], object]]
    activity: Activity
    limiter: Limiter
    inspector: Inspector
    tracing: Tracing | None = None

    def left(self, access: Access, names: RateHeaders = RATE_HEADERS) -> Mapping[str, str]:
        """The headers of what a key has left; none where it has no limits."""
        if access.limits == UNLIMITED:
            return {}
        now = time()
        return names.of(self.limiter.allowance(now, access.owner, access.limits), now)


class Asking(msgspec.Struct, Generic[Wanted], kw_only=True):
    """One request to a model, and what the server does for each: it is entered in the books, and
    reported exactly once. `readable` is an error as its caller may read it, `threads` write what is
    long.
    """

    call: Call[Wanted]
    books: Books
    record: RequestRecord
    readable: Callable[[GatewayError], GatewayError]
    quiet: float  # seconds of silence in a stream before something is sent to keep it alive
    threads: WorkerThreads
    _trace: Trace | None = None

    def left(self, names: RateHeaders = RATE_HEADERS) -> Mapping[str, str]:
        """See `Books.left`."""
        return self.books.left(self.record.access, names)

    @contextmanager
    def kept(self, was_cut_off: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Around all of the answer; the report is made when it ends, on every path. By the request
        a key with limits is charged until it is known how many tokens it took.

        `was_cut_off`: whether it was cancelled because the client didn't read. Raises RateLimited.
        """
        record = self.record
        outcome, is_fault = None, False  # cancelled: the client has left
        charge: Charge | None = None
        self.books.activity.began(record)
        self.books.inspector.began(record)
        try:
            if record.access.limits != UNLIMITED:
                expected, access = expected_tokens(self.call.request), record.access
                charge = self.books.limiter.charge(time(), access.owner, access.limits, expected)
            with record.cancellable():
                yield
            outcome = "ok"
        except GatewayError as error:
            outcome, is_fault = error.code or error.type, _is_fault(error)
            record.error = copy(error)  # without the frames that it was raised in
            raise
        except Exception:
            outcome, is_fault = "internal_error", True
            raise
        finally:
            gone = "send_timeout" if was_cut_off() else "left"
            report = record.end(outcome or gone, is_fault=is_fault)
            if charge is not None:
                _settle(charge, report.usage)
            self.books.activity.ended(report)
            self.books.inspector.ended(record)
            self.books.notify(report)
            if self._trace is not None:
                self._trace.end(report)

    def traced(self, on_wait: OnWait) -> Call[Wanted]:
        """The call as part of the request's trace, to which belongs what servers elsewhere do;
        `on_wait` is told of its wait.
        """
        caller = self.call.caller
        if self.books.tracing is not None:
            trace = self._trace = self.books.tracing.begin(self.record.api, caller)
            caller = replace(caller, trace=trace.headers, served_by=trace.served_by)
        return replace(self.call, on_wait=on_wait, caller=caller)


def _settle(charge: Charge, usage: Usage | None) -> None:
    if usage is None:
        charge.settle(time(), 0, began=False)
        return
    total = usage.prompt_tokens + usage.completion_tokens
    charge.settle(time(), total if usage.is_counted else None)


def _is_fault(error: GatewayError) -> bool:
    """Whether an operator should look at it: not what a client did, what isn't offered, and what
    somebody ended.
    """
    ended = isinstance(error, Cancelled | NotSupported | ShuttingDown)
    return error.status_hint >= 500 and not ended
