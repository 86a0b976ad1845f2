"""The gateway's end of the store of conversations, for an engine in another process. The engine's
is `backends.engines.kept`, which says what goes between.
"""

import threading
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import structlog
from msgspec.structs import replace

from backends.contract.beginnings import Beginnings, Coming, Found, Taken
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
    Offered,
    OfferedBytes,
    ReadFound,
    TakenHead,
    Welcome,
)

log = structlog.get_logger(__name__)

AT_HAND = 8  # beginnings that were found, and may still be read
MOST_ASKED = 4_096  # questions at a time


class BeginningsDesk:
    """Answers what the other end asks of `beginnings`, by calls of `send` on its thread. On the
    event loop no more happens than a piece's way through a socket.
    """

    def __init__(self, beginnings: Beginnings, send: Callable[[KeptAnswered], None]) -> None:
        self._beginnings = beginnings
        self._send = send
        self._found = Latest[int, Found](AT_HAND)
        self._offers: dict[int, Taken] = {}  # of which pieces have come
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
            case ReadFound():
                return self._read(question)
            case IsWanted(owner, tokens, size, seconds):
                return _yes(self._beginnings.wants(owner, array("q", tokens), size, seconds))
            case Offer(head):
                return self._open(number, head)
            case OfferedBytes():
                return _yes(self._put(question))
            case Offered(offer, seconds):
                return _yes(self._keep(offer, seconds))
            case FoundUsed(found, count, seconds):
                if (one := self._found.pop(found, None)) is not None and count:
                    self._beginnings.put_back(one, count, seconds)
        return None

    def _find(self, number: int, owner: str, tokens: bytes, than: int) -> KeptAnswer:
        match self._beginnings.longest(owner, array("q", tokens), than):
            case Found(taken=taken) as found:
                self._found[number] = found
                return FoundThere(found.start, found.tier, TakenHead.of(taken))
            case Coming():
                return ComingThere()
        return NothingThere()

    def _read(self, wanted: ReadFound) -> KeptAnswer:
        found = self._found.get(wanted.found)
        if found is None:
            return NothingThere()
        buffers, until = found.taken.buffers, wanted.start + wanted.size
        if wanted.is_last:  # what it was is known until it is put back
            bare = replace(found.taken, whole=np.empty(0, np.uint8), parts=())
            self._found[wanted.found] = replace(found, taken=bare)
        return KeptBytes(buffers[wanted.part][wanted.start : until])

    def _open(self, number: int, head: TakenHead) -> KeptAnswer:
        """One at a time: an earlier one was given up."""
        self._offers.clear()
        tokens, size = array("q", head.tokens), sum(head.sizes)
        if not self._beginnings.wants(head.owner, tokens, size, head.seconds):
            return NothingThere()
        self._offers[number] = head.empty()
        return Welcome()

    def _put(self, piece: OfferedBytes) -> bool:
        if (arriving := self._offers.get(piece.offer)) is None:
            return False
        until = piece.start + len(piece.data)
        arriving.buffers[piece.part][piece.start : until] = piece.data
        return True

    def _keep(self, number: int, seconds: float) -> bool:
        if (arriving := self._offers.pop(number, None)) is None:
            return False
        self._beginnings.keep(arriving, seconds)
        return True


def _yes(there: bool) -> KeptAnswer:  # noqa: FBT001 - the answer itself
    return Welcome() if there else NothingThere()
