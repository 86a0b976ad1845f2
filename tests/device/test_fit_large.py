"""Models of the size of Mesa's device in software, 2 GiB: what gives way without an option, two
models kept together, and memory that another program has taken. Minutes each: `make test-vulkan
ARGS="-m 'vulkan and slow' tests/device/test_fit_large.py"`.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.random_gguf import Dimensions, write
from tests.device.conftest import FIRST
from tests.device.scarce import ScarceMemory
from tests.device.test_fit import GIB, MIB, lying
from tests.served import SEES_CARDS, Served, served

pytestmark = [pytest.mark.vulkan, pytest.mark.slow]

ONE = {**SEES_CARDS, "GGML_VK_VISIBLE_DEVICES": "0"}  # of the devices
# Mesa 22.3 ends the process where experts are multiplied with more tokens at a time.
OPTIONS = {"context_length": 512, "max_concurrent": 2, "micro_batch_size": 4, "threads": 1}
MIXTURE = Dimensions(
    architecture="qwen3moe", layers=32, experts=32, experts_used=2, inner=1024, width=512
)
# A token reads so much of it that an answer tells how fast the device is read.
HALF = Dimensions(
    architecture="qwen3moe", layers=16, experts=32, experts_used=8, inner=1024, width=512
)
GAVE_WAY = r"(\d+) of {} layers' experts in RAM: about 0\.\d+ of full speed.*"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """3 GiB of random weights."""
    path = tmp_path_factory.mktemp("large") / "large.gguf"
    write(path, MIXTURE)
    yield path
    path.unlink()


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """1.5 GiB of random weights."""
    path = tmp_path_factory.mktemp("half") / "half.gguf"
    write(path, HALF)
    yield path
    path.unlink()


def model(name: str, path: Path, **options: Any) -> dict[str, Any]:
    return {"name": name, "path": str(path), "options": {**OPTIONS, **options}}


def text(server: Served, name: str, tokens: int = 8) -> str:
    body = {"model": name, "prompt": "Hello", "temperature": 0, "max_tokens": tokens}
    answer = server.client.post("/v1/completions", json=body, timeout=500)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def test_three_gigabytes_are_served_on_a_device_of_two(large: Path, tmp_path: Path) -> None:
    models = [model("auto", large), model("cpu", large, gpu_layers=0)]
    with served(tmp_path, {"models": models}, environment=ONE) as server:
        assert text(server, "auto") == text(server, "cpu")
        said = server.log.wait_for("model gives way")
        assert re.fullmatch(GAVE_WAY.format(32), said["how"])
        loaded = server.log.wait_for("model loaded")
        assert re.match(rf"{FIRST} 1\.\d GiB with 33 layers, cpu 1\.\d GiB", loaded["devices"])
        there, mapped = lying(server, "auto")
        assert 1.5 * GIB < there < 2 * GIB
        assert there + mapped > 3 * GIB


def test_two_that_take_turns_are_kept_together(half: Path, tmp_path: Path) -> None:
    """Nothing is known at first of how fast the device is read."""
    models = [model(name, half) for name in ("a", "b")]
    turns = {"models": models, "swap": {"min_stay": 0.0}}
    with served(tmp_path, turns, environment=ONE) as server:
        text(server, "a", 24)
        texts = {text(server, name, 2) for _ in range(14) for name in ("b", "a")}
        assert len(texts) == 1
        loaded = server.log.records("model loaded")
        assert len(loaded) < 29, "they took turns to the end"
        last = {one["model"]: one["devices"] for one in loaded}
        assert all(FIRST in where for where in last.values()), last
        assert any("cpu" in where for where in last.values()), last
        states = {one["id"]: one for one in server.client.get("/v1/models").json()["data"]}
        assert all(states[name]["state"] == "loaded" for name in ("a", "b"))


def test_memory_that_another_program_has_taken(half: Path, tmp_path: Path) -> None:
    models = [model("auto", half), model("cpu", half, gpu_layers=0)]
    memory = ScarceMemory(tmp_path, 2 * GIB)
    environment = {**SEES_CARDS, **memory.environment}
    with served(tmp_path, {"models": models}, environment=environment) as server:
        with memory.another_program(1 * GIB):
            assert text(server, "auto") == text(server, "cpu")
        assert "unable to allocate" in server.log.wait_for("load failed")["reason"]
        assert re.fullmatch(GAVE_WAY.format(16), server.log.wait_for("model gives way")["how"])
        assert 512 * MIB < lying(server, "auto")[0] <= 1 * GIB
