"""NVIDIA's driver, ggml's registry and torch mean the same card by the same name."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from backends.machine import devices, ggml
from tests.gpu.conftest import DRY

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]
GIB = 1 << 30


@pytest.fixture
def ours(card: str) -> devices.Device:
    if DRY:
        pytest.skip("there is no card to agree on")
    return devices.devices()["cuda:0"]


def test_all_three_name_the_card_alike(
    ours: devices.Device, card: str, record_property: Callable[[str, Any], None]
) -> None:
    record_property("card", card)
    record_property("ours", ours)
    assert ours.description == card
    assert ours.library == "CUDA0"
    assert devices.of_llamacpp() == {"cuda:0": "CUDA0"}
    (ggmls,) = (one for one in ggml.devices() if one.name == "CUDA0")
    properties = torch.cuda.get_device_properties(0)
    assert ggmls.bus == devices.memory()["cuda:0"].bus
    assert f":{properties.pci_bus_id:02x}:" in str(ggmls.bus)


def test_they_count_its_memory_alike(
    ours: devices.Device, record_property: Callable[[str, Any], None]
) -> None:
    free, total = torch.cuda.mem_get_info(0)
    record_property("torch", (free, total))
    assert ours.total == pytest.approx(total, rel=0.03)
    before = devices.memory()["cuda:0"]
    taken = torch.empty(GIB, dtype=torch.uint8, device="cuda:0")
    after = devices.memory()["cuda:0"]
    assert after.used is not None
    assert before.used is not None
    assert after.used - before.used == pytest.approx(taken.nbytes, rel=0.05)
    record_property("own", (before.own, after.own))
    if before.own is not None and after.own is not None:
        assert after.own - before.own == pytest.approx(taken.nbytes, rel=0.05)


def test_its_bandwidth_is_known(
    ours: devices.Device, record_property: Callable[[str, Any], None]
) -> None:
    """Within the copies that are measured: half of it and twice."""
    told = devices.bandwidths(["cuda:0"])["cuda:0"]
    source = torch.empty(4 * GIB, dtype=torch.uint8, device="cuda:0")
    target = torch.empty_like(source)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    target.copy_(source)
    start.record()
    for _ in range(5):
        target.copy_(source)
    end.record()
    torch.cuda.synchronize()
    measured = 5 * 2 * source.nbytes / (start.elapsed_time(end) / 1e3)
    record_property("told", told)
    record_property("measured", measured)
    assert measured / 2 < told < 2 * measured
