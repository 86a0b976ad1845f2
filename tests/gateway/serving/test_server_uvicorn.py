"""The server stands on parts of uvicorn that are not for others: they are as they were read."""

import inspect
import re
import tomllib
from importlib.metadata import version

import pytest
from packaging.requirements import Requirement
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from gateway.serving.server import GuardedConnection, GuardedSocket, Watched
from tests.served import ROOT

READ: list[tuple[type, set[str]]] = [
    (FlowControl, {"read_paused", "write_paused"}),
    (HttpToolsProtocol, {"client", "connections", "flow", "loop", "transport"}),
    (
        RequestResponseCycle,
        {
            "disconnected",
            "message_event",
            "more_body",
            "response_complete",
            "response_started",
            "scope",
        },
    ),
    (
        WebSocketsSansIOProtocol,
        {"client", "close_sent", "close_timeout", "handshake_complete", "loop", "scope"},
    ),
]


def test_another_uvicorn_than_the_one_that_was_read_is_not_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (wanted,) = (
        found.specifier
        for found in map(Requirement, project["dependencies"])
        if found.name == "uvicorn"
    )
    major, minor, _ = map(int, version("uvicorn").split("."))
    assert wanted.contains(version("uvicorn"))
    assert not wanted.contains(f"{major}.{minor + 1}.0")
    assert not wanted.contains(f"{major}.{minor - 1}.0")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(GuardedConnection, HttpToolsProtocol), (GuardedSocket, WebSocketsSansIOProtocol)],
)
def test_what_is_called_instead_is_still_called_so(ours: type, theirs: type) -> None:
    written = vars(Watched).keys() | vars(ours).keys()
    instead = {name for name in written & vars(theirs).keys() if not name.startswith("__")}
    assert {"connection_lost", "pause_writing", "resume_writing", "shutdown"} <= instead
    for name in instead:
        own, its = (
            list(inspect.signature(getattr(one, name)).parameters) for one in (ours, theirs)
        )
        assert own == its, name
    if ours is GuardedConnection:
        assert {"_start_asgi_task", "on_response_complete", "on_body"} <= instead


@pytest.mark.parametrize(("theirs", "names"), READ)
def test_what_is_read_is_still_there(theirs: type, names: set[str]) -> None:
    assert names <= set(re.findall(r"self\.(\w+)", inspect.getsource(theirs)))
