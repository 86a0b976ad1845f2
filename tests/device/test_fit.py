"""Models larger than the device: what gives way, without an option given, and that the answer is
the CPU's all the same.
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

pytestmark = [pytest.mark.vulkan]

# Mesa 22.3 ends the process where experts are multiplied with more tokens at a time.
OPTIONS = {"context_length": 512, "max_concurrent": 2, "micro_batch_size": 16, "threads": 1}
MIXTURE = Dimensions(
    architecture="qwen3moe", layers=12, experts=16, experts_used=2, inner=512, width=256
)
MEMORY = 80 << 20  # bytes of the device for models; the model has 150 MiB


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of random weights."""
    path = tmp_path_factory.mktemp("mixture") / "mixture.gguf"
    write(path, MIXTURE)
    yield path
    path.unlink()


def model(name: str, path: Path, **options: Any) -> dict[str, Any]:
    return {"name": name, "path": str(path), "options": {**OPTIONS, **options}}


SWAP = {"swap": {"memory": {FIRST: MEMORY, **({SECOND: 0} if SECOND else {})}}}


def text(server: Served, name: str) -> str:
    body = {"model": name, "prompt": "Hello", "temperature": 0, "max_tokens": 8}
    answer = server.client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def test_a_mixture_larger_than_the_device_is_served_with_experts_in_main_memory(
    mixture: Path, tmp_path: Path
) -> None:
    models = [model("auto", mixture), model("cpu", mixture, gpu_layers=0)]
    with served(tmp_path, {"models": models, **SWAP}, environment=DEVICES) as server:
        assert text(server, "auto") == text(server, "cpu")
        said = server.log.wait_for("model gives way")
        how = said["how"]
        assert re.fullmatch(r"\d+ of 12 layers' experts in RAM: about 0\.\d+ of full speed", how)
        loaded = server.log.wait_for("model loaded")
        assert re.match(rf"{FIRST} 7\d\.\d MiB with 13 layers, cpu \d+\.\d MiB", loaded["devices"])
        assert how in loaded["memory"]
        assert how in server.client.get("/v1/models").text
