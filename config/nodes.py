"""Other machines whose workers run models of this server: where they listen, and the secret that
both ends prove to have.
"""

import re
from collections.abc import Iterator
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from config.errors import Problem, Source
from config.shape import represented
from config.values import Name, Secret, fault

HERE = ("process", "worker", "auto")  # what `host` may be besides a node's name
SHORTEST_TOKEN = 16  # characters: who overhears a connection without TLS can try out short ones

# box2.lan:7000, 10.0.0.2:7000, [fd00::2]:7000
ADDRESS = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:/\[\]]+)):(?P<port>[0-9]{1,5})")
Fingerprint: TypeAlias = Annotated[str, Meta(pattern="^sha256:[0-9a-f]{64}$")]


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One machine where `roundhouse worker` runs."""

    name: Name  # what models' `host` says
    address: Name  # host:port
    token: Secret
    tls: bool = False
    fingerprint: Fingerprint | None = None  # of its certificate; None: the token vouches for it

    __repr__ = represented


def split(address: str) -> tuple[str, int]:
    """The host and the port. Raises ValueError."""
    found = ADDRESS.fullmatch(address)
    if found is None or int(found["port"]) > 65_535:
        raise ValueError(f"expected HOST:PORT, got {address!r}")
    return found["six"] or found["host"], int(found["port"])


def joined(host: str, port: int) -> str:
    """As `split` reads it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_nodes(nodes: tuple[NodeConfig, ...], source: Source) -> None:
    """Raises ConfigError, which never quotes a token."""
    source.refuse_twins("nodes", (node.name for node in nodes), HERE)
    for index, node in enumerate(nodes):
        source.refuse(f"$.nodes[{index}]", _problems(node))


def _problems(node: NodeConfig) -> Iterator[Problem]:
    if (problem := fault(split, node.address)) is not None:
        yield "address", problem
    if len(node.token) < SHORTEST_TOKEN:
        yield "token", f"a token has {SHORTEST_TOKEN} characters or more"
    if node.fingerprint is not None and not node.tls:
        yield "fingerprint", "only with `tls: true`"
