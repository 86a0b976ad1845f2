"""Models larger than the device, or than what another program left of it: what gives way without an
option given, that the answer is the CPU's all the same, and where llama.cpp's own log has it.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bundled
from tests.backends.random_gguf import Dimensions, write
from tests.device.conftest import FIRST, SECOND
from tests.device.scarce import ScarceMemory
from tests.served import SEES_CARDS, Served, served

pytestmark = [pytest.mark.vulkan]

# Mesa 22.3 ends the process where experts are multiplied with more tokens at a time.
OPTIONS = {"context_length": 512, "max_concurrent": 2, "micro_batch_size": 16, "threads": 1}
MIXTURE = Dimensions(
    architecture="qwen3moe", layers=12, experts=16, experts_used=2, inner=512, width=256
)
MIB, GIB = 1 << 20, 1 << 30
MEMORY = 80 * MIB  # of the device for models; the model has 150
CARD, TAKEN = 256 * MIB, 170 * MIB  # a card, and what another program takes of it


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


def lying(server: Served, name: str) -> tuple[float, float]:
    """Bytes on the device, and of the file that is mapped, by llama.cpp's own log of the last load.
    Of a mapped file it has the span from the first to the last part that is used there.
    """
    said = server.log.wait_for("model lies", lambda record: record["model"] == name)
    said = [one for one in server.log.records("model lies") if one["model"] == name][-1]
    units = {"MiB": MIB, "GiB": GIB}
    found = {
        buffer: float(number) * units[unit]
        for buffer, number, unit in re.findall(r"(\w+ \w+) ([\d.]+) ([MG]iB)", said["buffers"])
    }
    device = FIRST.title().replace(":", "")  # as ggml calls it
    there = sum(size for name, size in found.items() if name.startswith(f"{device} "))
    return there, found["CPU_Mapped model"]


def text(server: Served, name: str) -> str:
    body = {"model": name, "prompt": "Hello", "temperature": 0, "max_tokens": 8}
    answer = server.client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def test_a_mixture_larger_than_the_device_is_served_with_experts_in_main_memory(
    mixture: Path, tmp_path: Path
) -> None:
    models = [model("auto", mixture), model("cpu", mixture, gpu_layers=0)]
    with served(tmp_path, {"models": models, **SWAP}, environment=SEES_CARDS) as server:
        assert text(server, "auto") == text(server, "cpu")
        said = server.log.wait_for("model gives way")
        how = said["how"]
        assert re.fullmatch(r"\d+ of 12 layers' experts in RAM: about 0\.\d+ of full speed", how)
        loaded = server.log.wait_for("model loaded")
        assert re.match(rf"{FIRST} 7\d\.\d MiB with 13 layers, cpu \d+\.\d MiB", loaded["devices"])
        assert how in loaded["memory"]
        assert how in server.client.get("/v1/models").text
        there, mapped = lying(server, "auto")
        assert MEMORY / 2 < there <= MEMORY
        assert mapped >= 150 * MIB - MEMORY


@pytest.mark.parametrize("host", ["process", "worker"])
def test_memory_that_another_program_has_taken_leads_to_the_next_smaller_way(
    host: str, mixture: Path, tmp_path: Path, vulkan: None
) -> None:
    """The card was free when the server started; who is there stays."""
    small = {"name": "small", "path": str(bundled.GGUF), "options": OPTIONS}
    models = [small, model("auto", mixture, host=host), model("cpu", mixture, gpu_layers=0)]
    memory = ScarceMemory(tmp_path, CARD)
    environment = {**SEES_CARDS, **memory.environment}
    with served(tmp_path, {"models": models}, environment=environment) as server:
        text(server, "small")
        assert "RAM" not in server.client.get("/v1/models").text
        with memory.another_program(TAKEN):
            assert text(server, "auto") == text(server, "cpu")
        assert "unable to allocate" in server.log.wait_for("load failed")["reason"]
        how = server.log.wait_for("model gives way")["how"]
        assert re.fullmatch(r"\d+ of 12 layers' experts in RAM: about 0\.\d+ of full speed", how)
        assert (CARD - TAKEN) / 2 < lying(server, "auto")[0] <= CARD - TAKEN
        assert len(server.log.records("load failed")) == 1
        assert not server.log.records("model unloaded")
