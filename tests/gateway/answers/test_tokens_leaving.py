"""A client that leaves while its long text is tokenized: the lease goes back at once, though the
thread is still at it.
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import anyio
import msgspec
import pytest

from backends.contract.catalog import BACKENDS, Backend, Catalog, ContainerModule, ModelFiles
from backends.contract.protocol import ModelContainer, Report
from backends.engines.driver import DrivenContainer
from config.engines import EngineOptions
from config.settings import Config, ModelConfig, ServerConfig
from gateway.answers.tokens import LONG_TEXT
from tests.backends.engines.toy.engine import TableEngine
from tests.backends.engines.toy.files import ToyOptions, read
from tests.backends.engines.toy.test_container import ToyConfig
from tests.gateway.http.serving import send_chat, serving
from tests.gateway.serving.test_server_leaving import in_use
from tests.hang import HANG

pytestmark = pytest.mark.anyio


class Gate:
    """Where a thread waits; `begun` once it does."""

    def __init__(self) -> None:
        self.begun, self.open = threading.Event(), threading.Event()


class SlowEngine(TableEngine):
    """Tokenizes a long text when its gate is open."""

    gate: Gate

    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
        if len(text) >= LONG_TEXT:
            self.gate.begun.set()
            self.gate.open.wait(HANG)
        return super().tokenize(text, special=special)


class SlowContainer(msgspec.Struct, frozen=True):
    gate: Gate

    async def load(
        self, files: ModelFiles, options: EngineOptions, report: Report
    ) -> ModelContainer:
        assert isinstance(options, ToyOptions)
        engine = SlowEngine(files, read(files.path), options)
        engine.gate = self.gate
        return DrivenContainer(engine)


class SlowBackend(Backend, frozen=True, kw_only=True):
    gate: Gate

    @property
    def container(self) -> ContainerModule:
        return cast(ContainerModule, SlowContainer(self.gate))


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


def settings(folder: Path) -> Config:
    path = folder / "a.toy.json"
    table = {
        "after": {},
        "context_length": 10 * LONG_TEXT,
        "chat_template": "{{ messages[0].content }}",
    }
    path.write_bytes(msgspec.json.encode(table))
    return ToyConfig(server=ServerConfig(port=0), models=(ModelConfig(name="a", path=str(path)),))


@pytest.mark.parametrize("streamed", [True, False])
async def test_the_lease_goes_back_while_the_text_is_tokenized(
    streamed: bool, gate: Gate, tmp_path: Path
) -> None:
    toy = SlowBackend(
        name="toy", options=ToyOptions, package="tests.backends.engines.toy", gate=gate
    )
    said = [{"role": "user", "content": "x" * LONG_TEXT}]
    body = msgspec.json.encode({"model": "a", "messages": said, "stream": streamed})
    async with serving(settings(tmp_path), tmp_path, Catalog((*BACKENDS.values(), toy))) as running:
        async with await send_chat(running, body) as stream:
            with anyio.fail_after(HANG):
                while not gate.begun.is_set():
                    await anyio.sleep(0.005)
            await in_use(running.registry, 1)
            await stream.aclose()
            await in_use(running.registry, 0)
            assert not gate.open.is_set()
        gate.open.set()
