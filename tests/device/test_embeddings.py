"""Vectors that a device computes are those of the CPU."""

from pathlib import Path

import msgspec
import pytest

from backends.contract import catalog
from backends.contract.encoder import values
from config.engines import LlamaCppOptions
from tests.backends import random_bert
from tests.device.conftest import SHORT

pytestmark = [pytest.mark.vulkan, pytest.mark.gpu, pytest.mark.anyio]

TEXTS = ("a", "a small text", "another text, which is a little longer than the others are")


async def encoded(model: Path, options: LlamaCppOptions) -> list[list[float]]:
    load = catalog.BACKENDS["llamacpp"].container.load_encoder
    container = await load(catalog.recognise(model), options, lambda _: None)
    try:
        return [values(one) for one in await container.encode([*map(container.read, TEXTS)])]
    finally:
        await container.aclose()


@pytest.mark.parametrize("rotary", [False, True])
async def test_the_vectors_are_the_cpus(rotary: bool, tmp_path: Path) -> None:
    model = random_bert.write(tmp_path / "bert.gguf", rotary=rotary)
    on_cpu = msgspec.structs.replace(SHORT, gpu_layers=0, main_gpu=None)
    device, cpu = await encoded(model, SHORT), await encoded(model, on_cpu)
    for mine, theirs in zip(device, cpu, strict=True):
        assert mine == pytest.approx(theirs, abs=0.01)
