"""Three nodes of Ray on one machine, and a server with `cluster:`: models on other nodes, and what
becomes of them when these end (docs/cluster.md).
"""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import bundled
from tests.hang import HANG
from tests.served import Served, command, scripted, served

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

cluster_utils = pytest.importorskip("ray.cluster_utils")
SMALL = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    there = cluster_utils.Cluster(
        initialize_head=True, head_node_args={**SMALL, "include_dashboard": False}
    )
    try:
        yield there
    finally:
        there.shutdown()


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


def test_models_answer_from_other_nodes_and_outlive_them(cluster: Any, tmp_path: Path) -> None:
    rays = {name: cluster.add_node(**SMALL, node_name=name) for name in ("box-b", "box-c")}
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
        message = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
        answer = server.client.post("/v1/chat/completions", json=message).json()
        assert answer["choices"][0]["message"]["content"], answer
        first = home_of(server, "tiny")
        assert f"{first}/cpu" in server.log.wait_for("model loaded")["devices"]

        # Drained, the node gives it up, and it comes back elsewhere.
        with command("drain", first, "--url", server.url, folder=tmp_path) as drain:
            assert drain.status() == 0
        there = wait_until(server, "it left", lambda there: not there[first]["models"])
        assert there[first]["draining"]
        assert server.client.post("/v1/chat/completions", json=message).status_code == 200
        assert home_of(server, "tiny") != first
        server.client.post("/v1/nodes/drain", json={"node": first, "draining": False})

        # Two replicas lie on two machines; drained of one, the model answers from the other.
        body = {"model": "twin", "messages": [{"role": "user", "content": "Hello"}]}
        for name in ("twin@1", "twin@2"):
            assert server.client.post("/v1/chat/completions", json=body).status_code == 200
            server.log.wait_for("model loaded", lambda line, name=name: line["model"] == name)
        homes = {home_of(server, name) for name in ("twin@1", "twin@2")}
        assert homes == {*rays}
        server.client.post("/v1/nodes/drain", json={"node": first})
        wait_until(server, "they left", lambda there: not there[first]["models"])
        assert server.client.post("/v1/chat/completions", json=body).status_code == 200
        server.client.post("/v1/nodes/drain", json={"node": first, "draining": False})
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


def _kill(ray: Any, address: str) -> None:
    """The node's raylet, its supervisor and its listener, as a machine that loses power."""
    port = int(address.rpartition(":")[2])
    listens = next(
        one.pid
        for one in psutil.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN and one.laddr.port == port
    )
    listener = psutil.Process(listens)
    doomed = [ray.all_processes["raylet"][0].process.pid, listener.ppid(), listens]
    for pid in doomed:
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()
