"""A server in front of another one, as its operator meets it: starts while that one is down, names
in the configuration that nobody has, and why a server isn't reached.
"""

from pathlib import Path
from typing import Any

import httpx

from tests.promises.upstreams.test_mesh import said, wait_for_list
from tests.served import Served, command, scripted, served

SOON = 0.05  # seconds


def ask(server: Served, model: str, **fields: Any) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "Who?"}], **fields}
    return server.client.post("/v1/chat/completions", json=body)


def folder(parent: Path, name: str) -> Path:
    (made := parent / name).mkdir(exist_ok=True)
    return made


def in_front(folder: Path, url: str, *fallbacks: str) -> dict[str, Any]:
    upstream = {"name": "box", "urls": [url], "refresh": SOON, "fallbacks": [*fallbacks]}
    return {"models": [scripted(folder, "here", "I am here.")], "upstreams": [upstream]}


# ------------------------------------------------------------------------------------ the beginning


def test_an_upstream_that_is_down_at_the_start_has_its_models_and_their_fallback(
    tmp_path: Path,
) -> None:
    behind, front = folder(tmp_path, "behind"), folder(tmp_path, "front")
    with served(behind, {"models": [scripted(behind, "there", "I am there.")]}) as box:
        config = in_front(front, f"{box.url}/v1", "here")
        with served(front, config) as server:
            wait_for_list(server, {"here", "there"})
            assert said(ask(server, "there")) == "I am there."
    with served(front, config) as server:
        answer = ask(server, "there")
        assert said(answer) == "I am here."
        assert answer.headers["x-roundhouse-model"] == "here"


def test_a_fallback_that_nobody_has_is_reported_once_the_lists_are_there(tmp_path: Path) -> None:
    behind, front = folder(tmp_path, "behind"), folder(tmp_path, "front")
    with served(behind, {"models": [scripted(behind, "there")]}) as box:
        config = in_front(front, f"{box.url}/v1", "hree", "there")
        with served(front, config) as server:
            warned = server.log.wait_for("check the configuration")
        assert warned["option"] == "$.upstreams[0].fallbacks[0]"
        assert "There is no model 'hree'. Nearest: here" in warned["problem"]
        assert len(server.log.records("check the configuration")) == 1

        with command("check", "--config", "roundhouse.yaml", folder=front) as check:
            assert check.status() == 1
        assert "$.upstreams[0].fallbacks[0]: There is no model 'hree'" in check.out.text
        assert "fallbacks[1]" not in check.out.text
