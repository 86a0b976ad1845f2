"""The gateway's end of the store of conversations, for an engine in another process. The engine's
is `backends.engines.kept`, which says what goes between.
"""

import threading
import time
from array import array
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import msgspec
import structlog
from msgspec.structs import replace

from backends.contract.beginnings import Beginnings, Bytes, Coming, Found, Taken, pieces
from backends.contract.latest import Latest
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
    NothingThere,
    Offer,
    OfferedBytes,
    ReadFound,
    TakenHead,
    Welcome,
)

log = structlog.get_logger(__name__)

AT_HAND = 8  # beginnings that were found, and may still be read
MOST_ASKED = 4_096  # questions at a time
NOTHING = None, deque[Bytes]()


class Arriving(msgspec.Struct, frozen=True):
    """What was offered, its pieces that have not come yet, and when its engine began to take it
    out.
    """

    number: int
    taken: Taken
    rooms: deque[Bytes]
    began: float


class BeginningsDesk:
    """Answers what the other end asks of `beginnings`, by calls of `send` on its thread. On the
    event loop no more happens than a piece's way through a socket.
    """

    def __init__(self, beginnings: Beginnings, send: Callable[[KeptAnswered], None]) -> None:
        self._beginnings = beginnings
        self._send = send
        # What was found, without its bytes, and the pieces of these that were not read yet.
        self._found = Latest[int, tuple[Found, deque[Bytes]]](AT_HAND)
        self._offer: Arriving | None = None
        self._thread = ThreadPoolExecutor(1, "kept-desk")
        self._room = threading.Semaphore(MOST_ASKED)

    def ask(self, asked: KeptAsked) -> None:
        """It will be answered, unless the desk is closed before. Raises ValueError where too much
        is asked at a time.
        """
        if not self._room.acquire(blocking=False):
            raise ValueError("more questions at a time than an engine has")
        with suppress(RuntimeError):  # it is closed
            self._thread.submit(self._handle, asked)

    def close(self) -> None:
        """The other end is gone. Does not wait."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _handle(self, asked: KeptAsked) -> None:
        try:
            answer = self._answer(asked.number, asked.question)
        except Exception as error:  # noqa: BLE001 - the other end may ask anything
            log.warning("a question for kept conversations can't be answered", reason=str(error))
            answer = NothingThere()
        finally:
            self._room.release()
        if answer is not None:
            self._send(KeptAnswered(asked.number, answer))

    def _answer(self, number: int, question: KeptQuestion) -> KeptAnswer | None:
        match question:
            case FindLongest(owner, tokens, than):
                return self._find(number, owner, tokens, than)
            case ReadFound(found):
                _, left = self._found.get(found, NOTHING)
                return KeptBytes(left.popleft()) if left else NothingThere()
            case IsWanted(owner, tokens, size, seconds):
                return _yes(self._beginnings.wants(owner, array("q", tokens), size, seconds))
            case Offer(head, seconds):
                self._open(number, head, seconds)
            case OfferedBytes(offer, data):
                return _yes(self._put(offer, data))
            case FoundUsed(found, count, seconds):
                one, _ = self._found.pop(found, NOTHING)
                if one is not None:
                    self._beginnings.put_back(one, count, seconds)
        return None

    def _find(self, number: int, owner: str, tokens: bytes, than: int) -> KeptAnswer:
        match self._beginnings.longest(owner, array("q", tokens), than):
            case Found(taken=taken) as found:
                bare = replace(taken, buffers=(), places=())
                self._found[number] = replace(found, taken=bare), deque(pieces(taken.buffers))
                return FoundThere(found.start, found.tier, TakenHead.of(taken))
            case Coming():
                return ComingThere()
        return NothingThere()

    def _open(self, number: int, head: TakenHead, seconds: float) -> None:
        """One at a time: an earlier one was given up."""
        self._offer, began = None, time.perf_counter() - seconds
        tokens, size = array("q", head.tokens), sum(head.sizes)
        if self._beginnings.wants(head.owner, tokens, size, head.seconds):
            taken = head.empty()
            self._offer = Arriving(number, taken, deque(pieces(taken.buffers)), began)

    def _put(self, number: int, data: Bytes) -> bool:
        offer = self._offer
        if offer is None or offer.number != number or len(offer.rooms[0]) != len(data):
            return False
        offer.rooms.popleft()[:] = data
        if not offer.rooms:
            self._offer = None
            self._beginnings.keep(offer.taken, time.perf_counter() - offer.began)
        return True


def _yes(there: bool) -> KeptAnswer:  # noqa: FBT001 - the answer itself
    return Welcome() if there else NothingThere()
