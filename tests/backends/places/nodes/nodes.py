"""Nodes for tests: listeners of this process, or of another one, and models loaded there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from backends.contract.protocol import Progress
from backends.places.container import PortContainer
from backends.places.nodes import node
from backends.places.nodes.listening import ListenerSettings, Listening
from config.engines import EngineOptions
from config.nodes import NodeConfig
from tests.backends.engines.toy.files import ToyOptions
from tests.backends.places.workers import CATALOG, alphabet

TOKEN = "of-no-use-anywhere-else"
SETTINGS = ListenerSettings()


def node_of(there: Listening, **changes: Any) -> NodeConfig:
    """How a gateway has it configured."""
    known = {
        "name": "box",
        "address": there.address,
        "token": there.token,
        "tls": there.fingerprint is not None,
        "fingerprint": there.fingerprint,
    }
    return NodeConfig(**{**known, **changes})


async def load_there(
    place: NodeConfig,
    path: Path,
    options: EngineOptions | None = None,
    backend: str | None = None,
    report: Callable[[Progress], None] = lambda _: None,
) -> PortContainer:
    """The model of the node, loaded."""
    files = await node.recognise(place, str(path), backend)
    engine = CATALOG[files.backend]
    chosen = options or engine.options()
    files = await node.fitted(place, files, chosen)
    container = await node.load(engine, files, chosen, report)
    assert isinstance(container, PortContainer)
    return container


async def load_frail_there(
    place: NodeConfig,
    folder: Path,
    name: str = "alphabet",
    report: Callable[[Progress], None] = lambda _: None,
) -> PortContainer:
    """See `workers.load_frail`."""
    path = alphabet(folder, name)
    return await load_there(place, path, ToyOptions(max_concurrent=4), "frail", report)
