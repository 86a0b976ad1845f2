"""What runs as long as the server: its failures end nothing else; what all need ends the server."""

import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import pytest
from structlog.testing import capture_logs

from backends.machine.supervision import Supervisor
from backends.places.upstream.upstream import Upstream
from config.upstreams import UpstreamConfig
from gateway.registry import ModelLibrary
from gateway.registry.line import Clock
from gateway.serving.server import BROKEN
from tests.gateway.http.serving import HELLO, Running, config, serving
from tests.hang import HANG
from tests.served import ROOT

pytestmark = pytest.mark.anyio
# Whatever runs as long as this server; a new one belongs here.
COMPANIONS = {
    "background responses",
    "capabilities",
    "configuration",
    "console",
    "folders",
    "history",
    "joining",
    "upstream",
    "usage",
}


class BrokenLibrary(ModelLibrary):
    """Its folders can be scanned once."""

    scans = 0

    def refresh(self) -> None:
        self.scans += 1
        if self.scans > 1:
            raise RuntimeError("no such disk")
        super().refresh()


class BrokenTransport(httpx.AsyncBaseTransport):
    """It raises what no transport may."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        raise RuntimeError("nobody thought of that")


class BrokenClock(Clock):
    """It stands still, with an error, once it is `broken`."""

    def __init__(self) -> None:
        self.broken = anyio.Event()

    async def wait(self, event: anyio.Event, until: float | None) -> None:
        await self.broken.wait()
        raise RuntimeError("no time")


async def failures(running: Running, watcher: str, least: int) -> None:
    """Wait until it has failed so often, by what is counted."""
    text, most = f'roundhouse_watcher_failures_total{{watcher="{watcher}"}} ', 0.0
    with anyio.fail_after(HANG):
        while most < least:
            lines = (await running.client.get("/metrics")).text.splitlines()
            counts = (line.removeprefix(text) for line in lines if line.startswith(text))
            most = max(map(float, counts), default=0.0)
            await anyio.sleep(0.01)


async def answers(running: Running) -> None:
    body = {"model": "scripted", "messages": HELLO}
    assert (await running.client.post("/v1/chat/completions", json=body)).status_code == 200
    assert (await running.client.get("/health")).status_code == 200


async def test_a_watcher_that_fails_ends_no_answer(tmp_path: Path) -> None:
    with capture_logs() as lines:
        async with serving(config(tmp_path), tmp_path, kind=BrokenLibrary) as running:
            unknown = {"model": "nobody", "messages": HELLO}  # it is looked for in the folders
            await running.client.post("/v1/chat/completions", json=unknown)
            await failures(running, "folders", 1)
            await answers(running)
        assert running.server.status == 0
    assert any(line["event"] == "a watcher failed" for line in lines)


class Breaking(Supervisor):
    """Whatever it keeps up fails when it is begun, and where it is begun again goes on."""

    def __init__(self) -> None:
        super().__init__(rest=0.01)
        self.begun = Counter[str]()

    async def attempt(
        self, watcher: str, work: Callable[..., Awaitable[object]], *arguments: Any
    ) -> bool:
        self.begun[watcher] += 1
        return await super().attempt(
            watcher, work if self.begun[watcher] > 1 else fails, *arguments
        )


async def fails(*_: object) -> None:
    raise RuntimeError("nobody thought of that")


@pytest.mark.slow
async def test_each_companion_fails_once_and_no_answer_is_lost(tmp_path: Path) -> None:
    plain, supervisor = config(tmp_path), Breaking()
    settings = msgspec.structs.replace(
        plain,
        upstreams=(
            UpstreamConfig(name="away", urls=("http://127.0.0.1:9",), models={"far": "far"}),
        ),
        store=msgspec.structs.replace(plain.store, path=str(tmp_path / "store.sqlite")),
    )
    with capture_logs():
        async with serving(settings, tmp_path, supervisor=supervisor) as running:
            await running.client.post(
                "/v1/chat/completions", json={"model": "nobody", "messages": HELLO}
            )
            await answers(running)
            await running.client.post(
                "/v1/responses", json={"model": "scripted", "input": "Hello!", "background": True}
            )
            for watcher in COMPANIONS:
                await failures(running, watcher, 1)
            await answers(running)
        assert running.server.status == 0
    assert set(supervisor.begun) == COMPANIONS


async def test_an_upstream_that_breaks_its_watcher_is_asked_again(tmp_path: Path) -> None:
    far = UpstreamConfig(name="far", urls=("http://far/v1",), refresh=0.01)
    async with serving(config(tmp_path), tmp_path) as running:
        broken = Upstream(far, httpx.AsyncClient(transport=BrokenTransport()))
        fleet = running.registry.fleet
        fleet.apply(msgspec.structs.replace(fleet.roster, upstreams={"far": broken}))
        await failures(running, "upstream", 2)
        await answers(running)


async def broken(folder: Path) -> None:
    """A server whose time stops while a client asks whether it is well."""
    clock = BrokenClock()
    async with serving(config(folder), folder, clock=clock) as running:
        await answers(running)
        clock.broken.set()
        with anyio.move_on_after(HANG):
            while (await running.client.get("/health")).status_code == 200:
                pass
        await anyio.sleep(HANG)


@pytest.mark.slow
def test_where_what_all_need_fails_the_process_ends_with_a_status(tmp_path: Path) -> None:
    program = (
        "import anyio, pathlib, sys; from tests.gateway.serving.test_server_life import broken; "
        "anyio.run(broken, pathlib.Path(sys.argv[1]))"
    )
    command = (sys.executable, "-c", program, str(tmp_path))
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, check=False, text=True, timeout=HANG
    )
    assert ended.returncode == BROKEN, ended.stderr
    assert "the server can't go on: it ends" in ended.stdout + ended.stderr
    assert "no time" in ended.stdout + ended.stderr
