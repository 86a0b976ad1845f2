"""Models of the size of Mesa's device in software, 2 GiB: what gives way without an option, and two
models kept together. Minutes each: `make test-vulkan
ARGS="-m 'vulkan and slow' tests/device/test_fit_large.py"`. Memory never runs out there: Mesa takes
as much of the machine's as is asked for.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.random_gguf import Dimensions, write
from tests.device.conftest import FIRST, SECOND
from tests.device.test_server import DEVICES
from tests.served import Served, served

pytestmark = [pytest.mark.vulkan, pytest.mark.slow]

GIB = 1 << 30
# Mesa 22.3 ends the process where experts are multiplied with more tokens at a time.
OPTIONS = {"context_length": 512, "max_concurrent": 2, "micro_batch_size": 4, "threads": 1}
MIXTURE = Dimensions(
    architecture="qwen3moe", layers=32, experts=32, experts_used=2, inner=1024, width=512
)
HALF = Dimensions(
    architecture="qwen3moe", layers=16, experts=32, experts_used=2, inner=1024, width=512
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


def budget(size: int, **swap: Any) -> dict[str, Any]:
    memory = {FIRST: size, **({SECOND: 0} if SECOND else {})}
    return {"swap": {"memory": memory, "min_stay": 0.0, **swap}}


def text(server: Served, name: str, tokens: int = 8) -> str:
    body = {"model": name, "prompt": "Hello", "temperature": 0, "max_tokens": tokens}
    answer = server.client.post("/v1/completions", json=body, timeout=500)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def test_three_gigabytes_are_served_on_a_device_of_two(large: Path, tmp_path: Path) -> None:
    models = [model("auto", large), model("cpu", large, gpu_layers=0)]
    with served(
        tmp_path, {"models": models, **budget(2 * GIB - (64 << 20))}, environment=DEVICES
    ) as server:
        assert text(server, "auto") == text(server, "cpu")
        said = server.log.wait_for("model gives way")
        assert re.fullmatch(GAVE_WAY.format(32), said["how"])
        loaded = server.log.wait_for("model loaded")
        assert re.match(rf"{FIRST} 1\.\d GiB with 33 layers, cpu 1\.\d GiB", loaded["devices"])


def test_two_that_take_turns_are_kept_together(half: Path, tmp_path: Path) -> None:
    models = [model(name, half) for name in ("a", "b")]
    with served(
        tmp_path, {"models": models, **budget(2 * GIB - (64 << 20))}, environment=DEVICES
    ) as server:
        texts = {text(server, name, 2) for _ in range(14) for name in ("a", "b")}
        assert len(texts) == 1
        assert "in RAM" in server.client.get("/v1/models").text
