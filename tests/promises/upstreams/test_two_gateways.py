"""Two gateways over one fleet: what docs/many-boxes.md says that they share, and what not."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.served import Served, scripted, served

CHAT = "/v1/chat/completions"
USER, LIMITED = {"x-api-key": "a-users"}, {"x-api-key": "a-limited-users"}


class TwoGateways(NamedTuple):
    """Over the same boxes."""

    first: Served
    second: Served
    boxes: tuple[Served, ...]


@pytest.fixture(scope="module")
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoGateways]:
    with ExitStack() as stack:

        def begin(name: str, config: dict[str, Any]) -> Served:
            return stack.enter_context(served(tmp_path_factory.mktemp(name), config))

        def box(name: str, folder: Path) -> Served:
            model = {**scripted(folder, "m", f"From {name}."), "preload": True}
            return begin(name, {"models": [model]})

        boxes = tuple(box(name, tmp_path_factory.mktemp("scripts")) for name in ("one", "two"))
        config = {
            "upstreams": [{"name": "boxes", "urls": [f"{box.url}/v1" for box in boxes]}],
            "keys": [
                {"key": USER["x-api-key"], "role": "admin"},
                {"key": LIMITED["x-api-key"], "requests_per_minute": 1},
            ],
        }
        found = TwoGateways(begin("first", config), begin("second", config), boxes)
        for gateway in found[:2]:
            while not knows_both(gateway):
                time.sleep(0.01)
        yield found


def knows_both(gateway: Served) -> bool:
    """Each box has the model in memory, as far as the gateway knows: else all goes to one."""
    if not gateway.client.get("/v1/models", headers=USER).json()["data"]:
        return False
    return len({ask(gateway, f"Are you there? {number}") for number in range(8)}) == 2


def ask(gateway: Served, *turns: str, key: dict[str, str] = USER) -> str:
    """The box that answered."""
    messages = [
        {"role": ("user", "assistant")[place % 2], "content": text}
        for place, text in enumerate(turns)
    ]
    answer = gateway.client.post(CHAT, json={"model": "m", "messages": messages}, headers=key)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def test_a_conversation_goes_to_the_same_box_whichever_gateway_it_comes_through(
    gateways: TwoGateways,
) -> None:
    homes = set()
    for number in range(12):
        begun = ask(gateways.first, f"Hello {number}")
        assert ask(gateways.second, f"Hello {number}", "Hi", "And now?") == begun
        homes.add(begun)
    assert homes == {"From one.", "From two."}


def test_states_are_the_boxes_and_seen_by_both(gateways: TwoGateways) -> None:
    for gateway in gateways[:2]:
        (card,) = gateway.client.get("/v1/models", headers=USER).json()["data"]
        assert (card["id"], card["state"]) == ("m", "loaded")


def test_limits_and_usage_are_each_gateways_own(gateways: TwoGateways) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello!"}]}
    statuses = [
        gateway.client.post(CHAT, json=body, headers=LIMITED).status_code
        for gateway in (gateways.first, gateways.first, gateways.second, gateways.second)
    ]
    assert statuses == [200, 429, 200, 429]
    for gateway in gateways[:2]:
        (row,) = gateway.client.get("/v1/usage?group=key", headers=LIMITED).json()["data"]
        assert (row["requests"], row["failed"]) == (2, 1)
