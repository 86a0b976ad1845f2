"""Three nodes of Ray on one machine, and a server with `cluster:`: models on other nodes, and what
becomes of them when these end (docs/cluster.md).
"""

import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest

import bundled
from tests.hang import HANG
from tests.served import ROOT, Served, command, scripted, served

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

cluster_utils = pytest.importorskip("ray.cluster_utils")
start: Any = pytest.importorskip("ray.scripts.scripts").start
STANDIN = ROOT / "tests" / "backends" / "places" / "command" / "standin.py"
SMALL = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head, which is the server's machine, and two others. Their logs are not kept."""
    with (
        TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RAY_TMPDIR", folder)  # a Cluster notes its address below it
        logs = Path(folder) / "ray"
        logs.mkdir()
        head = {**SMALL, "include_dashboard": False, "temp_dir": str(logs)}
        there = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
        try:
            yield there
        finally:
            there.shutdown()


@pytest.fixture(scope="module")
def rays(cluster: Any) -> dict[str, Any]:
    """The other machines, by name."""
    return {name: cluster.add_node(**SMALL, node_name=name) for name in ("box-b", "box-c")}


def nodes(server: Served) -> dict[str, Any]:
    return {node["name"]: node for node in server.client.get("/v1/nodes").json()["nodes"]}


def wait_until(server: Served, what: str, fits: Any) -> dict[str, Any]:
    """The nodes, once they are so."""
    end = time.monotonic() + HANG
    while not fits(there := nodes(server)):
        assert time.monotonic() < end, f"{what}: {there}\n{server.log.text}"
        time.sleep(0.05)
    return there


def home_of(server: Served, model: str) -> str:
    return next(name for name, node in nodes(server).items() if model in node["models"])


def chat(server: Served, model: str, **more: Any) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": "Hello!"}], **more}
    reply = server.client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, f"{reply.text}\n{server.log.text}"
    content: str = reply.json()["choices"][0]["message"]["content"]
    return content


def test_the_commands_shown_are_ray_s() -> None:
    """Each option that the page gives `ray start`. That starts what would outlive a test."""
    page = (ROOT / "docs" / "cluster.md").read_text("utf-8")
    known = {word for option in start.params for word in option.opts}
    shown = [line.split() for line in page.splitlines() if line.strip().startswith("ray start")]
    assert len(shown) == 3
    options = {word.partition("=")[0] for words in shown for word in words if word[:2] == "--"}
    assert options <= known


def test_a_command_has_cards_of_several_machines_to_itself(
    cluster: Any, rays: dict[str, Any], tmp_path: Path
) -> None:
    """The devices here are main memory, under budgets that stand for those of cards."""
    size, pids = 300 << 20, tmp_path / "pids"
    words = [sys.executable, "-I", "-S", str(STANDIN), "--pids", str(pids), "--port", "{port}"]
    budgets = {"cpu": size, **{f"{name}/cpu": size for name in rays}}
    own = {f"{name}/cpu": size * 2 // 3 for name in rays}
    config = {
        "cluster": cluster.address,
        "models": [
            {"name": "large", "command": " ".join(words), "options": {"memory": own}},
            scripted(tmp_path, "small", say="Here.", size_bytes=size * 9 // 10),
        ],
        "swap": {"memory": {**budgets, "cpu": size // 2}, "min_stay": 0.0, "backoff": 0.1},
        "log": {"format": "json"},
    }
    with served(tmp_path, config) as server:
        wait_until(server, "all join", lambda there: {*rays} <= {*there})
        assert chat(server, "large").startswith("Here is the answer.")
        assert all("large" in node["models"] for node in nodes(server).values())
        (process,) = (psutil.Process(int(pid)) for pid in pids.read_text().split())

        # A model that needs the memory of one of them has it leave, and leaves for it.
        assert chat(server, "small") == "Here."
        assert not process.is_running()
        assert chat(server, "large").startswith("Here is the answer.")
        there = nodes(server)
        assert [there[name]["models"] for name in rays] == [["large"], ["large"]]

        # It leaves a machine that drains, and comes back when that may be used again.
        drain(server, "box-b")
        wait_until(server, "it left", lambda there: not there["box-c"]["models"])
        drain(server, "box-b", draining=False)
        assert chat(server, "large").startswith("Here is the answer.")


def test_a_server_that_is_killed_leaves_nothing_on_other_machines(
    cluster: Any, rays: dict[str, Any], tmp_path: Path
) -> None:
    config = {
        "cluster": "auto",
        "models": [{"name": "tiny", "path": str(bundled.GGUF)}],
        "swap": {"memory": {"cpu": 0}},
        "log": {"format": "json"},
    }
    machine = {"RAY_ADDRESS": cluster.address}  # of the test's own; Ray itself finds only one
    with served(tmp_path, config, environment=machine) as server:
        there = wait_until(server, "all join", lambda there: {*rays} <= {*there})
        chat(server, "tiny")
        listeners = [_listener(node["address"]) for node in there.values()]
        left = [*listeners, *(one for root in listeners for one in root.children(recursive=True))]
        assert len(left) == len(rays) + 2, "a launcher and a worker besides"
        server.process.kill()
        _, alive = psutil.wait_procs(left, HANG)
        assert alive == []


def test_models_answer_from_other_nodes_and_outlive_them(
    cluster: Any, rays: dict[str, Any], tmp_path: Path
) -> None:
    """The last: one of the machines ends."""
    config = {
        "cluster": cluster.address,
        "cluster_tls": True,
        "models": [
            {"name": "tiny", "path": str(bundled.GGUF)},
            scripted(tmp_path, "talker", say="word " * 1_000, tokens_per_second=50.0),
            {**scripted(tmp_path, "twin", say="Here."), "replicas": 2},
        ],
        "swap": {"memory": {"cpu": 0}, "backoff": 0.1},  # nothing fits here
        "log": {"format": "json"},
    }
    expected = ("model broke", "model failed", "is lost")
    with served(tmp_path, config, expected=expected) as server:
        wait_until(server, "all join", lambda there: {*rays} <= {*there})

        # A model answers from another node.
        assert chat(server, "tiny")
        first = home_of(server, "tiny")
        assert f"{first}/cpu" in server.log.wait_for("model loaded")["devices"]

        # Drained, the node gives it up, and it comes back elsewhere.
        with command("drain", first, "--url", server.url, folder=tmp_path) as ordered:
            assert ordered.status() == 0
        there = wait_until(server, "it left", lambda there: not there[first]["models"])
        assert there[first]["draining"]
        assert chat(server, "tiny")
        assert home_of(server, "tiny") != first
        undo = ("drain", first, "--undo", "--url", server.url)
        with command(*undo, folder=tmp_path) as ordered:
            assert ordered.status() == 0

        # Two replicas lie on two machines; drained of one, the model answers from the other.
        for name in ("twin@1", "twin@2"):
            assert chat(server, "twin") == "Here."
            server.log.wait_for("model loaded", partial(is_of, name))
        homes = {home_of(server, name) for name in ("twin@1", "twin@2")}
        assert homes == {*rays}
        drain(server, first)
        wait_until(server, "they left", lambda there: not there[first]["models"])
        assert chat(server, "twin") == "Here."
        drain(server, first, draining=False)
        wait_until(
            server,
            "it is loaded there again",
            lambda there: {"twin@1", "twin@2"} & {*there[first]["models"]},
        )

        # The node of a running answer dies: the answer ends with an error that names it.
        home, told = _streams(server)
        _kill(rays[home], nodes(server)[home]["address"])
        error = told()
        assert f"node {home}" in error, f"{error}\n{server.log.text}"
        wait_until(server, "it left", lambda there: home not in there)
        again, told = _streams(server)
        assert again != home
        server.client.post("/unload", params={"model": "talker"}, json={"model": "talker"})
        told()


def drain(server: Served, node: str, *, draining: bool = True) -> None:
    order = {"node": node, "draining": draining}
    server.client.post("/v1/nodes/drain", json=order).raise_for_status()


def is_of(model: str, line: Mapping[str, Any]) -> bool:
    return bool(line["model"] == model)


def _streams(server: Served) -> tuple[str, Any]:
    """The node that an answer of `talker` comes from, and what waits for its last words."""
    began, last = threading.Event(), []

    def read() -> None:
        body = {
            "model": "talker",
            "stream": True,
            "messages": [{"role": "user", "content": "Go on"}],
        }
        with server.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            for line in answer.iter_lines():
                last.append(line)
                if '"content":' in line or answer.status_code != 200:
                    began.set()
        began.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert began.wait(HANG)

    def told() -> str:
        thread.join(HANG)
        assert not thread.is_alive()
        return "\n".join(last[-6:])

    return home_of(server, "talker"), told


def _listener(address: str) -> psutil.Process:
    """The process on a machine that workers are reached by."""
    port = int(address.rpartition(":")[2])
    return next(
        psutil.Process(one.pid)
        for one in psutil.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN and one.laddr.port == port
    )


def _kill(ray: Any, address: str) -> None:
    """The node's raylet, its supervisor and its listener, as a machine that loses power."""
    listener = _listener(address)
    doomed = [ray.all_processes["raylet"][0].process.pid, listener.ppid(), listener.pid]
    for pid in doomed:
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()
