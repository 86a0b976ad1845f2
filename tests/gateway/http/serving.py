"""A real server on a real socket, in the test's own event loop, so that a test can look at the
rooms behind it.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
from anyio.abc import SocketStream

import bundled
from backends.contract.catalog import BACKENDS, Catalog
from backends.machine.supervision import Supervisor
from config.settings import Config, KeyConfig, ModelConfig, ServerConfig
from gateway.http.metrics import Metrics
from gateway.hub.hub import cached_models
from gateway.reconfiguring.reloading import ConfigSource, Reloader
from gateway.registry import History, ModelLibrary, Registry
from gateway.registry.line import Clock
from gateway.registry.loaders import Loader
from gateway.serving.app import build
from gateway.serving.server import Server
from gateway.terms.logs import LogLines
from tests.hang import HANG

SCRIPT = """{"context_length": 4096, "lines": [
  {"when": "break", "say": "This line breaks.", "fail_after": 4},
  {"when": "think", "say": "<think>Let me see.</think>\\n\\nSeen."},
  {"when": "long", "say": "%s"},
  {"when": "", "say": "Hello from the script."}
]}""" % ("The engine turns. " * 100)

# Tokens a second at which the answer to "long" lasts six minutes: twice as long as a test may hang.
LASTING = 5.0

HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]
LONG: list[Any] = [{"role": "user", "content": "long"}]


class Running(msgspec.Struct, frozen=True):
    """A server that listens."""

    url: str
    registry: Registry
    client: httpx.AsyncClient
    server: Server

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


def models(folder: Path, **options: object) -> tuple[ModelConfig, ...]:
    """The bundled model, and a scripted one that takes `options`."""
    script = folder / "demo.script.json"
    script.write_text(SCRIPT)
    return (
        ModelConfig(name="roundhouse-tiny", path=str(bundled.GGUF), aliases=("org/tiny",)),
        ModelConfig(name="scripted", path=str(script), options=options),
    )


def config(
    folder: Path,
    *,
    keys: Sequence[KeyConfig] = (),
    server: ServerConfig | None = None,
    **options: object,
) -> Config:
    return Config(
        server=msgspec.structs.replace(server or ServerConfig(), port=0),
        keys=tuple(keys),
        models=models(folder, **options),
    )


@asynccontextmanager
async def serving(
    settings: Config,
    folder: Path,
    catalog: Catalog = BACKENDS,
    source: ConfigSource | None = None,
    page: Path = Path("/nonexistent"),
    lines: LogLines | None = None,
    kind: type[ModelLibrary] = ModelLibrary,
    clock: Clock | None = None,
    supervisor: Supervisor | None = None,
) -> AsyncIterator[Running]:
    """The server runs in the context. `source`: of configurations that are read while it does;
    `page`: the folder of the console's files, which only its tests wait for; `lines`: its log;
    `kind`: of its library of models; `supervisor`: of its companions.
    """
    metrics = Metrics()
    registry = Registry(
        kind(
            settings,
            catalog=catalog,
            cache=cached_models(settings) if settings.hub.cache else None,
        ),
        settings,
        clock=clock,
        loader=Loader(catalog),
        history=History(folder / "needs.json"),
        watch=metrics.on_model_event,
    )
    registry.supervisor = supervisor or registry.supervisor
    listening = anyio.Event()
    addresses: list[str] = []

    def greet(address: str) -> None:
        addresses.append(address)
        listening.set()

    reloader = Reloader(settings, source)
    server = Server(
        build(
            settings, registry, metrics, catalog=catalog, reloader=reloader, page=page, lines=lines
        ),
        settings.server,
        registry,
        greet,
        timed_out=metrics.send_timed_out,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve)
        with anyio.fail_after(HANG):
            await listening.wait()
        try:
            async with plain_client(addresses[0]) as client:
                yield Running(addresses[0], registry, client, server)
        finally:  # a test that fails must not wait for a server that runs on
            server.should_exit = True


def plain_client(url: str) -> httpx.AsyncClient:
    """Without certificates: reading those of all authorities takes longer than a test. It reuses no
    connection that has been idle for nearly the five seconds after which uvicorn closes it.
    """
    limits = httpx.Limits(keepalive_expiry=1.0)
    return httpx.AsyncClient(base_url=url, timeout=HANG, verify=False, limits=limits)


async def state(running: Running, name: str, wanted: str) -> None:
    """Wait until a model is in a state."""
    with anyio.fail_after(HANG):
        while running.registry.status(name).state != wanted:
            await anyio.sleep(0.005)


async def endings(running: Running) -> dict[str, float]:
    """A bias with which the bundled model soon comes to the end of any JSON."""
    bias = {}
    for text in ('"', "}"):
        body = {"model": "roundhouse-tiny", "text": text, "add_bos_token": False}
        answer = await running.client.post("/v1/token/encode", json=body)
        (token,) = answer.json()["tokens"]
        bias[str(token)] = 20.0
    return bias


def events(text: str) -> list[dict[str, Any]]:
    """What the `data:` lines of a stream hold, but for OpenAI's end."""
    lines = [line for line in text.splitlines() if line.startswith("data: {")]
    return [msgspec.json.decode(line.removeprefix("data: ")) for line in lines]


async def send_chat(running: Running, body: bytes) -> SocketStream:
    """A request on a bare socket, to be abandoned at will."""
    stream = await anyio.connect_tcp("127.0.0.1", running.port)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    await stream.send(head.encode() + body)
    return stream
