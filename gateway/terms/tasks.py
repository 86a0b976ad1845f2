"""Task groups that end with a body of code, and bounded worker threads for work that grows with a
request.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeAlias, TypeVar

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

T = TypeVar("T")
Wanted: TypeAlias = Callable[[], bool]

BODY_THREADS = 2  # long bodies read at a time
PROMPT_THREADS = 8  # prompts rendered or tokenized at a time; the others wait in line


@asynccontextmanager
async def companions() -> AsyncIterator[TaskGroup]:
    """Like `anyio.create_task_group`, but the tasks are cancelled when the body ends.

    A single exception is raised bare instead of in a group: callers catch `GatewayError` and such.
    """
    try:
        async with anyio.create_task_group() as tasks:
            yield tasks
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from group.exceptions[0].__cause__
        raise


class Signal:
    """Wakes all who wait for it. It keeps nothing: look at what may have changed, then wait."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def give(self) -> None:
        """Who waits now goes on."""
        self._event.set()
        self._event = anyio.Event()

    async def wait(self) -> None:
        """Until it is given again."""
        await self._event.wait()


@asynccontextmanager
async def relayed(write: Callable[[T], Awaitable[None]]) -> AsyncIterator[Callable[[T], None]]:
    """A callback for reports, which a task of its own writes as fast as `write` takes them: the
    newest alone, so that nothing piles up. The last is written before the context ends.
    """
    newest: deque[T] = deque(maxlen=1)
    came, one_writes = Signal(), anyio.Lock()

    async def write_newest() -> None:
        async with one_writes:
            while newest:
                await write(newest.pop())

    async def relay() -> None:
        while True:
            await write_newest()
            await came.wait()

    def report(one: T) -> None:
        newest.append(one)
        came.give()

    async with companions() as tasks:
        tasks.start_soon(relay)
        yield report
        await write_newest()


class Abandoned(Exception):
    """The caller has left, so the work stops; never seen by a client."""


class WorkerThreads:
    """At most `limit` threads, those included whose callers have left."""

    def __init__(self, limit: int = PROMPT_THREADS) -> None:
        self._executor = ThreadPoolExecutor(limit, thread_name_prefix="prompt")

    async def run(self, work: Callable[[Wanted], T], *, is_long: bool = True) -> T:
        """`work(wanted)` in a thread; waits for a free one. What isn't long is done at once.

        When this call is cancelled it returns at once. `wanted()` is False from then on: `work`
        checks it between its pieces and raises `Abandoned`. Work not begun is never begun.
        """
        if not is_long:
            return work(lambda: True)
        left = threading.Event()
        future = self._executor.submit(work, lambda: not left.is_set())
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            left.set()
            raise


class FileSystems:
    """Asks file systems in threads, and doesn't wait for one that hangs, as a share may: what hangs
    isn't asked again meanwhile, so that it takes no more threads.
    """

    def __init__(self) -> None:
        self._asked: dict[object, tuple[str, float]] = {}  # what for, and when, by time.monotonic

    async def ask(self, name: str, question: Callable[[], T], patience: float) -> T:
        """`question()`; `name`: of what it is about. Raises TimeoutError after `patience` seconds,
        and at once where another question about it has been waiting as long.
        """
        now, asked = time.monotonic(), list(self._asked.values())  # threads change it meanwhile
        if any(one == name and now - since >= patience for one, since in asked):
            raise TimeoutError

        def answer() -> T:
            # here, since who leaves before a thread is free asks nothing
            self._asked[token := object()] = name, time.monotonic()
            try:
                return question()
            finally:
                del self._asked[token]

        with anyio.fail_after(patience):
            return await to_thread.run_sync(answer, abandon_on_cancel=True)
