"""Models on another machine, as users meet them: `roundhouse worker` there, a node here, and what
happens when the node is gone and comes back.
"""

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

import bundled
from tests.backends.places.workers import workers_of
from tests.hang import HANG
from tests.served import COMMAND, ROOT, Serve, Served, assert_sound, command, events, scripted

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


BY_NAME = pytest.param({"one_of": "big"}, id="by name", marks=pytest.mark.slow)


@pytest.mark.parametrize("turns", [pytest.param({}, id="by memory"), BY_NAME])
def test_what_a_node_has_in_memory_is_listed(
    serve: Serve, tmp_path: Path, turns: dict[str, str]
) -> None:
    with worker("--listen", "127.0.0.1:0") as (reached, _):
        config = there(tmp_path, reached["address"])
        config["models"][0] |= turns
        server = serve(config)
        assert server.client.get("/v1/nodes").json()["nodes"][0]["models"] == []
        assert answer(server.client, "far")
        [box] = server.client.get("/v1/nodes").json()["nodes"]
        assert (box["name"], box["address"]) == ("box", reached["address"])
        assert (box["models"], box["draining"]) == (["far"], None)
        assert 0 < box["taken"]["box/cpu"] < box["devices"]["box/cpu"]
        [far] = server.client.get("/status").json()["models"]
        assert far["devices"] == {"box/cpu": box["taken"]["box/cpu"]}
        with command("ps", "--url", str(server.client.base_url), folder=tmp_path) as listing:
            assert re.search(r"far +loaded +[0-9.]+ MiB +box/cpu ", listing.out.line_with("far"))
        assert server.client.post("/unload", json={"model": "far"}).status_code == 200
        [box] = server.client.get("/v1/nodes").json()["nodes"]
        assert (box["models"], box["taken"]["box/cpu"]) == ([], 0)


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
            assert '"engine_lost"' in ended
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


def is_of(model: str, line: Mapping[str, Any]) -> bool:
    return bool(line["model"] == model)


@pytest.mark.slow
def test_of_two_replicas_on_two_nodes_one_s_end_ends_no_answer_of_the_other(
    serve: Serve, tmp_path: Path
) -> None:
    at = ("--listen", "127.0.0.1:0")
    with worker(*at) as (one, first), worker(*at) as (other, _):
        config = there(tmp_path, one["address"])
        config["nodes"].append({**config["nodes"][0], "name": "cab", "address": other["address"]})
        far = scripted(tmp_path, "far", "word " * 5_000, tokens_per_second=50, max_concurrent=8)
        config["models"][0] = {**far, "replicas": ["box", "cab"]}
        expected = ("the model broke", "load failed", "preload failed")
        server = serve(config, expected=expected)
        assert server.client.post(CHAT, json=body("far", max_tokens=3)).status_code == 200
        for name in ("far@1", "far@2"):
            server.log.wait_for("model loaded", partial(is_of, name))
        listed = [one["id"] for one in server.client.get("/v1/models").json()["data"]]
        assert sorted(listed) == ["far", "near"]

        killed, barrier = threading.Event(), threading.Barrier(9)
        with ThreadPoolExecutor(8) as readers:
            said = [readers.submit(read, server.client, n, barrier, killed) for n in range(8)]
            try:
                barrier.wait(HANG)
                assert in_use(server) == {"far": 8, "far@1": 4, "far@2": 4, "near": 0}
                first.kill()
            finally:
                killed.set()
            ended = [one.result() for one in said]
        assert sum("is lost: node box" in one for one in ended) == 4, ended
        assert ended.count("went on") == 4, ended
        for _ in range(4):
            assert server.client.post(CHAT, json=body("far", max_tokens=3)).status_code == 200


def test_a_server_that_is_killed_leaves_no_worker_on_a_node(serve: Serve, tmp_path: Path) -> None:
    with worker("--listen", "127.0.0.1:0") as (reached, process):
        server = serve(there(tmp_path, reached["address"]))
        assert answer(server.client, "far")
        workers = [psutil.Process(pid) for pid in workers_of(process.pid)]
        assert workers
        server.process.kill()
        _, alive = psutil.wait_procs(workers, HANG)
        assert alive == []
        assert process.poll() is None, "the listener itself goes on"


def read(
    client: httpx.Client, number: int, barrier: threading.Barrier, killed: threading.Event
) -> str:
    """How an answer ended, of which much comes after the kill."""
    said = [{"role": "user", "content": f"Conversation {number}"}]
    asked = {"model": "far", "messages": said, "stream": True}
    with client.stream("POST", CHAT, json=asked) as reply:
        lines = reply.iter_lines()
        assert any(re.search(r'"content":"[^"]', line) for line in lines), "it has begun"
        barrier.wait(HANG)
        assert killed.wait(HANG)
        more = [line for line, _ in zip(lines, range(400), strict=False)]
    told = [line for line in more if "error" in line]
    return told[0] if told else "went on"


def in_use(server: Served) -> dict[str, int]:
    """Answers in progress, by model."""
    text = server.client.get("/metrics").text
    found = re.findall(r'roundhouse_in_use\{model="([^"]*)"\} ([0-9.]+)', text)
    return {model: int(float(count)) for model, count in found}
