"""The process of a command, whatever becomes of its guardian."""

import asyncio
import os
import signal

import pytest

from backends.machine import command
from backends.machine.command import Command, Process
from tests.hang import HANG

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_guardian_that_can_do_nothing_any_more_holds_nobody_up(
    kill: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "BEYOND", 0.2)
    words = ["sh", "-c", "sleep 600 & echo $!; wait"]
    process = await Process.start(
        Command(name="c", words=words, environment={**os.environ}, stop_timeout=0.1, talks=True)
    )
    left = int(await process.said.readline())  # it lives on, and holds the pipes
    os.kill(process.guardian, kill)
    try:
        async with asyncio.timeout(HANG):
            await process.stop()
        assert process.ended.is_set()
        os.kill(left, 0)
    finally:
        os.kill(left, signal.SIGKILL)
        await asyncio.sleep(0.1)  # the pipes' ends are seen
