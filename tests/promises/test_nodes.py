"""Models on another machine, as users meet them: `roundhouse worker` there, a node here, and what
happens when the node is gone and comes back.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import bundled
from tests.served import COMMAND, ROOT, Serve, assert_sound, events, scripted

CHAT = "/v1/chat/completions"
TOKEN = "of-no-use-anywhere-else"
SAID = "one two three " * 20


def body(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "Hello!"}], **more}


@contextmanager
def worker(*arguments: str) -> Iterator[tuple[Mapping[str, Any], "subprocess.Popen[str]"]]:
    """`roundhouse worker`, what it printed, and its process."""
    with subprocess.Popen(
        (*COMMAND, "worker", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "ROUNDHOUSE_WORKER_TOKEN": TOKEN},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            yield json.loads(process.stdout.readline()), process
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            assert_sound(process.stderr.read())


def there(folder: Path, address: str, *, tls: bool = False) -> dict[str, Any]:
    """A server's configuration: one model on the node, and one here."""
    node = {"name": "box", "address": address, "token": TOKEN, "tls": tls}
    model = {"name": "far", "path": str(bundled.GGUF), "options": {"host": "box"}}
    return {
        "nodes": [node],
        "models": [model, scripted(folder, "near", SAID, tokens_per_second=200)],
        "swap": {"backoff": 0.0},
    }


def answer(client: httpx.Client, model: str) -> str:
    reply = client.post(CHAT, json=body(model, max_tokens=200))
    assert reply.status_code == 200, reply.text
    message = reply.json()["choices"][0]["message"]
    return f"{message.get('reasoning_content') or ''}{message['content']}"


def test_a_model_of_another_machine_answers_as_one_here(serve: Serve, tmp_path: Path) -> None:
    arguments = ("--listen", "127.0.0.1:0", "--tls", "--model-dir", str(bundled.GGUF.parent))
    with worker(*arguments) as (reached, _):
        assert reached["fingerprint"].startswith("sha256:")
        server = serve(there(tmp_path, reached["address"], tls=True))
        assert answer(server.client, "far")
        state = {one["id"]: one for one in server.client.get("/v1/models").json()["data"]}
        assert state["far"]["status"]["value"] == "loaded"
        assert server.client.post("/models/unload", json={"model": "far"}).status_code == 200
        assert answer(server.client, "far")


@pytest.mark.slow
def test_a_node_that_is_lost_ends_its_answers_alone_and_comes_back(
    serve: Serve, tmp_path: Path
) -> None:
    with worker("--listen", "127.0.0.1:0") as (reached, process):
        server = serve(there(tmp_path, reached["address"]), expected=("the model broke",))
        assert answer(server.client, "far")
        more = {"max_tokens": 400, "ignore_eos": True, "stream": True}
        with (
            server.client.stream("POST", CHAT, json=body("far", **more)) as far,
            server.client.stream("POST", CHAT, json=body("near", stream=True)) as near,
        ):
            process.send_signal(signal.SIGSTOP)
            ended, went_on = far.read().decode(), near.read().decode()
        if "[DONE]" not in ended:
            assert "is lost: node box" in ended
        assert [one for one in events(went_on) if one != "[DONE]"]
        assert went_on.rstrip().endswith("[DONE]")
        server.log.wait_for("the model broke")
        process.send_signal(signal.SIGCONT)
        assert answer(server.client, "far")


def test_a_node_that_is_not_there_is_said_and_asked_for_again(serve: Serve, tmp_path: Path) -> None:
    with worker("--listen", "127.0.0.1:0") as (reached, _):
        address = reached["address"]
    server = serve(there(tmp_path, address))
    reply = server.client.post(CHAT, json=body("far"))
    assert reply.status_code == 503
    assert "node box" in reply.json()["error"]["message"]
    assert answer(server.client, "near").startswith("one two three")
