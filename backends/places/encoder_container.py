"""The gateway's end of a container that makes vectors or ranks, where its engine is behind a port.
Knows no engine.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence

import anyio

from backends.contract.bounds import check_inputs, check_tokens
from backends.contract.errors import CLOSED, EngineLost
from backends.contract.messages import (
    Broke,
    Close,
    Closed,
    Encode,
    Encoded,
    Event,
    Failure,
    Leave,
    Left,
    Lost,
    Port,
)
from backends.contract.protocol import EncoderInput, EncoderTokenizer, ModelInfo, Tokenizer
from backends.contract.reading import EncoderReader
from backends.places.container import PortContainer


class PortEncoder:
    """An `EncoderContainer` whose engine is behind a port. Create it on the event loop."""

    def __init__(self, port: Port, tokenizer: EncoderTokenizer | Tokenizer) -> None:
        """`tokenizer`: the model's, in this process."""
        assert port.info.reading is not None, "it reads texts"
        self.port = port
        self.failure: str | None = None
        self._tokenizer = tokenizer
        self._keys = itertools.count(1)
        self._open: dict[int, asyncio.Future[Encoded | Left]] = {}
        self._lost: Failure | None = None
        self._close_sent = False
        self._closed = anyio.Event()
        self._on_failure: Callable[[], None] = lambda: None
        reader = EncoderReader(
            lambda text: tokenizer.tokenize(text, special=False), port.info.reading
        )
        self.read = reader.read
        self.read_pair = reader.read_pair
        port.connect(self._receive)

    @property
    def info(self) -> ModelInfo:
        return self.port.info

    def on_failure(self, tell: Callable[[], None]) -> None:
        """See `ModelContainer.on_failure`."""
        self._on_failure = tell

    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
        return self._tokenizer.tokenize(text, special=special)

    def detokenize(self, tokens: Sequence[int]) -> str:
        check_tokens(tokens, self.info, "prompt")
        return self._tokenizer.detokenize(tokens)

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

    async def aclose(self) -> None:
        """See `EncoderContainer.aclose`."""
        if not self._close_sent:
            self._close_sent = True
            if self._lost is None:
                self.port.send(Close())
            await self._closed.wait()

    def _receive(self, event: Event) -> None:
        match event:
            case Encoded(key) | Left(key):
                answer = self._open.get(key)
                if answer is not None and not answer.done():
                    answer.set_result(event)
            case Broke(reason):
                self._fail(reason)
            case Lost(reason):
                self._fail(reason)
                self._end(reason)
            case Closed():
                self._end(CLOSED)
            case _:
                raise AssertionError(f"{type(event).__name__} of a model that generates")

    def _fail(self, reason: str) -> None:
        if self.failure is None:
            self.failure = reason
            self._on_failure()

    def _end(self, reason: str) -> None:
        """Nothing more comes."""
        self._lost = Failure.of(EngineLost(reason))
        for key in tuple(self._open):
            self._receive(Encoded(key, failure=self._lost))
        self._on_failure = lambda: None  # whoever is told of it has this container
        self._closed.set()


def over(port: Port, tokenizer: Tokenizer) -> PortContainer | PortEncoder:
    """The container of a model whose engine is behind `port`, by its task."""
    kind = PortContainer if port.info.task == "generate" else PortEncoder
    return kind(port, tokenizer)
