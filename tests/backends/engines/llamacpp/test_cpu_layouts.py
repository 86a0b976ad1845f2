"""Weights that llama.cpp copies into layouts of the CPU's own: which, and how large they become."""

from pathlib import Path

import msgspec
import pytest

from backends.contract import catalog
from backends.contract.protocol import Generation
from backends.contract.samplers import Sampling
from backends.engines.llamacpp import cpu_layouts, files
from backends.engines.llamacpp.cpu_layouts import CpuLayouts
from backends.engines.llamacpp.gguf import Tensor
from backends.engines.llamacpp.recognition import recognise
from config.engines import LlamaCppOptions
from tests.backends import container_contract as contract
from tests.backends import random_gguf

pytestmark = pytest.mark.anyio

AMX = CpuLayouts(frozenset({"amx_int8", "avx512_vnni", "avx2", "avx512f"}), True, True)
AVX2 = CpuLayouts(frozenset({"avx2"}), True, True)
ARM = CpuLayouts(frozenset({"asimddp"}), False, True)
F32, F16, Q4_0, Q5_0, Q8_0, Q2_K, Q4_K, Q6_K, BF16 = 0, 1, 2, 6, 8, 10, 12, 14, 30

# A matrix's type, values of a row, rows; its bytes with AMX, with AVX2 alone, on an ARM with the
# dot product; None: it stays as it is in the file.
MATRICES = [
    (F32, 256, 64, None, None, None),
    (BF16, 256, 64, None, None, None),
    (F16, 256, 64, 32_768, None, None),
    (F16, 40, 64, None, None, None),
    (Q4_0, 256, 64, 9_216, 9_216, 9_216),
    (Q4_0, 256, 40, 5_760, 5_760, 5_760),  # not rows enough for AMX
    (Q4_0, 256, 36, None, None, 5_184),
    (Q5_0, 256, 64, None, None, None),
    (Q8_0, 256, 64, 64 * 8 * (34 + 4), None, 17_408),
    (Q2_K, 256, 64, 5_376, None, None),
    (Q4_K, 256, 64, 64 * (144 + 4), 9_216, 9_216),
    (Q6_K, 256, 64, 13_440, None, 13_440),
]


@pytest.mark.parametrize(("kind", "columns", "rows", "amx", "avx2", "arm"), MATRICES)
def test_a_matrix_goes_where_the_cpu_multiplies_its_type(
    kind: int, columns: int, rows: int, amx: int | None, avx2: int | None, arm: int | None
) -> None:
    matrix = Tensor("blk.0.ffn_up.weight", kind, (columns, rows))
    assert AMX.packed_bytes(matrix) == amx
    assert AVX2.packed_bytes(matrix) == avx2
    assert ARM.packed_bytes(matrix) == arm
    assert CpuLayouts().packed_bytes(matrix) is None


def test_a_library_built_without_them_uses_none() -> None:
    matrix = Tensor("blk.0.ffn_up.weight", Q4_0, (256, 64))
    assert CpuLayouts(AMX.features).packed_bytes(matrix) is None
    assert CpuLayouts(AMX.features, repack_built=True).packed_bytes(matrix) == matrix.size


BROKEN = msgspec.structs.replace(AMX, tiles_sound=False)


@pytest.mark.parametrize(
    ("kind", "columns", "borne"),
    [(F16, 256, True), (Q5_0, 256, True), (Q8_0, 256, False), (Q4_K, 256, False), (F32, 256, True)],
)
def test_amx_is_not_used_where_its_first_product_would_end_the_process(
    kind: int, columns: int, borne: bool
) -> None:
    matrix = Tensor("blk.0.ffn_up.weight", kind, (columns, 64))
    norm = Tensor("blk.0.ffn_norm.weight", F32, (columns,))
    assert BROKEN.bears([norm, matrix]) == borne
    assert AMX.bears([norm, matrix])
    if not borne:
        assert cpu_layouts.added_bytes([norm, matrix], BROKEN) == 0


