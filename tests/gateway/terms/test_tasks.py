"""Reports from a callback reach whoever writes them, in order, the newest alone; delayed work has
no task before it begins, and none behind its context.
"""

import threading
import time

import anyio
import pytest

from gateway.terms.tasks import FileSystems, relayed
from tests.hang import HANG

pytestmark = pytest.mark.anyio


async def test_the_last_report_is_written_before_the_context_ends() -> None:
    written: list[int] = []

    async def write(number: int) -> None:
        await anyio.lowlevel.checkpoint()
        written.append(number)

    async with relayed(write) as report:
        report(1)
        await anyio.wait_all_tasks_blocked()
        report(2)
        report(3)
    assert written == [1, 3]


async def test_who_writes_slowly_is_given_the_newest_and_nothing_piles_up() -> None:
    written: list[int] = []
    may_write = anyio.Event()

    async def write(number: int) -> None:
        await may_write.wait()
        written.append(number)

    with anyio.fail_after(HANG):
        async with relayed(write) as report:
            report(0)
            await anyio.wait_all_tasks_blocked()
            for number in range(1, 100_000):
                report(number)
            may_write.set()
    assert written == [0, 99_999]


async def test_who_can_not_write_ends_the_body() -> None:
    async def write(number: int) -> None:
        raise ValueError(number)

    async def endless() -> None:
        async with relayed(write) as report:
            report(7)
            await anyio.sleep_forever()

    with anyio.fail_after(HANG), pytest.raises(ValueError, match="7"):
        await endless()


async def test_a_file_system_answers_while_another_is_asked() -> None:
    asked, may_answer = FileSystems(), threading.Event()

    class Compared(str):
        """The other question ends while the name is compared with its own."""

        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            may_answer.set()
            time.sleep(0.05)
            return False

    async with anyio.create_task_group() as tasks:
        for name in ("one", "other"):
            tasks.start_soon(asked.ask, name, may_answer.wait, HANG)
        await anyio.wait_all_tasks_blocked()
        assert await asked.ask(Compared("third"), lambda: "there", HANG) == "there"


async def test_who_leaves_before_it_is_asked_leaves_no_question() -> None:
    asked, patience = FileSystems(), 1.5  # seconds in which a thread begins beside any load
    with anyio.CancelScope() as left:
        left.cancel()
        await asked.ask("model", lambda: "there", patience)
    await anyio.sleep(patience)
    assert await asked.ask("model", lambda: "there", patience) == "there"
