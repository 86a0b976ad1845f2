"""Which library computes a model is decided by its file, its options and what is installed; the
reason is said.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest

import bundled
from backends.contract.catalog import ModelFiles
from backends.contract.errors import BackendMissing, LoadFailed
from backends.engines.llamacpp.files import recognise
from backends.engines.llamacpp.layout import cache_layout
from backends.engines.llamacpp.libraries import IK, check, choice, chosen
from backends.machine import ik
from config.engines import DraftOptions, IkOptions, LlamaCppOptions

INSTALLED = pytest.mark.skipif(bool(ik.missing()), reason="ik_llama.cpp isn't installed")
MISSING = pytest.mark.skipif(not ik.missing(), reason="ik_llama.cpp is installed")
ALONE = LlamaCppOptions(max_concurrent=1, gpu_layers=0)
IQ4_KS, Q4_1 = 144, 3


@pytest.fixture
def files() -> ModelFiles:
    found = recognise(bundled.GGUF)
    assert found is not None
    return found


@MISSING
def test_without_it_nobody_is_told_and_what_needs_it_names_its_installation(
    files: ModelFiles,
) -> None:
    assert choice(files, ALONE) is None
    with pytest.raises(BackendMissing, match=r"needs ik_llama\.cpp: .*install.*ik"):
        check(files, msgspec.structs.replace(ALONE, library="ik"))


@INSTALLED
def test_one_request_at_a_time_is_computed_by_ik(files: ModelFiles) -> None:
    assert chosen(files, ALONE).name == IK
    many = chosen(files, LlamaCppOptions(max_concurrent=2, gpu_layers=0))
    assert (many.name, many.may_end) == ("llama.cpp", False)
    assert "max_concurrent" in many.reason


LACKED: list[tuple[str, Any]] = [
    ("adapters", {"one": "adapter.gguf"}),
    ("draft", DraftOptions(model="small")),
    ("mmproj", "projector.gguf"),
    ("cache_type_k", "q8_0"),
    ("flash_attention", "off"),
]


@INSTALLED
@pytest.mark.parametrize(("option", "value"), LACKED, ids=[option for option, _ in LACKED])
def test_what_it_lacks_is_left_to_llama_cpp_and_refused_where_it_is_demanded(
    files: ModelFiles, option: str, value: object
) -> None:
    options = msgspec.structs.replace(ALONE, **{option: value})
    assert chosen(files, options).name == "llama.cpp"
    with pytest.raises(LoadFailed, match="which lacks"):
        check(files, msgspec.structs.replace(options, library="ik"))


@INSTALLED
def test_types_that_it_computes_wrongly_are_left_to_llama_cpp(files: ModelFiles) -> None:
    wrong = msgspec.structs.replace(files, types=(0, Q4_1))
    assert chosen(wrong, ALONE).name == "llama.cpp"


def test_what_it_alone_reads_is_computed_by_it_whatever_is_asked(files: ModelFiles) -> None:
    foreign = msgspec.structs.replace(files, types=(0, IQ4_KS))
    for options in (ALONE, LlamaCppOptions(), LlamaCppOptions(library="llama.cpp")):
        assert chosen(foreign, options).name == IK
        assert chosen(foreign, options).may_end


@pytest.mark.parametrize("option", ["override_tensor", "mla", "fmoe", "rtr", "amb"])
def test_what_only_ik_has_is_refused_where_llama_cpp_computes(
    files: ModelFiles, option: str
) -> None:
    value = {"override_tensor": ("exps=CPU",), "fmoe": False, "rtr": True}.get(option, 1)
    given = LlamaCppOptions(library="llama.cpp", ik=IkOptions(**{option: value}))  # type: ignore[arg-type]
    with pytest.raises(LoadFailed, match=rf"ik\.{option} is ik_llama\.cpp's alone"):
        check(files, given)


def test_each_request_has_a_whole_context(files: ModelFiles) -> None:
    options = LlamaCppOptions(library="ik", max_concurrent=3, context_length=512, cache_tokens=600)
    assert cache_layout(files, options).split
    assert cache_layout(files, options).cells == 3 * 512


def test_the_pinned_release_is_the_one_that_was_tried() -> None:
    constraints = Path(__file__).parents[4] / "constraints.txt"
    assert f"{ik.PACKAGE}=={ik.TRIED}" in constraints.read_text("utf-8").split()
