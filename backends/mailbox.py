"""One job's outputs on their way from the engine's thread to whoever reads them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from backends.errors import BackendError
from backends.protocol import Ended, Output, Piece, Scored


class Mailbox:
    """One job's outputs on the event loop's side. Pieces that nobody fetched yet are joined into
    one.

    The loop is asyncio's own (the server runs on it) and this is the hottest await there is, so it
    waits on a bare future: an anyio.Event costs several times as much.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._scored: deque[Scored] = deque()  # all that comes of it comes before the pieces
        self._pieces: list[Piece] = []
        self._last: Ended | BackendError | None = None
        self._closed = False
        self._reader: asyncio.Future[None] | None = None

    def put(self, output: Output | BackendError) -> None:
        """Called on the event loop's thread, by the driver's one call per step."""
        if isinstance(output, Piece):
            self._pieces.append(output)
        elif isinstance(output, Scored):
            self._scored.append(output)
        else:
            self._last = output
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def __aiter__(self) -> AsyncIterator[Output]:
        return self

    async def __anext__(self) -> Output:
        if self._closed:
            raise StopAsyncIteration
        while not self._pieces and self._last is None and not self._scored:
            self._reader = self._loop.create_future()
            await self._reader
        if self._scored:
            return self._scored.popleft()
        if self._pieces:
            return self._take_pieces()
        self._closed = True
        if isinstance(self._last, BackendError):
            raise self._last
        assert self._last is not None
        return self._last

    def _take_pieces(self) -> Piece:
        pieces, self._pieces = self._pieces, []
        if len(pieces) == 1:
            return pieces[0]
        return Piece(
            "".join(piece.text for piece in pieces),
            tuple(token for piece in pieces for token in piece.tokens),
            tuple(logprob for piece in pieces for logprob in piece.logprobs),
            tuple(pieces),
        )


class JobOutputs:
    """See `protocol.Outputs`. Who iterates gets the mailbox itself, for it is the hot path."""

    def __init__(self, mailbox: Mailbox, stop: Callable[[], None]) -> None:
        self._mailbox = mailbox
        self.stop = stop

    def __aiter__(self) -> AsyncIterator[Output]:
        return self._mailbox

    def __anext__(self) -> Awaitable[Output]:
        return self._mailbox.__anext__()
