"""Several choices as one stream, in the order in which their deltas come."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack

import anyio
from anyio.abc import TaskGroup

from backends.errors import BackendError
from backends.protocol import Outputs
from gateway.answers.answer import Choice
from gateway.errors import GatewayError
from gateway.events import Delta
from gateway.tasks import companions

BACKLOG = 64  # deltas of several choices that may wait for a slow client


class Streams:
    """The deltas of several choices as they come, in one stream. `tasks` outlives them."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._send, self._receive = anyio.create_memory_object_stream[Delta | Exception](BACKLOG)

    def add(self, choice: Choice, outputs: Outputs) -> None:
        self._tasks.start_soon(self._forward, choice, outputs, self._send.clone())

    async def _forward(
        self,
        choice: Choice,
        outputs: Outputs,
        send: anyio.abc.ObjectSendStream[Delta | Exception],
    ) -> None:
        async with send:
            try:
                async for delta in choice.deltas(outputs):
                    await send.send(delta)
            # the reader raises it, as with one choice
            except (BackendError, GatewayError) as error:
                await send.send(error)

    def close(self) -> None:
        """No more is read."""
        self._send.close()
        self._receive.close()

    async def deltas(self) -> AsyncIterator[Delta]:
        self._send.close()
        async for item in self._receive:
            if isinstance(item, Exception):
                raise item
            yield item


async def merged(
    held: AsyncExitStack, choices: Sequence[Choice], outputs: Sequence[Outputs]
) -> AsyncIterator[Delta]:
    """The deltas of all choices, of which each has its outputs; they end with `held`."""
    held.callback(_stop_all, outputs)
    if len(choices) == 1:
        return choices[0].deltas(outputs[0])
    streams = Streams(await held.enter_async_context(companions()))
    held.callback(streams.close)
    for choice, stream in zip(choices, outputs, strict=True):
        streams.add(choice, stream)
    return streams.deltas()


def _stop_all(outputs: Sequence[Outputs]) -> None:
    """Before the contexts wait for each of their jobs in turn, so that they all end at one step."""
    for one in outputs:
        one.stop()
