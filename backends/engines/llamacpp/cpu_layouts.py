"""What llama.cpp copies of a model's weights into the CPU's own layouts, and whether it may.

The rules are those of its source files, which are named at each. No engine.
"""

import mmap
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec

from backends.engines.llamacpp.gguf import EMBEDDING, OUTPUT, Tensor
from backends.machine import ggml, prebuilt

Q8_0, F16 = 8, 1  # ggml_type, as the numbers below (ggml.h)
Q4_0, Q4_1, Q2_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4 = 2, 3, 10, 12, 13, 14, 20, 23, 39

AMX_ROWS = 32  # their number must be a multiple (amx.cpp, `supports_op`)
# Of what AMX multiplies: bytes that a block gets in addition (mmq.cpp, `get_row_size`).
AMX_ADDED = {F16: 0, Q4_0: 0, Q4_1: 0, Q8_0: 4, Q4_K: 4, Q5_K: 4, Q6_K: 0, IQ4_XS: 2}
AMX_WIDTH_OF_FLOATS = 16  # values of a row must be a multiple; of others, of a block

# What is repacked on a CPU with a feature, and what its number of rows must be a multiple of
# (repack.cpp, `ggml_repack_get_optimal_repack_type`).
REPACKED: Mapping[str, Mapping[int, int]] = {
    "avx2": {Q4_0: 8, Q4_K: 8, IQ4_NL: 8, MXFP4: 8},
    "avx512f": {Q2_K: 8},
    "asimddp": {Q4_0: 4, Q8_0: 4, IQ4_NL: 4, MXFP4: 4, Q4_K: 8, Q5_K: 8, Q6_K: 8},
}

# Texts that are in llama.cpp's CPU library if it was built with these buffers.
AMX_BUILT, REPACK_BUILT = b"AMX is not ready", b"CPU_REPACK"

# The first of each GCC that compiles how llama.cpp configures AMX's tiles. Those before leave most
# of it unwritten, and the first quantized matrix ends the process (gcc.gnu.org/PR114098;
# github.com/ggml-org/llama.cpp/pull/26954).
COMPILER = re.compile(rb"GCC: \([^)\0]*\) (\d+)\.(\d+)")
SOUND_FROM: Mapping[int, int] = {11: 5, 12: 4, 13: 3}
MENDED = b"AMX tiles are configured whole"  # in a library compiled with scripts/ggml_cpu.h


class CpuLayouts(msgspec.Struct, frozen=True):
    """The buffers of the CPU's own layouts that llama.cpp copies weights into: `features` of the
    CPU as Linux names them, and what the library was built with.

    A matrix goes into the first of these buffers that takes it (llama-model-loader.cpp,
    `select_weight_buft`; ggml-cpu.cpp, `ggml_backend_cpu_get_extra_buffer_types`): that of AMX,
    which packs some types larger than they are in the file, or that of repacking, whose layouts
    have the file's size. An embedding that is the output's matrix too is looked up by rows, which
    only the file's layout allows, so that it is held in both.
    """

    features: frozenset[str] = frozenset()
    amx_built: bool = False
    repack_built: bool = False
    tiles_sound: bool = True  # see `COMPILER`

    @property
    def amx(self) -> bool:
        return self.amx_built and {"amx_int8", "avx512_vnni"} <= self.features

    def bears(self, tensors: Iterable[Tensor]) -> bool:
        """Whether a model's matrices can be multiplied in them. 16 bits need no tiles."""
        tiled = (t for t in tensors if len(t.shape) == 2 and t.kind != F16 and _fits_amx(t))
        return self.tiles_sound or not self.amx or next(tiled, None) is None

    def packed_bytes(self, tensor: Tensor) -> int | None:
        """Of a matrix of weights in the buffer that takes it; None: it stays as in the file."""
        if len(tensor.shape) != 2:
            return None
        if self.amx and _fits_amx(tensor):
            return tensor.size + tensor.blocks * AMX_ADDED[tensor.kind]
        return tensor.size if self._repacks(tensor) else None

    def _repacks(self, tensor: Tensor) -> bool:
        return self.repack_built and any(
            tensor.kind in kinds and tensor.shape[1] % kinds[tensor.kind] == 0
            for feature, kinds in REPACKED.items()
            if feature in self.features
        )


def _fits_amx(tensor: Tensor) -> bool:
    columns, rows = tensor.shape
    floats = tensor.kind == F16  # of the others rows are whole blocks anyway
    return (
        tensor.kind in AMX_ADDED
        and rows % AMX_ROWS == 0
        and not (floats and columns % AMX_WIDTH_OF_FLOATS)
    )


def added_bytes(tensors: Sequence[Tensor], layouts: CpuLayouts) -> int:
    """What the weights take beyond the bytes in the file, if all of them are in main memory."""
    if not layouts.bears(tensors):
        return 0
    by_name = {tensor.name: tensor for tensor in tensors}
    tied = by_name.get(EMBEDDING) if OUTPUT not in by_name else None
    grown = sum(
        packed - tensor.size
        for name, tensor in by_name.items()
        if name != EMBEDDING and (packed := layouts.packed_bytes(tensor)) is not None
    )
    return grown + ((layouts.packed_bytes(tied) or 0) if tied else 0)


@cache
def of_this_machine() -> CpuLayouts:
    """For the CPU by Linux's /proc and the installed llama-cpp-python, which isn't imported. Other
    systems don't report it: there nothing is added.
    """
    folder = ggml.libraries()
    patterns = ("*ggml-cpu*.so", prebuilt.LIBRARY)
    libraries = [one for pattern in patterns if folder for one in folder.glob(pattern)]
    tiled = [file for file in libraries if prebuilt.holds(file, AMX_BUILT)]
    return CpuLayouts(
        features=_features(Path("/proc/cpuinfo")) if platform.system() == "Linux" else frozenset(),
        amx_built=bool(tiled),
        repack_built=any(prebuilt.holds(file, REPACK_BUILT) for file in libraries),
        tiles_sound=all(is_sound(file) for file in tiled),
    )


def _features(cpuinfo: Path) -> frozenset[str]:
    """The words of its first line of `flags` (x86) or `Features` (ARM)."""
    for line in cpuinfo.read_text().splitlines():
        name, _, words = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(words.split())
    return frozenset()


def is_sound(library: Path) -> bool:
    """By the compiler that it names; where it names none, as that of other systems' wheels."""
    if prebuilt.holds(library, MENDED):
        return True
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = [(int(major), int(minor)) for major, minor in COMPILER.findall(data)]
    return all(minor >= SOUND_FROM.get(major, 0) for major, minor in found)
