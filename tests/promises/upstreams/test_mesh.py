"""Roundhouses that are each other's upstreams: any of them is the door, and no request circles."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.hang import HANG
from tests.served import Served, scripted, served

SOON = 0.05  # seconds between two looks at a list


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


@contextmanager
def mesh(folder: Path, names: str, **options: Any) -> Iterator[dict[str, Served]]:
    """A box for each letter, with a model `of-LETTER`, whose upstreams are all others."""
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    with ExitStack() as running:
        boxes = {}
        for name, port in ports.items():
            (own := folder / name).mkdir()
            upstreams = [
                {
                    "name": other,
                    "urls": [f"http://127.0.0.1:{ports[other]}/v1"],
                    "refresh": SOON,
                    "probe_interval": SOON,
                    **options.get(name, {}),
                }
                for other in names
                if other != name
            ]
            for one in upstreams:
                if "prefix" in one:
                    one["prefix"] = f"{one['name']}/"
            config = {
                "server": {"port": port},
                "models": [scripted(own, f"of-{name}", f"I am {name}.")],
                "upstreams": upstreams,
            }
            boxes[name] = running.enter_context(served(own, config))
        yield boxes


def listed(box: Served) -> set[str]:
    return {one["id"] for one in box.client.get("/v1/models").json()["data"]}


def wait_for_list(box: Served, wanted: set[str]) -> None:
    end = time.monotonic() + HANG
    while (found := listed(box)) != wanted and time.monotonic() < end:
        time.sleep(SOON)
    assert found == wanted


def ask(box: Served, model: str) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "Who?"}]}
    return box.client.post("/v1/chat/completions", json=body)


def said(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


@pytest.mark.parametrize("prefixed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_each_of_three_answers_for_all_and_lists_each_model_once(
    prefixed: bool, tmp_path: Path
) -> None:
    options: dict[str, Any] = {name: {"prefix": "/"} for name in "abc"} if prefixed else {}
    with mesh(tmp_path, "abc", **options) as boxes:
        for name, box in boxes.items():
            others = [one for one in "abc" if one != name]
            far = {one: f"{one}/of-{one}" if prefixed else f"of-{one}" for one in others}
            wanted = {f"of-{name}", *far.values()}
            wait_for_list(box, wanted)
            for one, model in far.items():
                assert said(ask(box, model)) == f"I am {one}."
        for name, box in boxes.items():  # after many looks at each other the lists are the same
            assert len(listed(box)) == 3, name


def test_a_model_that_each_thinks_the_other_has_is_a_508_and_not_a_storm(tmp_path: Path) -> None:
    """Named in both configurations, it is where neither has it."""
    named = {"models": {"gone": "gone"}}
    with mesh(tmp_path, "ab", a=named, b=named) as boxes:
        answer = ask(boxes["a"], "gone")
        assert answer.status_code == 508, answer.text
        assert answer.json()["error"]["code"] == "loop_detected"
        asked = [
            record["path"]
            for box in boxes.values()
            for record in box.log.records("request")
            if str(record.get("path", "")).endswith("/chat/completions")
        ]
        assert len(asked) <= 3
        for box in boxes.values():
            counted = box.client.get("/v1/upstreams").json()
            assert "508" not in json.dumps(counted)
            assert said(ask(box, f"of-{'a' if box is boxes['a'] else 'b'}"))


def test_a_header_that_names_too_many_is_refused(tmp_path: Path) -> None:
    with served(tmp_path, {"models": [scripted(tmp_path, "m")]}) as server:
        for way, status in ((["x"] * 7, 200), (["x"] * 8, 508), (["x"] * 900, 508)):
            server.client.headers["x-roundhouse-hops"] = ",".join(way)
            assert ask(server, "m").status_code == status


def test_only_roundhouses_are_told_where_a_model_is(tmp_path: Path) -> None:
    with served(tmp_path, {"models": [scripted(tmp_path, "m")]}) as server:
        (card,) = server.client.get("/v1/models").json()["data"]
        assert "origin" not in card
        headers = {"x-roundhouse-hops": "someone"}
        (card,) = server.client.get("/v1/models", headers=headers).json()["data"]
        assert card["origin"]["model"] == "m"
        assert card["origin"]["hops"] == 0
        assert card["origin"]["server"] not in ("", "someone")
        own = {"x-roundhouse-hops": card["origin"]["server"]}
        assert server.client.get("/v1/models", headers=own).status_code == 508
