"""Loads of commands that are cancelled."""

import asyncio
import shlex
import sys
from pathlib import Path

import anyio
import psutil
import pytest

from backends.places.command.container import load
from backends.places.command.files import named
from config.engines import CommandOptions
from tests.hang import HANG

STANDIN = Path(__file__).with_name("standin.py")


@pytest.mark.parametrize("uvloop", [False, True])
def test_a_load_that_is_cancelled_waits_for_its_command_s_end(tmp_path: Path, uvloop: bool) -> None:
    pids = tmp_path / "pids"
    words = [sys.executable, "-I", "-S", str(STANDIN), "--pids", str(pids)]
    command = f"{shlex.join(words)} --port {{port}} --never-up --ignores-sigterm"

    async def cancel() -> None:
        with anyio.fail_after(HANG):
            async with anyio.create_task_group() as tasks:
                options = CommandOptions(command=command, stop_timeout=0.2)
                tasks.start_soon(load, named("far", None), options, lambda _step: None)
                while not (pids.exists() and pids.read_text().endswith("\n")):
                    await anyio.sleep(0.01)
                tasks.cancel_scope.cancel()
            assert not psutil.pid_exists(int(pids.read_text()))
            assert asyncio.all_tasks() == {asyncio.current_task()}

    anyio.run(cancel, backend_options={"use_uvloop": uvloop})
