"""Generations that are polled and aborted by other requests, as KoboldCpp has it.

A generation is found by its owner and by the key that the client gave it. Its text is kept for a
while when it is over, because clients poll it after they aborted it.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeAlias

import anyio
import msgspec
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from gateway.answers.answer import Answer
from gateway.events import Usage

MOST_TEXTS = 64  # texts that are over
MOST_CHARACTERS = 4 << 20  # of all that are kept together

Name: TypeAlias = tuple[str, str]  # owner, key
NOTHING = Usage(prompt_tokens=0, completion_tokens=0)


class PolledReply(Protocol):
    """The part of a dialect's reply that is used here."""

    @property
    def stop_reason(self) -> int: ...

    def texts(self) -> Sequence[str]: ...

    def closing(self, usage: Usage) -> bytes: ...

    def whole(self, usage: Usage) -> bytes: ...


class PolledAnswer:
    """One that runs. `answer`: None until one has begun."""

    def __init__(self, owner: str, key: str, reply: PolledReply) -> None:
        self.name: Name = (owner, key)
        self.reply = reply
        self.answer: Answer | None = None
        self.scope = anyio.CancelScope()

    def usage(self) -> Usage:
        """Usage so far."""
        return self.answer.usage() if self.answer is not None else NOTHING


class Last(msgspec.Struct, frozen=True):
    """An owner's newest generation that is over."""

    usage: Usage = NOTHING
    stop_reason: int = -1


class Generations:
    """All that run, and the newest that are over."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._running: list[PolledAnswer] = []
        self._over: OrderedDict[Name, Sequence[str]] = OrderedDict()
        self._last: dict[str, Last] = {}
        self._counts: Counter[str] = Counter()

    @contextmanager
    def running(self, generation: PolledAnswer) -> Iterator[None]:
        """It can be found in this context; then only its text."""
        self._running.append(generation)
        try:
            yield
        finally:
            self._running.remove(generation)
            self._end(generation)

    def texts(self, owner: str, key: str) -> Sequence[str]:
        """What the generation said, or says: of several of one name the newest; without a key of
        the only one, because among several it would be ambiguous. Empty where there is none.
        """
        running = self._named(owner, key)
        if running and (key or len(running) == 1):
            return running[-1].reply.texts()
        return () if running else self._over.get((owner, key), ())

    def abort(self, owner: str, key: str) -> bool:
        """End those of the name; without a key the only one. Whether there was any."""
        running = self._named(owner, key)
        if not key and len(running) != 1:
            return False
        for generation in running:
            generation.scope.cancel()
        return bool(running)

    def last(self, owner: str) -> Last:
        """The owner's newest that is over."""
        return self._last.get(owner, Last())

    def uptime(self) -> float:
        """Seconds since there could be any."""
        return time.monotonic() - self._began

    def count(self, owner: str) -> int:
        """How many of the owner's are over."""
        return self._counts[owner]

    def _named(self, owner: str, key: str) -> list[PolledAnswer]:
        return [one for one in self._running if one.name == (owner, key)]

    def _end(self, generation: PolledAnswer) -> None:
        owner, _ = generation.name
        self._counts[owner] += 1
        self._last[owner] = Last(generation.usage(), generation.reply.stop_reason)
        self._over.pop(generation.name, None)
        self._over[generation.name] = generation.reply.texts()
        while len(self._over) > MOST_TEXTS or self._characters() > MOST_CHARACTERS:
            self._over.popitem(last=False)

    def _characters(self) -> int:
        return sum(len(text) for texts in self._over.values() for text in texts)


class Abortable:
    """An exchange that `Generations.abort` ends: what was said until then is the whole answer."""

    def __init__(
        self,
        exchange: ASGIApp,
        generations: Generations,
        generation: PolledAnswer,
        *,
        stream: bool,
        begun: Callable[[bytes], ASGIApp],
    ) -> None:
        """`begun`: a response of the bytes, for an answer of which nothing was sent yet."""
        self._exchange = exchange
        self._generations = generations
        self._generation = generation
        self._stream = stream
        self._begun = begun

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises as the exchange does."""
        sent: list[Message] = []

        async def noting(message: Message) -> None:
            sent[:] = [message]
            await send(message)

        with self._generations.running(self._generation):
            with self._generation.scope:
                await self._exchange(scope, receive, noting)
            if self._generation.scope.cancelled_caught:
                await self._end(sent, scope, receive, send)

    async def _end(
        self, sent: Sequence[Message], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """The rest of the answer."""
        reply, usage = self._generation.reply, self._generation.usage()
        body = reply.closing(usage) if self._stream else reply.whole(usage)
        if not sent:
            await self._begun(body)(scope, receive, send)
        elif sent[0].get("more_body", True):
            await send({"type": "http.response.body", "body": body, "more_body": False})
