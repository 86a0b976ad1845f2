"""`scripts/install` on machines of several kinds: which build of llama.cpp it asks pip for; and
what the one installed here was built with.
"""

import ctypes
import os
import shutil
import struct
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from config.product import DISTRIBUTION
from tests.hang import HANG

ROOT = Path(__file__).parent.parent
RECORDS = """#!/bin/sh
echo "CMAKE_ARGS=$CMAKE_ARGS $*" >> "$RECORD"
case "$*" in
    *torch.cuda*) exit ${NO_CUDA:-0} ;;
    *.ext*) echo nvcc said this; exit ${NO_COMPILE:-0} ;;
    *.proof*) exit ${NO_PROOF:-0} ;;
esac
"""


class Machine:
    """A machine with a few tools, and a Python that notes what pip is asked."""

    def __init__(self, folder: Path) -> None:
        self.root = ROOT
        self.tools = folder / "bin"
        self.venv = folder / "venv"
        self.record = folder / "record"
        self.tool("cmake", "cc", "c++")
        self._script(self.venv / "bin" / "python", RECORDS)
        self.environment = {
            "PATH": f"{self.tools}:/usr/bin:/bin",
            "HOME": str(folder),
            "VENV": str(self.venv),
            "RECORD": str(self.record),
            "CUDA_HOME": str(folder / "no-cuda"),
            "KFD": str(folder / "kfd"),
            "CPUINFO": str(folder / "no-cpuinfo"),
        }

    def tool(self, *names: str, does: str = "exit 0") -> None:
        for name in names:
            self._script(self.tools / name, f"#!/bin/sh\n{does}\n")

    def _script(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def run(self, what: str, **environment: str) -> str:
        done = self.tried(what, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def tried(self, what: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.root / "scripts" / "install", *what.split()],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=HANG,
            check=False,
        )

    def build(self, **environment: str) -> str:
        return self.run("--build", **environment).strip()

    def installs(self, what: str = "--build llamacpp", **environment: str) -> list[str]:
        """The calls of pip that an installation of the llamacpp extra made."""
        self.record.unlink(missing_ok=True)
        self.run(what, **environment)
        return [line for line in self.recorded() if " install " in line]

    def recorded(self) -> list[str]:
        return self.record.read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    if os.uname().sysname != "Linux":
        pytest.skip("its tools stand elsewhere on other systems")
    return Machine(tmp_path)


def test_without_a_card_it_builds_for_cpus(machine: Machine) -> None:
    assert machine.build() == ""
    assert "no card was found" in machine.run("--build llamacpp")


BINDINGS_ALONE = "-DLLAMA_BUILD=OFF"


def test_the_library_comes_prebuilt_and_needs_no_compiler(machine: Machine) -> None:
    for tool in ("cmake", "cc", "c++"):
        (machine.tools / tool).unlink()
    library, bindings, ours = machine.installs("llamacpp")
    assert library.endswith("--only-binary xllamacpp xllamacpp")
    assert "--index-url" not in library
    assert f"CMAKE_ARGS={BINDINGS_ALONE} " in bindings
    assert "--no-binary llama-cpp-python" in bindings
    assert ours.endswith("--editable .[llamacpp,llamacpp-compiled]")
    assert machine.recorded()[-1].endswith("-m backends.engines.llamacpp.proof")
    assert len(machine.installs("llamacpp")) == 1  # it is there


@pytest.mark.parametrize(
    ("card", "index"),
    [("nvidia", "https://xorbitsai.github.io/xllamacpp/whl/cu128"), ("amd", "/whl/vulkan")],
)
def test_for_a_card_its_prebuilt_library_is_taken(
    card: str, index: str, machine: Machine, tmp_path: Path
) -> None:
    if card == "nvidia":
        machine.tool("nvidia-smi")
    else:
        (tmp_path / "kfd").touch()
    library, *_ = machine.installs("llamacpp")
    assert f"{index} xllamacpp" in library.partition("--index-url ")[2]
    named = "https://wheels.example"
    library, *_ = machine.installs("llamacpp", PREBUILT_INDEX=named)
    assert f"--index-url {named}" in library


def test_a_prebuilt_library_that_does_not_answer_is_compiled_instead(machine: Machine) -> None:
    calls = machine.installs("llamacpp", NO_PROOF="1")
    assert [BINDINGS_ALONE in call for call in calls] == [False, True, False, False]
    assert "--force-reinstall --no-deps --no-binary llama-cpp-python" in calls[-1]


def test_in_an_image_dependencies_are_installed_before_the_sources(
    machine: Machine, tmp_path: Path
) -> None:
    machine.root = tmp_path / "image"
    shutil.copytree(ROOT / "scripts", machine.root / "scripts")
    assert len(machine.installs("llamacpp", NO_PROOF="1")) == 3
    assert not any(".proof" in call for call in machine.recorded())


def test_what_was_compiled_is_kept_and_what_is_prebuilt_is_replaced(machine: Machine) -> None:
    machine.installs("--build llamacpp", CMAKE_ARGS="-DGGML_BLAS=on")
    kept = machine.run("llamacpp", CMAKE_ARGS="-DGGML_BLAS=on")
    assert "CMAKE_ARGS=-DGGML_BLAS=on" in kept
    machine.installs("llamacpp")
    compiled, ours = machine.installs("--build llamacpp")
    assert "--no-binary llama-cpp-python" in compiled
    assert BINDINGS_ALONE not in compiled
    assert ours.endswith("--editable .[llamacpp-compiled]")
    assert "which is kept" in machine.run("llamacpp")


@pytest.mark.slow
def test_without_a_compiler_it_is_installed_and_answers(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    environment = {**os.environ, "VENV": str(venv), "CC": "/bin/false", "CXX": "/bin/false"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [ROOT / "scripts" / "install", "llamacpp"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "llama.cpp answers: prebuilt in xllamacpp" in done.stdout
    doctor = subprocess.check_output([venv / "bin" / "roundhouse", "doctor"], text=True)
    assert "prebuilt in xllamacpp" in " ".join(doctor.split())


# Finds nothing of what other distributions bring than the dependencies.
ALONE = """
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, *more):
        return None if name.partition(".")[0] in {absent!r} else self.finder.find_spec(name, *more)
sys.meta_path[:] = map(Without, sys.meta_path)
from gateway.cli import main
raise SystemExit(main(sys.argv[1:]))
"""


def brought(needs: Iterable[str], extras: frozenset[str] = frozenset()) -> Iterator[str]:
    """The distributions that these bring, with what they bring."""
    markers = [{"extra": extra} for extra in ("", *extras)]
    for need in map(Requirement, needs):
        if need.marker is None or any(need.marker.evaluate(one) for one in markers):
            yield canonicalize_name(need.name)
            yield from brought(metadata.requires(need.name) or (), frozenset(need.extras))


@pytest.mark.parametrize("command", [["doctor"], ["check"]])
def test_without_an_engine_it_says_what_there_is(command: list[str], tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    there = {DISTRIBUTION, *brought(project["dependencies"])}
    absent = {
        module
        for module, names in metadata.packages_distributions().items()
        if there.isdisjoint(map(canonicalize_name, names))
    }
    assert {"torch", "llama_cpp", "tokenizers"} <= absent
    done = subprocess.run(
        [sys.executable, "-c", ALONE.format(absent=absent), *command],
        env={**os.environ, "HOME": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "llamacpp" in done.stdout, done.stderr


HEADER = ROOT / "scripts" / "ggml_cpu.h"
INCLUDED = f"'-DCMAKE_CXX_FLAGS=-include \"{HEADER}\"'"


def test_a_header_mends_what_llama_cpp_does_badly_with_avx_512(
    machine: Machine, tmp_path: Path
) -> None:
    processor = tmp_path / "cpuinfo"
    processor.write_text("flags : fpu avx2\n")
    assert machine.build(CPUINFO=str(processor)) == ""
    processor.write_text("flags : fpu avx512f amx_int8 amx_tile\n")
    assert machine.build(CPUINFO=str(processor)) == INCLUDED
    assert machine.build(CPUINFO=str(processor), CMAKE_ARGS="none") == INCLUDED
    blas = machine.build(CPUINFO=str(processor), CMAKE_ARGS="-DGGML_BLAS=on")
    assert blas == f"-DGGML_BLAS=on {INCLUDED}"
    own = "-DCMAKE_CXX_FLAGS=-O2"
    assert machine.build(CPUINFO=str(processor), CMAKE_ARGS=own) == own
    assert machine.build(CPUINFO=str(processor), LLAMA_INDEX="https://wheels.test") == ""
    machine.tool("nvidia-smi", "nvcc")
    assert machine.build(CPUINFO=str(processor)) == f"-DGGML_CUDA=on {INCLUDED}"


CPUINFO = Path("/proc/cpuinfo")
AVX512 = CPUINFO.exists() and "avx512f" in CPUINFO.read_text().split()

# What the header stands before, as llama.cpp has it; and where its values are used.
MAPPINGS = """
#pragma once
#include <immintrin.h>
typedef double ggml_float;
#define GGML_F16_DOT_EPR {floats}
#define GGML_F16_STEP 128
#define GGML_F16_DOT_STEP 64
#define GGML_F16_DOT_ARR 4
#define GGML_F16_DOT_VEC_REDUCE(sum, x) sum = 0
"""
SUMS = """
#include "simd-mappings.h"
#include <cstdio>
int main() {
    float values[16];
    for (int i = 0; i < 16; ++i) values[i] = i;
    __m512 registers[2] = {_mm512_loadu_ps(values), _mm512_set1_ps(1)};
    ggml_float sum;
    GGML_F16_DOT_VEC_REDUCE(sum, registers);
    printf("%d %d %d %g", GGML_F16_STEP, GGML_F16_DOT_STEP, GGML_F16_DOT_ARR, sum);
}
"""


@pytest.mark.skipif(not AVX512, reason="the CPU has no AVX-512")
@pytest.mark.parametrize(
    ("floats", "printed"),
    [(16, "32 32 2 136"), (8, "128 64 4 0")],  # another width than the header knows: as it was
)
def test_halves_are_added_in_steps_of_32(floats: int, printed: str, tmp_path: Path) -> None:
    (tmp_path / "simd-mappings.h").write_text(MAPPINGS.format(floats=floats))
    (tmp_path / "sums.cpp").write_text(SUMS)
    command = ["c++", "-O1", "-mavx512f", "-I.", "-include", str(HEADER), "sums.cpp", "-o", "sums"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert subprocess.check_output([tmp_path / "sums"], text=True) == printed


OLD_VULKAN = """
#define VK_HEADER_VERSION 239
typedef enum VkStructureType { VK_STRUCTURE_TYPE_MAX_ENUM = 0x7FFFFFFF } VkStructureType;
"""
# As vulkan.hpp has them since 1.3.272, but by other names, so that they are told apart.
NEW_VULKAN = (
    OLD_VULKAN
    + """
#define VK_EXT_layer_settings 1
namespace vk { struct LayerSettingEXT {}; }
"""
)
# As llama.cpp uses them (ggml-vulkan.cpp).
LAYERS = """
#include <cstdio>
int main() {
    uint32_t yes = 1;
    std::vector<vk::LayerSettingEXT> all = {
        {"layer", "advice", vk::LayerSettingTypeEXT::eBool32, 1, &yes}
    };
    vk::LayerSettingsCreateInfoEXT info(all);
    printf("%d %u %s", info.sType, info.settingCount, info.pSettings->pSettingName);
}
"""
EMPTY = "int main() { return sizeof(vk::LayerSettingEXT) - 1; }"


@pytest.mark.parametrize(
    ("headers", "source", "printed"),
    [(OLD_VULKAN, LAYERS, "1000496000 1 advice"), (NEW_VULKAN, EMPTY, "")],
    ids=["what the headers lack is declared", "what they have stays"],
)
def test_llama_cpp_compiles_with_old_headers_of_vulkan(
    headers: str, source: str, printed: str, tmp_path: Path
) -> None:
    (tmp_path / "vulkan").mkdir()
    (tmp_path / "vulkan" / "vulkan_core.h").write_text(headers)
    (tmp_path / "one.cpp").write_text(source)
    header = ROOT / "scripts" / "ggml_vulkan.h"
    options = ["-Dggml_vulkan_EXPORTS", "-isystem", ".", "-include", str(header)]
    subprocess.run(["c++", *options, "one.cpp", "-o", "one"], cwd=tmp_path, check=True)
    assert subprocess.check_output([tmp_path / "one"], text=True) == printed


def test_a_build_for_vulkan_includes_its_header(machine: Machine, tmp_path: Path) -> None:
    header = f'-include "{ROOT / "scripts" / "ggml_vulkan.h"}"'
    asked = "-DGGML_VULKAN=on"
    assert machine.build(CMAKE_ARGS=asked) == f"{asked} '-DCMAKE_CXX_FLAGS={header}'"
    processor = tmp_path / "cpuinfo"
    processor.write_text("flags : avx512f\n")
    both = f'-include "{HEADER}" {header}'
    found = machine.build(CMAKE_ARGS=asked, CPUINFO=str(processor))
    assert found == f"{asked} '-DCMAKE_CXX_FLAGS={both}'"


def built_with_header() -> bool:
    stamp = Path(sys.prefix, ".llama-build")
    return stamp.exists() and HEADER.name in stamp.read_text()


@pytest.mark.skipif(not built_with_header(), reason="llama.cpp was built without the header")
def test_the_installed_library_adds_halves_in_steps_of_32() -> None:
    """What is left over of larger steps is added in 64 bits, where the 1 is not lost."""
    package = find_spec("llama_cpp")
    assert package is not None
    assert package.origin is not None
    library = ctypes.CDLL(str(Path(package.origin).parent / "lib" / "libggml-cpu.so"))
    library.ggml_cpu_init()  # the table of halves
    one = {0: 4096.0, 1: 4096.0, 16: 1.0}
    other = {0: 4096.0, 1: -4096.0, 16: 1.0}
    halves = [struct.pack("32e", *(row.get(i, 0.0) for i in range(32))) for row in (one, other)]
    added, no = ctypes.c_float(-1.0), ctypes.c_size_t(0)
    library.ggml_vec_dot_f16(32, ctypes.byref(added), no, halves[0], no, halves[1], no, 1)
    assert added.value == 0.0


def test_another_header_is_compiled_in_and_not_found_in_the_cache(
    machine: Machine, tmp_path: Path
) -> None:
    machine.root = tmp_path / "checkout"
    shutil.copytree(ROOT / "scripts", machine.root / "scripts")
    processor = tmp_path / "cpuinfo"
    processor.write_text("flags : avx512f\n")
    first, second = (machine.installs(CPUINFO=str(processor)) for _ in range(2))
    with (machine.root / "scripts" / HEADER.name).open("a") as header:
        header.write("/* and so on */\n")
    third = machine.installs(CPUINFO=str(processor))
    assert [len(calls) for calls in (first, second, third)] == [2, 1, 2]
    caches = {calls[0].partition("--cache-dir ")[2] for calls in (first, third)}
    assert len(caches) == 2


def test_a_card_and_its_compiler_are_taken(machine: Machine) -> None:
    machine.tool("nvidia-smi", "nvcc")
    assert machine.build() == "-DGGML_CUDA=on"


def test_a_card_without_its_compiler_is_said(machine: Machine) -> None:
    machine.tool("nvidia-smi")
    assert machine.build() == ""
    output = machine.run("--build llamacpp")
    assert "no nvcc" in output
    assert "LLAMA_INDEX" in output


def test_a_compiler_without_a_card_builds_for_cpus(machine: Machine) -> None:
    machine.tool("nvcc")
    assert machine.build() == ""


def test_an_amd_card(machine: Machine) -> None:
    Path(machine.environment["KFD"]).touch()
    assert "Vulkan" in machine.run("llamacpp")
    machine.tool("hipcc")
    assert machine.build() == "-DGGML_HIP=on"


def test_who_asks_for_a_build_gets_it(machine: Machine) -> None:
    machine.tool("nvidia-smi", "nvcc")
    assert machine.build(CMAKE_ARGS="-DGGML_HIP=on") == "-DGGML_HIP=on"
    assert machine.build(CMAKE_ARGS="none") == ""
    assert machine.build(LLAMA_INDEX="https://wheels.example/cu124") == ""


def test_the_usual_build_is_never_a_wheel_that_pip_kept_of_another(machine: Machine) -> None:
    """Whoever installs the bindings alone leaves one without a library in pip's cache."""
    first, second = machine.installs(), machine.installs()
    assert "--force-reinstall" in first[0]
    assert f"--cache-dir {machine.environment['HOME']}/.cache/roundhouse/pip-" in first[0]
    assert "--editable .[llamacpp-compiled]" in first[1]
    assert [("--editable" in line) for line in second] == [True]


def test_another_build_is_installed_anew_once_and_from_a_cache_of_its_own(machine: Machine) -> None:
    asked = {"CMAKE_ARGS": "-DGGML_CUDA=on", "CUDACXX": "/bin/true"}
    first, second = machine.installs(**asked), machine.installs(**asked)
    assert first[0].startswith("CMAKE_ARGS=-DGGML_CUDA=on ")
    assert "--force-reinstall" in first[0]
    assert f"--cache-dir {machine.environment['HOME']}/.cache/roundhouse/pip-" in first[0]
    assert first[0].endswith(" llama-cpp-python")
    assert [("--editable" in line) for line in second] == [True]


def test_back_to_cpus_is_installed_anew_too(machine: Machine) -> None:
    there = machine.installs(CMAKE_ARGS="-DGGML_VULKAN=on")
    back = machine.installs(CMAKE_ARGS="none")
    assert "--force-reinstall" in back[0]
    assert "VULKAN" not in back[0]
    caches = {line.partition("--cache-dir ")[2] for line in (there[0], back[0])}
    assert len(caches) == 2


def test_an_index_of_wheels_compiles_nothing(machine: Machine) -> None:
    first, *_ = machine.installs(LLAMA_INDEX="https://wheels.example/cu124")
    assert "--only-binary llama-cpp-python" in first
    assert "--extra-index-url https://wheels.example/cu124" in first


@pytest.mark.parametrize("engine", ["exllamav2", "exllamav3"])
def test_an_extension_is_compiled_at_the_installation(engine: str, machine: Machine) -> None:
    machine.tool("nvcc")
    output = machine.run(engine, TORCH_EXTENSIONS_DIR="/kept/here")
    assert machine.recorded()[-1].endswith(f"-c import {engine}.ext")
    assert f"Compiling the extension of {engine}, once; it is kept in /kept/here" in output


def test_what_an_extension_lacks_is_said_and_it_is_compiled_later(machine: Machine) -> None:
    assert "no nvcc was found" in machine.run("exllamav2,exllamav3")
    machine.tool("nvcc")
    assert "torch sees no CUDA card" in machine.run("exllamav3", NO_CUDA="1")
    assert not any(".ext" in line for line in machine.recorded())


def test_an_extension_that_cannot_be_compiled_fails_with_the_compilers_words(
    machine: Machine,
) -> None:
    machine.tool("nvcc")
    done = machine.tried("exllamav3", NO_COMPILE="1")
    assert done.returncode == 1
    assert "nvcc said this" in done.stderr
    assert "install.log" in done.stderr


def test_other_engines_compile_no_extension(machine: Machine) -> None:
    machine.tool("nvcc")
    machine.run("llamacpp,transformers")
    assert not any(".ext" in line for line in machine.recorded())
