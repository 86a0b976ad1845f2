"""What an order means in a repository: which files come, into which folder, under which name."""

from pathlib import Path

import pytest

from backends.contract.catalog import BACKENDS
from config.settings import Config
from config.values import HUB
from gateway.hub.repository import (
    Fits,
    Listing,
    OfferedModel,
    Order,
    RemoteFile,
    Selection,
    fits_in,
    hub_model,
    selected,
)
from gateway.terms.errors import InvalidRequest

GB = 10**9
QUANTIZED = {
    "README.md": 1,
    "m-Q2_K.gguf": 3 * GB,
    "m-Q4_K_M.gguf": 5 * GB,
    "m-Q5_K_S.gguf": 6 * GB,
    "m-Q8_0.gguf": 9 * GB,
    "BF16/m-BF16-00001-of-00002.gguf": 9 * GB,
    "BF16/m-BF16-00002-of-00002.gguf": 9 * GB,
    "mmproj-F16.gguf": 1,
    "mmproj-F32.gguf": 1,
}


def fits_under(size: int) -> Fits:
    return lambda choice: choice.size <= size


def select(
    quantization: str | None = None,
    *,
    files: dict[str, int] = QUANTIZED,
    fits: int = 100 * GB,
    **order: tuple[str, ...],
) -> Selection:
    remote = tuple(RemoteFile(name, size, "") for name, size in files.items())
    wanted = Order(repository="org/m", quantization=quantization, **order)  # type: ignore[arg-type]
    return selected(wanted, Listing("c", remote, {}), BACKENDS, fits_under(fits))


def names(selection: Selection) -> list[str]:
    return [file.name for file in selection.files]


def test_without_a_quantization_q4_k_m_is_chosen_and_not_all_of_them() -> None:
    chosen = select()
    assert (chosen.model, chosen.folder) == ("org/m:Q4_K_M", "m-Q4_K_M")
    assert names(chosen) == ["m-Q4_K_M.gguf", "mmproj-F16.gguf"]
    assert len(chosen.others) == 4


@pytest.mark.parametrize(
    ("left_out", "fits", "chosen"),
    [
        ("m-Q4_K_M.gguf", 7 * GB, "Q5_K_S"),  # the largest that fits
        ("m-Q4_K_M.gguf", 100 * GB, "Q8_0"),  # but none that isn't quantized
        ("none", 4 * GB, "Q2_K"),
        ("none", 1 * GB, "Q2_K"),  # nothing fits: the smallest
    ],
)
def test_else_what_fits_best(left_out: str, fits: int, chosen: str) -> None:
    files = {name: size for name, size in QUANTIZED.items() if name != left_out}
    assert select(files=files, fits=fits).model == f"org/m:{chosen}"


@pytest.mark.parametrize(
    ("written", "chosen"),
    [("q4_k_m", "Q4_K_M"), ("Q4_K_M", "Q4_K_M"), ("q5", "Q5_K_S"), ("bf16", "BF16")],
)
def test_a_quantization_is_known_in_any_case_and_by_a_part(written: str, chosen: str) -> None:
    assert select(written).model == f"org/m:{chosen}"


def test_files_in_lower_case_are_known_too() -> None:
    files = {"m.q4_k_m.gguf": 5, "m.q8_0.gguf": 9}
    assert select("Q8_0", files=files).model == "org/m:q8_0"
    assert select(files=files).model == "org/m:q4_k_m"


def test_the_parts_of_a_model_lie_side_by_side() -> None:
    assert names(select("BF16")) == [
        "m-BF16-00001-of-00002.gguf",
        "m-BF16-00002-of-00002.gguf",
        "mmproj-F16.gguf",
    ]


def test_what_is_not_there_is_answered_with_what_is() -> None:
    with pytest.raises(InvalidRequest) as refused:
        select("Q6_K")
    text = "no file of org/m matches Q6_K; available: Q2_K, Q4_K_M, Q5_K_S, Q8_0, BF16"
    assert refused.value.message == text
    many = {f"m-{number:03}.bin": 1 for number in range(500)}
    with pytest.raises(InvalidRequest, match="and 460 more"):
        select(files=many, include=("*.gguf",))


def test_a_repository_that_is_one_model_comes_whole() -> None:
    files = {"config.json": 1, "sub/model.safetensors": 2}
    chosen = select(files=files)
    assert (chosen.model, chosen.folder, chosen.others) == ("org/m", "m", ())
    assert names(chosen) == list(files)
    one = select(files={"m.gguf": 1, "README.md": 1})
    assert (one.folder, names(one)) == ("m", ["m.gguf"])


def test_patterns_take_what_they_match() -> None:
    assert names(select(include=("*Q2*", "*Q8*"))) == ["m-Q2_K.gguf", "m-Q8_0.gguf"]


def test_what_fits_is_a_question_of_the_devices() -> None:
    def offered(size: int) -> OfferedModel:
        return OfferedModel(name="Q8_0", model="o/m", backend="llamacpp", files=(), size=size)

    fits = fits_in({"cpu": 10 * GB}, Config(), BACKENDS)
    assert fits(offered(9 * GB))
    assert not fits(offered(10 * GB))  # there is a cache, too


@pytest.mark.parametrize("named", ["owner/name:Q4_K_M", f"{HUB}owner/name:Q4_K_M"])
def test_a_model_is_named_with_the_hub_before_it_or_without(named: str) -> None:
    order = hub_model(named)
    assert (order.repository, order.quantization) == ("owner/name", "Q4_K_M")


def test_what_stands_before_a_hub_s_name_is_spelled_in_one_place() -> None:
    root = Path(__file__).parents[3]
    files = [file for folder in ("config", "gateway") for file in (root / folder).rglob("*.py")]
    spelled = [file for file in files if f'"{HUB}"' in file.read_text("utf-8")]
    assert [file.name for file in spelled] == ["values.py"]
