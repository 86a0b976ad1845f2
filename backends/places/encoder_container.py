"""The gateway's end of a container that makes vectors or ranks, where its engine is behind a port.
Knows no engine.
"""

import asyncio
from collections.abc import Sequence

import anyio

from backends.contract.bounds import check_inputs
from backends.contract.encoder import EncoderInput
from backends.contract.messages import Encode, Encoded, Event, Failure, Leave, Left, Port
from backends.contract.protocol import Tokenizer, Tokenizing
from backends.contract.reading import EncoderReader
from backends.machine.futures import settle
from backends.places.container import PortContainer, PortEnd


class PortEncoder(PortEnd):
    """An `EncoderContainer` whose engine is behind a port."""

    def __init__(self, port: Port, tokenizer: Tokenizing | Tokenizer) -> None:
        assert port.info.reading is not None, "it reads texts"
        self._open: dict[int, asyncio.Future[Encoded | Left]] = {}
        reader = EncoderReader(
            lambda text: tokenizer.tokenize(text, special=False), port.info.reading
        )
        self.read = reader.read
        self.read_pair = reader.read_pair
        super().__init__(port, tokenizer)

    async def encode(self, inputs: Sequence[EncoderInput]) -> Sequence[bytes]:
        """See `EncoderContainer.encode`."""
        check_inputs(inputs, self.info)
        if not inputs:
            return ()
        if self._lost is not None:
            raise self._lost.error()
        key = next(self._keys)
        answer = self._open[key] = asyncio.get_running_loop().create_future()
        self.port.send(Encode(key, tuple(inputs)))
        try:
            answered = await asyncio.shield(answer)
        except asyncio.CancelledError:
            if not answer.done():
                self.port.send(Leave(key))
                with anyio.CancelScope(shield=True):
                    await asyncio.wait([answer])
            raise
        finally:
            del self._open[key]
        assert isinstance(answered, Encoded), "it has not left"
        if answered.failure is not None:
            raise answered.failure.error()
        return answered.vectors

    def _receive(self, event: Event) -> None:
        match event:
            case Encoded(key) | Left(key):
                if (answer := self._open.get(key)) is not None:
                    settle(answer, event)
            case _:
                super()._receive(event)

    def _lose(self, failure: Failure) -> None:
        for key in tuple(self._open):
            self._receive(Encoded(key, failure=failure))


def over(port: Port, tokenizer: Tokenizer) -> PortContainer | PortEncoder:
    """The container of a model whose engine is behind `port`, by its task."""
    kind = PortContainer if port.info.task == "generate" else PortEncoder
    return kind(port, tokenizer)
