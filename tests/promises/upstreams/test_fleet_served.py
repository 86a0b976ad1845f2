"""A server in front of another one, as its operator meets it: starts while that one is down, names
in the configuration that nobody has, and why a server isn't reached.
"""

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from tests.backends.places.upstream.test_upstream_connections import Certified
from tests.hang import HANG
from tests.promises.upstreams.test_mesh import free_ports, said, wait_for_list
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


def passed_over(server: Served, name: str) -> dict[str, Any]:
    """The one line that says so."""
    server.log.wait_for("passed over", lambda one: bool(one["model"] == name))
    (told,) = (one for one in server.log.records("passed over") if one["model"] == name)
    return told


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


def test_a_name_that_the_configuration_gives_is_never_a_listed_model_s(tmp_path: Path) -> None:
    behind, front = folder(tmp_path, "behind"), folder(tmp_path, "front")
    listed = [scripted(behind, name, "I am there.") for name in ("an-alias", "a-preset", "there")]
    with served(behind, {"models": listed}) as box:
        config = in_front(front, f"{box.url}/v1")
        config["models"][0]["aliases"] = ["an-alias"]
        config["models"] += [{"name": "a-preset", "of": "here"}]
        with served(front, config) as server:
            wait_for_list(server, {"here", "a-preset", "there"})
            for name in ("an-alias", "a-preset"):
                assert said(ask(server, name)) == "I am here."
                told = passed_over(server, name)
                assert (told["at"], told["by"][:9]) == ("upstream 'box'", "$.models[")


def test_a_fallback_that_nobody_has_is_reported_once_the_lists_are_there(tmp_path: Path) -> None:
    behind, front = folder(tmp_path, "behind"), folder(tmp_path, "front")
    with served(behind, {"models": [scripted(behind, "there")]}) as box:
        config = in_front(front, f"{box.url}/v1", "hree", "there")
        with served(front, config) as server:
            warned = server.log.wait_for("check the configuration")
        assert warned["option"] == "$.upstreams[0].fallbacks[0]"
        assert "Model 'hree' not found. Nearest: here" in warned["problem"]
        assert len(server.log.records("check the configuration")) == 1

        with command("check", "--config", "roundhouse.yaml", folder=front) as check:
            assert check.status() == 1
        assert "$.upstreams[0].fallbacks[0]: Model 'hree' not found" in check.out.text
        assert "fallbacks[1]" not in check.out.text


# -------------------------------------------------------------------------------- why one is not up


@contextmanager
def full() -> Iterator[str]:
    """A server that takes no more connections and refuses none."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, ExitStack() as held:
        port = server.getsockname()[1]
        for _ in range(4):
            client = held.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
        yield f"http://127.0.0.1:{port}/v1"


@contextmanager
def hello(tls: ssl.SSLContext) -> Iterator[str]:
    """A server that says nothing beyond its certificate."""

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return  # it is closed
            with suppress(OSError), tls.wrap_socket(connection, server_side=True) as one:
                one.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"https://127.0.0.1:{server.getsockname()[1]}/v1"
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def is_of(name: str, record: dict[str, Any]) -> bool:
    return bool(record["upstream"] == name)


def faults_of(server: Served, count: int) -> dict[str, dict[str, Any]]:
    """The servers by their upstream, once all of them have failed."""
    end = time.monotonic() + HANG
    while True:
        listed = server.client.get("/v1/upstreams").json()
        found = {one["name"]: one["replicas"][0] for one in listed}
        known = [one for one in found.values() if one["fault"]]
        if len(known) == count or time.monotonic() > end:
            return found
        time.sleep(SOON)


def test_an_operator_sees_why_a_server_is_not_reached(tmp_path: Path) -> None:
    certificate = Certified(folder(tmp_path, "tls"), "IP:127.0.0.1")
    with full() as busy, hello(certificate.server) as encrypted:
        urls = {
            "refused": f"http://127.0.0.1:{free_ports(1)[0]}/v1",
            "no_address": "http://nobody.invalid/v1",
            "certificate": encrypted,
            "timeout": busy,
        }
        upstreams = [
            {
                "name": name,
                "urls": [url],
                "models": {f"at-{name}": "m"},
                "connect_timeout": SOON if name == "timeout" else HANG,
                "probe_interval": SOON,
            }
            for name, url in urls.items()
        ]
        with served(tmp_path, {"upstreams": upstreams}) as server:
            found = faults_of(server, len(urls))
            assert {name: one["fault"] for name, one in found.items()} == {k: k for k in urls}
            assert found["refused"]["reason"].endswith("it refuses connections.")
            assert "certificate" in found["certificate"]["reason"]
            for name, url in urls.items():
                logged = server.log.wait_for("no list of models", partial(is_of, name))
                assert logged["kind"] == name
                assert logged["url"] == url
                assert logged["reason"] == found[name]["reason"]
                answer = ask(server, f"at-{name}")
                assert answer.status_code in (502, 503, 504), answer.text
                assert "127.0.0.1" not in answer.text


def test_failures_are_counted_by_server_and_kind_and_logged_when_a_server_is_out(
    tmp_path: Path,
) -> None:
    behind = folder(tmp_path, "behind")
    with served(behind, {"models": [scripted(behind, "there")]}) as box:
        upstream = {"name": "box", "urls": [f"{box.url}/v1"], "failures": 2, "probe_interval": 600}
        with served(tmp_path, {"upstreams": [upstream]}) as server:
            wait_for_list(server, {"there"})
            said(ask(server, "there"))
            box.stop()
            for _ in range(2):
                assert ask(server, "there").status_code in (502, 503)
            logged = server.log.wait_for("an upstream's server gets no requests")
            assert (logged["upstream"], logged["kind"]) == ("box", "refused")
            metrics = server.client.get("/metrics").text
            assert (
                'roundhouse_upstream_faults_total{kind="refused",server="1",upstream="box"} 2.0'
                in metrics
            )
