"""Answers that run in the background: read along by anybody at any time, and not too many."""

import anyio
import pytest

from gateway.errors import QueueFull
from gateway.http.detached import Run, Runs
from tests.hang import HANG

pytestmark = pytest.mark.anyio


def run() -> Run:
    return Run("owner", lambda: b"{}")


async def test_readers_come_at_any_time_and_get_all_from_where_they_want() -> None:
    one, found = run(), {}

    async def read(start: int) -> None:
        found[start] = b"".join([frames async for frames in one.read(start)])

    with anyio.fail_after(HANG):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, 0)
            one.take(b"data: 0\n\ndata: 1\n\n")
            one.take(b": still here\n\n")
            await anyio.lowlevel.checkpoint()
            tasks.start_soon(read, 1)
            await anyio.lowlevel.checkpoint()
            one.take(b"data: 2\n\n")
            one.end()
        await read(2)
        await read(9)
    everything = b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
    assert found == {0: everything, 1: everything[9:], 2: everything[18:], 9: b""}
    assert one.events() == everything


async def test_a_run_is_its_owners_and_gone_when_it_is_over() -> None:
    everything, one, going = Runs(), run(), anyio.Event()
    async with everything.running():
        async with everything.beginning("r", one):
            everything.begin("r", going.wait)
        assert everything.of("owner", "r") is one
        assert everything.of("other", "r") is None
        going.set()
        with anyio.fail_after(HANG):
            await one.ended.wait()
        assert everything.of("owner", "r") is None


async def test_no_more_than_so_many_and_a_failed_beginning_gives_its_place_back() -> None:
    everything = Runs(most=1)
    with pytest.raises(OSError, match="full"):
        async with everything.beginning("a", run()):
            raise OSError("the disk is full")
    async with everything.beginning("b", run()):
        with pytest.raises(QueueFull):
            async with everything.beginning("c", run()):
                pass


async def test_the_servers_end_ends_them() -> None:
    everything, one = Runs(), run()
    async with everything.running():
        async with everything.beginning("r", one):
            everything.begin("r", anyio.sleep_forever)
    assert one.ended.is_set()