@pytest.mark.parametrize(
    ("named", "sound"),
    [
        (b"GCC: (Debian 12.2.0-14+deb12u1) 12.2.0", False),
        (b"GCC: (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0", False),
        (b"GCC: (GNU) 11.5.0 20240719 (Red Hat 11.5.0-5)", True),
        (b"GCC: (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0", True),
        (b"GCC: (Debian 14.2.0-19) 14.2.0", True),
        (b"Debian clang version 14.0.6", True),
        (b"GCC: (Debian 12.2.0-14) 12.2.0\0AMX tiles are configured whole", True),
    ],
)
def test_a_library_names_its_compiler(named: bytes, sound: bool, tmp_path: Path) -> None:
    library = tmp_path / "libggml-cpu.so"
    library.write_bytes(bytes(5000) + named + b"\0.shstrtab\0")
    assert cpu_layouts.is_sound(library) == sound


@pytest.mark.parametrize(("layouts", "added"), [(AMX, 2 * 256 * 32_000), (AVX2, 0)])
def test_an_embedding_that_is_the_output_too_is_held_twice_where_it_is_repacked(
    layouts: CpuLayouts, added: int, tmp_path: Path
) -> None:
    path = random_gguf.write(tmp_path / "model.gguf", random_gguf.MODELS["words"])
    found = recognise(path, layouts)
    assert found is not None
    assert found.added_bytes == added
    weights = files.estimate(found, LlamaCppOptions(gpu_layers=0)).weights
    assert weights == found.size_bytes + added


def test_an_embedding_beside_an_output_is_held_once() -> None:
    embedding = Tensor("token_embd.weight", F16, (256, 64))
    output = Tensor("output.weight", F16, (256, 64))
    assert cpu_layouts.added_bytes([embedding], AMX) == embedding.size
    assert cpu_layouts.added_bytes([embedding, output], AMX) == 0


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = random_gguf.Dimensions(width=256, heads=8, inner=512, vocabulary=8000)
    return random_gguf.write(tmp_path_factory.mktemp("plain") / "model.gguf", model)


VOCABULARY = 200_000  # bytes of the file that are no weights
QUANTIZED = {  # llama_ftype
    "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_M": 12,
    "Q4_K_M": 15, "Q5_K_M": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30, "BF16": 32, "MXFP4": 38,
}  # fmt: skip


@pytest.mark.parametrize("name", QUANTIZED)
async def test_this_machine_takes_what_was_estimated(
    name: str, plain: Path, tmp_path: Path
) -> None:
    """Read, not mapped, so that llama.cpp tells exact sizes."""
    path = _quantized(plain, tmp_path / "model.gguf", QUANTIZED[name])
    options = LlamaCppOptions(mmap=False, context_length=128, trial="never")
    found = catalog.recognise(path)
    container = await catalog.BACKENDS["llamacpp"].container.load(found, options, lambda _: None)
    memory = container.info.memory
    await container.aclose()
    assert memory is not None
    assert 0 <= files.estimate(found, options).weights - memory.weights < VOCABULARY


@pytest.mark.parametrize("name", QUANTIZED)
async def test_every_quantization_is_computed(name: str, plain: Path, tmp_path: Path) -> None:
    """A prompt of several tokens, and one token after the other."""
    found = catalog.recognise(_quantized(plain, tmp_path / "model.gguf", QUANTIZED[name]))
    container = await catalog.BACKENDS["llamacpp"].container.load(
        found, LlamaCppOptions(context_length=128, trial="never"), lambda _: None
    )
    job = Generation(prompt=tuple(range(10, 60)), max_tokens=3, sampling=Sampling(ban_eos=True))
    _, ended = await contract.run(container, job)
    await container.aclose()
    assert (ended.prompt_tokens, ended.completion_tokens) == (50, 3)


def _quantized(source: Path, target: Path, kind: int) -> Path:
    api = pytest.importorskip("llama_cpp.llama_cpp")
    try:
        params = api.llama_model_quantize_default_params()
    except NotImplementedError as error:
        pytest.skip(str(error))
    params.ftype, params.pure = kind, True
    assert api.llama_model_quantize(str(source).encode(), str(target).encode(), params) == 0
    return target
