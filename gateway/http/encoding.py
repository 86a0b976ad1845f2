"""One request for vectors or scores on its way, as an ASGI response: one body when all are there.

It runs in the request's own task: when the client leaves it is cancelled, what it asked for leaves
the device, and the lease is given back, before the call returns.
"""

from collections.abc import Awaitable, Callable, Sequence

from litestar.types import Receive, Scope, Send

from gateway.answers.encoding import Encoded, is_long
from gateway.answers.pipeline import OnWait
from gateway.http.exchange import HEADERS, ID_HEADER, names_line
from gateway.http.plain import Plain
from gateway.http.request_record import RequestRecord
from gateway.http.sse import cancel_when_left
from gateway.tasks import WorkerThreads, companions

TRUNCATED_HEADER = "x-roundhouse-truncated"  # how many texts were too long, and lost their ends


class EncodingResponse:
    """`encode` does what was asked; `body_of` tells it. `ignored`: fields that nobody here read."""

    def __init__(
        self,
        encode: Callable[[OnWait], Awaitable[Encoded]],
        body_of: Callable[[Encoded], bytes],
        account: RequestRecord,
        threads: WorkerThreads,
        ignored: Sequence[str] = (),
    ) -> None:
        self._encode = encode
        self._body_of = body_of
        self._account = account
        self._threads = threads
        self._ignored = ignored

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises GatewayError."""
        async with companions() as tasks:
            tasks.start_soon(cancel_when_left, receive, tasks.cancel_scope)
            with self._account.kept():
                encoded = await self._encode(self._account.waits)
                self._account.answered_by(encoded)
                body = await self._written(encoded)
            response = Plain(
                body, headers={ID_HEADER: self._account.request, **self._about(encoded)}
            )
            await response(scope, receive, send)

    async def _written(self, encoded: Encoded) -> bytes:
        if not is_long(encoded.vectors):
            return self._body_of(encoded)
        return await self._threads.run(lambda _wanted: self._body_of(encoded))

    def _about(self, encoded: Encoded) -> dict[str, str]:
        """As of an answer, and how many texts were cut."""
        unknown = (name for name in self._ignored if name not in encoded.handed_on)
        values = (
            encoded.model,
            encoded.backend,
            f"{encoded.queued_seconds:.3f}",
            f"{encoded.load_seconds:.3f}",
            names_line((*encoded.ignored, *unknown)),
        )
        about = {name: value for name, value in zip(HEADERS, values, strict=False) if value}
        return {**about, TRUNCATED_HEADER: str(encoded.cut)} if encoded.cut else about
