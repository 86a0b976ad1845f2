"""Reports from a callback reach whoever writes them, in order, the newest alone; delayed work has
no task before it begins, and none behind its context.
"""

import asyncio

import anyio
import pytest

from gateway.terms.tasks import delayed, relayed
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


async def test_delayed_work_has_no_task_until_it_begins_and_none_behind_the_context() -> None:
    """A timer begins it, which belongs to no task."""
    begun, ended = anyio.Event(), anyio.Event()

    async def work() -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    before = asyncio.all_tasks()
    with anyio.fail_after(HANG):
        async with delayed(HANG, work):
            await anyio.lowlevel.checkpoint()
            assert asyncio.all_tasks() == before
        async with delayed(0.0, work) as begin:
            await begun.wait()
            begin()  # harmless
            assert len(asyncio.all_tasks()) == len(before) + 1
    assert ended.is_set()
    assert asyncio.all_tasks() == before


async def test_delayed_work_ends_with_a_body_that_is_cancelled() -> None:
    begun, ended = anyio.Event(), anyio.Event()

    async def work() -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    with anyio.fail_after(HANG), anyio.CancelScope() as scope:
        async with delayed(HANG, work) as begin:
            begin()
            await begun.wait()
            scope.cancel()
            await anyio.sleep_forever()
    assert ended.is_set()


async def test_what_delayed_work_raises_is_raised_where_its_context_ends() -> None:
    async def work() -> None:
        raise ValueError("7")

    async def body() -> None:
        async with delayed(HANG, work) as begin:
            begin()
            await anyio.wait_all_tasks_blocked()

    with pytest.raises(ValueError, match="7"):
        await body()
