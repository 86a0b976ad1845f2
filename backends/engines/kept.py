"""The store of conversations, for an engine in another process: the engine's end.

    `BeginningsAfar`, here                        `BeginningsDesk`, in `backends.places.kept.desk`
    FindLongest ──────────────────────────────▶   looks, and keeps what it found at hand
    ReadFound, for each piece ────────────────▶
    IsWanted ─────────────────────────────────▶
    Offer; OfferedBytes, for each piece ──────▶   puts it together, and into the store

What an engine's thread asks it waits for no longer than a message takes; bytes come and go on
threads beside it, and meanwhile a beginning is `Coming`, as one that is read from disk. Each piece
is answered before the next one leaves, so that no end holds more than one piece beyond what it
means to, however large a beginning is and however slow the network.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TypeAlias

import msgspec
import structlog

from backends.contract.beginnings import BLOCK, Coming, Found, Taken, packed, pieces
from backends.contract.messages import (
    ComingThere,
    FindLongest,
    FoundThere,
    FoundUsed,
    IsWanted,
    KeptAnswer,
    KeptAnswered,
    KeptAsked,
    KeptBytes,
    KeptQuestion,
    Offer,
    OfferedBytes,
    ReadFound,
    TakenHead,
    Welcome,
)

log = structlog.get_logger(__name__)

AT_ONCE = 0.005  # seconds that an engine's thread waits for what is mostly there in less than one
# Seconds until it asks again for what the gateway reads from disk: all tokens are sent.
AGAIN = 0.05
PATIENCE = 0.5  # seconds that it waits to hear whether a beginning is wanted
LOST = 30.0  # see `BeginningsAfar`
FETCHING = 2  # beginnings that are fetched, or wait to be taken, at a time
UNSENT = 1 << 30  # bytes of beginnings that wait to be sent; of a larger one no more than itself

Tokens: TypeAlias = tuple[str, bytes]  # whose, and which


class Search(msgspec.Struct):
    """A question for the longest beginning. `looked`: when a job last wanted to know, and before
    that; looks are counted. 0: it didn't.
    """

    number: int
    answer: "Future[KeptAnswer]"
    asked: float
    looked: tuple[int, int]
    fetched: "Future[Found | None] | None" = None


class BeginningsAfar:
    """See `Beginnings`. `tell` hands a question on, called by any thread. `lost`: seconds for any
    answer; then there is none.
    """

    def __init__(self, tell: Callable[[KeptAsked], None], *, lost: float = LOST) -> None:
        self._tell = tell
        self._lost = lost
        self._numbers = itertools.count(1)
        self._looks = itertools.count(1)
        self._asked: dict[int, Future[KeptAnswer]] = {}
        self._searches: dict[Tokens, Search] = {}  # the engine's thread alone has these
        self._leaving: list[Taken] = []  # what is not sent yet
        self._closing = False
        self._fetcher = ThreadPoolExecutor(1, "kept-fetcher")
        self._sender = ThreadPoolExecutor(1, "kept-sender")

    def answered(self, answered: KeptAnswered) -> None:
        """By any thread."""
        if (future := self._asked.pop(answered.number, None)) is not None:
            with suppress(Exception):  # nobody waits for it any more
                future.set_result(answered.answer)

    def leave(self) -> None:
        """The engine is about to be closed: what it takes out then is sent, however slowly."""
        self._closing = True

    def flush(self) -> None:
        """What was taken out is sent. Blocks."""
        self._fetcher.shutdown(wait=False, cancel_futures=True)
        self._sender.shutdown()

    def longest(self, owner: str, tokens: Sequence[int], than: int) -> Found | Coming | None:
        """See `Beginnings.longest`. What lies in the gateway's memory is `Coming`, too."""
        if len(tokens) <= max(than, BLOCK):
            return None
        if (owner, packed(tokens[:BLOCK])) in map(_begins, tuple(self._leaving)):
            return Coming()  # it has not even gone
        wanted = owner, packed(tokens)
        search = self._searches.get(wanted) or self._search(wanted, than)
        search.looked = next(self._looks), search.looked[0]
        outcome = self._outcome(search, wanted)
        if isinstance(outcome, Coming):
            return outcome
        self._searches.pop(wanted, None)
        return None if outcome is None or outcome.start <= than else outcome

    def put_back(self, found: Found, tokens: int, seconds: float) -> None:
        """See `Beginnings.put_back`. The way here counts."""
        used = FoundUsed(found.number, tokens, seconds + found.seconds)
        self._tell(KeptAsked(next(self._numbers), used))

    def wants(self, owner: str, tokens: Sequence[int], size: int, seconds: float) -> bool:
        """See `Beginnings.wants`. Not while so many leave that others would wait for memory."""
        if (unsent := self._unsent) and unsent + size > UNSENT and not self._closing:
            return False
        question = IsWanted(owner, packed(tokens), size, seconds)
        return isinstance(self._answer(question, min(PATIENCE, self._lost)), Welcome)

    def keep(self, taken: Taken, seconds: float) -> None:
        """See `Beginnings.keep`."""
        self._leaving.append(taken)
        sent = self._sender.submit(self._send, taken, seconds)
        if self._closing and self._unsent > UNSENT:
            wait([sent], self._lost)

    @property
    def _unsent(self) -> int:
        """Bytes."""
        return sum(one.size for one in tuple(self._leaving))

    def _ask(self, question: KeptQuestion) -> tuple[int, "Future[KeptAnswer]"]:
        number, future = next(self._numbers), Future[KeptAnswer]()
        self._asked[number] = future
        self._tell(KeptAsked(number, question))
        return number, future

    def _answer(self, question: KeptQuestion, patience: float | None = None) -> KeptAnswer | None:
        """None: there was none in time."""
        number, future = self._ask(question)
        try:
            return future.result(self._lost if patience is None else patience)
        except TimeoutError:
            self._asked.pop(number, None)
            return None

    def _search(self, wanted: Tokens, than: int) -> Search:
        """Ask; the answer is mostly there when this returns."""
        number, answer = self._ask(FindLongest(*wanted, than))
        with suppress(TimeoutError):
            answer.result(AT_ONCE)
        search = Search(number, answer, time.monotonic(), (0, 0))
        self._searches[wanted] = search
        return search

    def _forget_stale(self, since: int) -> None:
        """Searches of jobs that have left: whoever waits looks at every step."""
        for wanted in [one for one, old in self._searches.items() if old.looked[0] < since]:
            if (fetched := self._searches.pop(wanted).fetched) is not None:
                fetched.cancel()

    def _outcome(self, search: Search, wanted: Tokens) -> Found | Coming | None:
        if not search.answer.done():
            return Coming() if time.monotonic() - search.asked < self._lost else None
        match search.answer.result():
            case FoundThere() as there:
                return self._fetching(search, there)
            case ComingThere():
                if time.monotonic() - search.asked >= AGAIN:
                    self._searches.pop(wanted, None)  # it is asked for anew
                return Coming()
        return None

    def _fetching(self, search: Search, there: FoundThere) -> Found | Coming | None:
        if search.fetched is None:
            self._forget_stale(search.looked[1])
            under_way = sum(one.fetched is not None for one in self._searches.values())
            if under_way < FETCHING:
                search.fetched = self._fetcher.submit(self._fetch, search.number, there)
            return Coming()
        if not search.fetched.done():
            return Coming()
        try:
            return search.fetched.result()
        except (CancelledError, Exception) as error:  # noqa: BLE001 - then it is computed
            log.warning("a kept conversation did not come", reason=str(error))
            return None

    def _fetch(self, number: int, there: FoundThere) -> Found | None:
        """On the fetcher's thread."""
        began, taken = time.perf_counter(), there.head.empty()
        for room in pieces(taken.buffers):
            answer = self._answer(ReadFound(number))
            if not isinstance(answer, KeptBytes) or len(answer.data) != len(room):
                return None
            room[:] = answer.data
        seconds = time.perf_counter() - began
        return Found(number, taken, there.start, there.tier, seconds)

    def _send(self, taken: Taken, seconds: float) -> None:
        """On the sender's thread."""
        try:
            self._offer(taken, seconds)
        except Exception as error:  # noqa: BLE001 - it is computed again, then
            log.warning("a conversation is not kept", reason=str(error))
        finally:
            self._leaving.remove(taken)

    def _offer(self, taken: Taken, seconds: float) -> None:
        number = next(self._numbers)
        self._tell(KeptAsked(number, Offer(TakenHead.of(taken), seconds)))
        for piece in pieces(taken.buffers):
            if not isinstance(self._answer(OfferedBytes(number, piece)), Welcome):
                return


def _begins(taken: Taken) -> Tokens:
    return taken.owner, packed(taken.tokens[:BLOCK])
