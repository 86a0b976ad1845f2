"""Models in workers, as users meet them: a worker ends, and the server doesn't, nor any other
answer; the model comes back; and the server's own end leaves no worker, however it came.
"""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

import bundled
from tests.backends.pairs import quick
from tests.backends.places.workers import is_there, workers_of
from tests.hang import HANG
from tests.served import Serve, Served, events, scripted

CHAT = "/v1/chat/completions"
STREAMS = 16
SAID = "one two three " * 20


def body(model: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hello!"}]
    return {"model": model, "messages": messages, "stream": True, **more}


def worker(server: Served) -> psutil.Process:
    """The only one there is."""
    (pid,) = workers_of(server.process.pid)
    return psutil.Process(pid)


def gguf(folder: Path, name: str) -> Path:
    path = folder / f"{name}.gguf"
    path.write_bytes(bundled.GGUF.read_bytes())
    return path


def until(reached: Any) -> None:
    end = time.monotonic() + HANG
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.02)


class Streams:
    """As many of both models at once; the first model's worker ends while all are read."""

    def __init__(self, server: Served) -> None:
        self._server = server

    def _read(self, model: str, begun: list[str]) -> str:
        text = ""
        more = {"max_tokens": 400, "ignore_eos": True} if model == "frail" else {}
        with self._server.client.stream("POST", CHAT, json=body(model, **more)) as answer:
            for line in answer.iter_lines():
                begun.append(model)
                text += f"{line}\n"
        return text

    def broken_by(self, end: Any) -> tuple[list[str], list[str]]:
        """What the streams of the one whose worker `end` ended were, and the other's."""
        begun: list[str] = []
        with ThreadPoolExecutor(2 * STREAMS) as pool:
            names = ("frail", "sound")
            each = [pool.submit(self._read, name, begun) for name in STREAMS * names]
            until(lambda: {*names} <= {*begun})
            end()
            texts = [one.result() for one in each]
        return texts[::2], texts[1::2]


@pytest.fixture
def server(serve: Serve, tmp_path: Path) -> Served:
    """A model in a worker, and one in the process. Ends are seen, and no rest follows."""
    models = [
        {"name": "frail", "path": str(gguf(tmp_path, "frail")), "options": {"host": "worker"}},
        scripted(tmp_path, "sound", SAID, tokens_per_second=200),
    ]
    return serve({"models": models, "swap": {"backoff": 0.0}})


def ends(server: Served, kind: str, tmp_path: Path) -> None:
    process = worker(server)
    match kind:
        case "truncated":
            os.truncate(tmp_path / "frail.gguf", 4096)
        case name:
            process.send_signal(signal.Signals[name])


ENDS = {
    "SIGKILL": "was ended by SIGKILL",
    "SIGSEGV": "was ended by SIGSEGV",
    "SIGSTOP": "did not answer for 3 s",
    "truncated": "was ended by SIGBUS",
}


@pytest.mark.parametrize("kind", quick(ENDS, "SIGKILL", "truncated"))
def test_a_worker_ends_and_no_other_answer_does(kind: str, server: Served, tmp_path: Path) -> None:
    ends_alone(kind, server, tmp_path)
    server.log.wait_for("model unloaded", lambda record: record["why"] == "broken")


@pytest.mark.long
@pytest.mark.parametrize("kind", ENDS)
def test_workers_end_fifty_times(kind: str, server: Served, tmp_path: Path) -> None:
    for _ in range(50):
        ends_alone(kind, server, tmp_path)


def ends_alone(kind: str, server: Served, tmp_path: Path) -> None:
    """The model's worker ends, while it and another model have answers; then it is back."""
    said(server, "frail")
    pid = worker(server).pid
    broken, sound = Streams(server).broken_by(lambda: ends(server, kind, tmp_path))
    for text in sound:
        deltas = [event["choices"][0]["delta"] for event in events(text)]
        assert "".join(delta.get("content") or "" for delta in deltas) == SAID
    assert any(ENDS[kind] in text for text in broken)
    assert not is_there(pid)
    gguf(tmp_path, "frail")
    until(lambda: server.client.post(CHAT, json=body("frail")).status_code == 200)
    assert worker(server).pid != pid
    assert said(server, "frail")
    busy = [one for one in server.client.get("/slots?model=frail").json() if one["is_processing"]]
    assert not busy


def said(server: Served, model: str) -> str:
    answer = server.client.post(CHAT, json=body(model, max_tokens=5))
    assert answer.status_code == 200, answer.text
    return answer.text


def test_an_idle_worker_that_ends_is_replaced_at_the_next_request(server: Served) -> None:
    said(server, "frail")
    worker(server).kill()
    server.log.wait_for("model unloaded", lambda record: record["why"] == "broken")
    assert "error" not in said(server, "frail")


def test_an_unload_ends_its_worker_and_returns_all_of_its_memory(server: Served) -> None:
    """What the first load leaves for later ones is the launcher, and the tokenizer's library."""
    said(server, "frail")
    unload(server, "frail")
    before = resident(server)
    said(server, "frail")
    pid, held = worker(server).pid, resident(server) - before
    (card,) = (one for one in server.client.get("/models").json()["data"] if one["id"] == "frail")
    assert 0 < card["devices"]["cpu"] < held, "what it shares with its launcher is not its own"
    unload(server, "frail")
    assert not is_there(pid)
    assert workers_of(server.process.pid) == []
    assert resident(server) - before < held / 10


def unload(server: Served, model: str) -> None:
    server.client.post("/models/unload", json={"model": model}).raise_for_status()


def resident(server: Served) -> int:
    """Bytes of main memory that the server and all its processes have."""
    root = psutil.Process(server.process.pid)
    return sum(one.memory_info().rss for one in (root, *root.children(recursive=True)))


def test_a_server_that_is_killed_leaves_no_worker(server: Served) -> None:
    said(server, "frail")
    pids = [one.pid for one in psutil.Process(server.process.pid).children(recursive=True)]
    assert len(pids) > 1  # the launcher, too
    server.process.kill()
    until(lambda: not any(map(is_there, pids)))


def test_a_server_that_stops_ends_its_workers_first(server: Served) -> None:
    said(server, "frail")
    pids = [one.pid for one in psutil.Process(server.process.pid).children(recursive=True)]
    assert server.stop() == 0
    assert not any(map(is_there, pids))


def test_a_signal_to_all_processes_is_the_servers_to_follow(server: Served) -> None:
    """As Ctrl-C in a terminal, or a service manager's SIGTERM: answers have their grace."""
    said(server, "frail")
    with server.client.stream("POST", CHAT, json=body("sound")) as answer:
        lines = answer.iter_lines()
        next(lines)
        processes = psutil.Process(server.process.pid).children(recursive=True)
        for process in (*processes, server.process):
            process.send_signal(signal.SIGTERM)
        assert "data: [DONE]" in [*lines]
    assert server.status() == 0
