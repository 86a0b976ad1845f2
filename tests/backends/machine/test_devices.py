"""Devices under one name for all engines, and how ggml's registry is asked for them."""

import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from backends.machine import devices, ggml
from backends.machine.devices import Device, merged, own_name
from backends.machine.ggml import GgmlDevice
from gateway.registry.gauges import Gauge

GIB = 1 << 30


def found(name: str, *, bus: str | None = None, shared: bool = False) -> GgmlDevice:
    return GgmlDevice(
        name=name, description=f"a {name}", shared=shared, bus=bus, total=8 * GIB, free=7 * GIB
    )


NVIDIA = {
    "cuda:0": Device(
        description="RTX",
        total=24 * GIB,
        free=20 * GIB,
        used=4 * GIB,
        own=GIB,
        bus="0000:c1:00.0",
    ),
    "cuda:1": Device(description="RTX", total=24 * GIB, free=24 * GIB, used=0, bus="0000:c2:00.0"),
}


@pytest.mark.parametrize(
    ("library", "ours"),
    [
        ("CUDA0", "cuda:0"),
        ("ROCm1", "rocm:1"),
        ("Vulkan12", "vulkan:12"),
        ("SYCL0", "sycl:0"),
        ("MTL0", "mtl:0"),
        ("Metal", "metal"),
    ],
)
def test_a_device_is_called_as_its_library_calls_it(library: str, ours: str) -> None:
    assert own_name(library) == ours


def test_a_card_has_one_name_whatever_llama_cpp_was_built_for() -> None:
    """Vulkan's second device is CUDA's first card; its first one is another maker's."""
    vulkan = [found("Vulkan0", bus="0000:03:00.0"), found("Vulkan1", bus="0000:c1:00.0")]
    both = merged(vulkan, NVIDIA, {})
    assert {name: one.library for name, one in both.items()} == {
        "cuda:0": "Vulkan1",
        "cuda:1": None,
        "vulkan:0": "Vulkan0",
    }
    assert both["cuda:0"].free == 20 * GIB  # the driver knows more: what others hold, and who
    assert both["cuda:0"].own == GIB
    assert (both["vulkan:0"].used, both["vulkan:0"].own) == (None, None)


def test_cards_without_an_address_are_told_by_their_numbers() -> None:
    both = merged([found("CUDA0"), found("CUDA1")], NVIDIA, {})
    assert {name: one.library for name, one in both.items()} == {
        "cuda:0": "CUDA0",
        "cuda:1": "CUDA1",
    }


def test_a_card_that_ggml_has_twice_is_one() -> None:
    twice = [found("CUDA0", bus="0000:c1:00.0"), found("Vulkan0", bus="0000:c1:00.0")]
    assert merged(twice, NVIDIA, {})["cuda:0"].library == "CUDA0"
    assert len(merged(twice, NVIDIA, {})) == len(NVIDIA)


def test_what_is_free_now_goes_before_what_was_free_at_the_start() -> None:
    assert merged([found("Vulkan0")], {}, {})["vulkan:0"].free == 7 * GIB
    assert merged([found("Vulkan0")], {}, {"Vulkan0": GIB})["vulkan:0"].free == GIB


def test_memory_that_is_the_machines_is_counted_once() -> None:
    integrated = merged([found("Vulkan0", shared=True)], {}, {})
    assert integrated["vulkan:0"].shared
    gauge = Gauge(find=lambda _: integrated)
    assert gauge.total().keys() == gauge.free().keys() == gauge.available().keys() == {"cpu"}


def test_a_card_of_any_make_has_a_budget_and_what_its_driver_does_not_say_is_left_out() -> None:
    gauge = Gauge(find=lambda _: merged([found("Vulkan0")], NVIDIA, {}))
    assert gauge.total()["vulkan:0"] == 8 * GIB
    assert gauge.free().keys() == {"cpu", "cuda:0", "cuda:1", "vulkan:0"}
    assert gauge.used().keys() == {"cpu", "cuda:0", "cuda:1"}
    assert gauge.held().keys() == {"cpu", "cuda:0"}


def test_a_build_for_cpus_is_not_asked() -> None:
    if ggml.offloads():
        pytest.skip("this one is for cards")
    assert ggml.devices() == ()
    assert devices.of_llamacpp() == {}


def test_the_registry_of_the_installed_library_is_read() -> None:
    folder = ggml.libraries()
    if folder is None:
        pytest.skip("llama.cpp isn't installed")
    registry = ggml.GgmlRegistry(folder)
    listed = tuple(registry.devices())
    assert [one.name for one in listed] == list(registry.handles())
    assert all(0 < one.free <= one.total for one in listed)


def broken(folder: Path, source: str) -> Path:
    """A library that does this when it is loaded."""
    (folder / "one.c").write_text(source)
    command = ["cc", "-shared", "-fPIC", "one.c", "-o", "libggml.so"]
    subprocess.run(command, cwd=folder, check=True)
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="its libraries are called otherwise elsewhere")
@pytest.mark.parametrize(
    "source",
    [
        "#include <stdlib.h>\n__attribute__((constructor)) void start(void) { abort(); }",
        "int nothing_of_ggml;",
    ],
    ids=["it ends the process", "it is another version"],
)
def test_a_driver_that_ends_its_process_ends_another_one(source: str, tmp_path: Path) -> None:
    """The gateway starts, and says why it counts no device."""
    with capture_logs() as lines:
        assert ggml.read(broken(tmp_path, source)) == ()
    (line,) = lines
    assert line["log_level"] == "warning"
    assert "status" in line["reason"]
