"""Real servers in processes of their own, one of which is killed under load."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from benchmarks.peers import roundhouse
from config.settings import Config
from config.upstreams import UpstreamConfig
from tests.gateway.http.serving import Running, serving
from tests.hang import HANG

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

STREAMS = 20
SCRIPT = {"lines": [{"say": "Word after word it goes on for a while. " * 4}]}
DOOMED = 0.5  # tokens a second: none of its answers is over before it is killed
LIVING = 20


@contextlib.asynccontextmanager
async def in_front(folder: Path, *ports: int) -> AsyncIterator[Running]:
    upstream = UpstreamConfig(
        name="two",
        urls=tuple(f"http://127.0.0.1:{port}/v1" for port in ports),
        models={"slow": "slow"},
        failures=1,
        probe_interval=0.2,
    )
    server = msgspec.structs.replace(Config().server, port=0)
    async with serving(Config(server=server, upstreams=(upstream,)), folder) as running:
        async with asyncio.timeout(HANG):
            while not are_loaded(running):  # else all requests go where the first one loads it
                await asyncio.sleep(0.01)
        yield running


def are_loaded(running: Running) -> bool:
    """Whether every server is known to have the model in memory."""
    known = [one.standings or {} for one in running.registry.fleet.replicas()["two"]]
    return all("slow" in each and each["slow"].state == "loaded" for each in known)


async def stream(running: Running, number: int, began: asyncio.Event) -> str:
    """All of one answer; `began` is set with its first words."""
    body = {
        "model": "slow",
        "stream": True,
        "messages": [{"role": "user", "content": f"Go {number}"}],
    }
    text = ""
    async with running.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for part in answer.aiter_text():
            text += part
            if "content" in part:
                began.set()
    return text


def configured(script: Path, pace: float) -> str:
    """The path of a configuration. `pace`: tokens a second."""
    path = script.with_name(f"{pace}.yaml")
    options = f"{{tokens_per_second: {pace}}}"
    path.write_text(
        f"models: [{{name: slow, path: {script}, preload: true, options: {options}}}]\n"
    )
    return str(path)


async def test_one_of_two_servers_killed_under_load(tmp_path: Path) -> None:
    """What it had begun ends with an error; all the rest is answered, and by the other alone."""
    script = tmp_path / "slow.script.json"
    script.write_bytes(msgspec.json.encode(SCRIPT))
    own = {"XDG_CACHE_HOME": str(tmp_path)}
    with (
        roundhouse("--config", configured(script, DOOMED), environment=own) as doomed,
        roundhouse("--config", configured(script, LIVING), environment=own) as living,
    ):
        async with in_front(tmp_path, doomed.port, living.port) as running, asyncio.timeout(HANG):
            began = [asyncio.Event() for _ in range(STREAMS)]
            asking = [asyncio.ensure_future(stream(running, k, one)) for k, one in enumerate(began)]
            for one in began:
                await one.wait()
            for process in (*psutil.Process(doomed.pid).children(), psutil.Process(doomed.pid)):
                os.kill(process.pid, signal.SIGKILL)
            answers = await asyncio.gather(*asking)
            after: list[Any] = [await stream(running, k + 100, asyncio.Event()) for k in range(3)]

    whole = [one for one in answers if one.endswith("data: [DONE]\n\n")]
    broken = [one for one in answers if '"code":"upstream_cut"' in one]
    assert len(whole) + len(broken) == STREAMS, "each ends in one of the two ways"
    assert whole
    assert broken
    assert all("[DONE]" not in one for one in broken)
    assert all(one.endswith("data: [DONE]\n\n") for one in after)
