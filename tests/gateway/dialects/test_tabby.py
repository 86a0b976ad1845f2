"""A load's frames: phases in order, one `finished` for each."""

from typing import Any

import msgspec
import pytest

from backends.contract.protocol import Progress
from gateway.dialects.models import problem
from gateway.dialects.tabby import LoadReply
from gateway.terms.errors import ModelNotFound


def events_of(*steps: Progress) -> list[dict[str, Any]]:
    reply = LoadReply()
    frames = b"".join([*(reply.progress(step) for step in steps), reply.loaded()])
    lines = frames.decode().strip().split("\n\n")
    return [msgspec.json.decode(line.removeprefix("data: ")) for line in lines]


def test_each_phase_finishes_once() -> None:
    steps = (Progress("vision", 5, 9), Progress("draft", 1, 2), Progress("weights", 7, 8))
    events = [(one["model_type"], one["module"], one["status"]) for one in events_of(*steps)]
    assert events == [
        ("vision", 5, "processing"),
        ("vision", 9, "finished"),
        ("draft", 1, "processing"),
        ("draft", 2, "finished"),
        ("model", 7, "processing"),
        ("model", 8, "finished"),
    ]


@pytest.mark.parametrize(
    "steps",
    [(), (Progress("weights", 0, 0),), (Progress("draft", 1, 1),), (Progress("weights", 9, 8),)],
)
def test_a_load_always_ends_with_the_model(steps: tuple[Progress, ...]) -> None:
    events = events_of(*steps)
    assert events[-1]["model_type"] == "model"
    assert events[-1]["status"] == "finished"
    finished = [one["model_type"] for one in events if one["status"] == "finished"]
    assert len(finished) == len(set(finished))
    assert all(0 <= one["module"] <= one["modules"] for one in events)
    assert all(one["modules"] > 0 for one in events)


def test_errors_speak_to_clients_of_both() -> None:
    body = msgspec.to_builtins(problem(ModelNotFound("no", param="model")))
    assert body["detail"] == body["error"]["message"] == "no"
    assert body["error"]["code"] == "model_not_found"
