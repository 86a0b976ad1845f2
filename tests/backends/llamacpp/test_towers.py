"""A projector that llama.cpp's multimodal library would not survive is refused, in words."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from backends import catalog
from backends.errors import LoadFailed
from backends.llamacpp import projectors
from config.engines import LlamaCppOptions
from tests.backends import gguf_raw, gguf_search
from tests.backends.gguf_raw import ARRAY, FLOAT32, INT32, UINT32, RawFile, RawTensor
from tests.backends.llamacpp import random_projector

F16, I32 = 1, 26
KINDS = ("gemma3-sees", "qwen2vl-sees")
LLAVA, QWEN = KINDS
Change: TypeAlias = Callable[[RawFile], RawFile]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models with a projector each, by their kinds."""
    return {kind: random_projector.write(kind, tmp_path_factory.mktemp(kind)) for kind in KINDS}


def projector(model: Path) -> Path:
    return model.with_name(f"mmproj-{model.name}")


def number(key: str, value: float, kind: int = UINT32) -> Change:
    return lambda file: file.with_value(f"clip.vision.{key}", kind, value)


def typed(name: str, kind: int) -> Change:
    return lambda file: file.retyped(name, kind)


def without(name: str) -> Change:
    return lambda file: RawFile(file.entries, [one for one in file.tensors if one.name != name])


def shaped(name: str, *shape: int) -> Change:
    return lambda file: without(name)(file).added(RawTensor(name, 0, shape))


# A kind, what is changed about its projector, and words of the refusal. Without the guard each of
# them ends the process.
REFUSED: list[tuple[str, Change, str]] = [
    (LLAVA, number("image_size", 1.5, FLOAT32), "image_size is of type 6"),
    (QWEN, number("patch_size", 8, INT32), "patch_size is of type 5"),
    (QWEN, number("block_count", 0), "block_count is 0"),
    (LLAVA, number("image_size", 0), "0 patches"),
    (LLAVA, number("image_size", 64), "64 patches .* 9 positions"),
    (LLAVA, number("patch_size", 7), "patch_embd.weight has the shape"),
    (QWEN, number("embedding_length", 64), "has the shape .* expected"),
    (QWEN, number("attention.head_count", 3), "3 heads share 32"),
    (QWEN, number("attention.head_count", 16), "2 values, a quarter"),
    (QWEN, number("attention.layer_norm_epsilon", math.nan, FLOAT32), "epsilon is nan"),
    (QWEN, number("spatial_merge_size", 1), "merges 2 x 2"),
    (
        LLAVA,
        lambda file: file.with_value(
            "clip.vision.image_grid_pinpoints", ARRAY, (INT32, [1 << 30, 1 << 30])
        ),
        "pictures of 1073741824 pixels",
    ),
    (LLAVA, typed("v.blk.0.ln1.weight", F16), r"v\.blk\.0\.ln1\.weight is F16"),
    (QWEN, typed("mm.0.bias", F16), r"mm\.0\.bias is F16"),
    (QWEN, typed("mm.2.weight", I32), r"mm\.2\.weight is I32"),
    (LLAVA, shaped("v.blk.0.attn_q.weight", 32, 16), r"attn_q\.weight has the shape"),
    (QWEN, shaped("mm.0.weight", 64, 128), r"mm\.0\.weight has the shape"),
    (LLAVA, shaped("mm.2.weight", 16, 32), r"mm\.2\.weight has the shape .* behind mm\.0"),
    (QWEN, shaped("v.blk.0.ffn_up.bias", 33), r"ffn_up\.bias has the shape"),
    (LLAVA, without("mm.2.weight"), r"lacks the tensor mm\.2\.weight"),
    (QWEN, without("v.blk.0.attn_k.bias"), r"lacks the tensor v\.blk\.0\.attn_k\.bias"),
    (QWEN, shaped("v.class_embd", 32), r"v\.class_embd, which its graph"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "change", "words"), REFUSED, ids=[f"{one[0]}: {one[2]}" for one in REFUSED]
)
def test_what_would_end_the_process_is_refused_by_name(
    kind: str, change: Change, words: str, bases: dict[str, Path], tmp_path: Path
) -> None:
    file = change(gguf_raw.read(projector(bases[kind])))
    with pytest.raises(LoadFailed, match=f"can't be loaded: .*{words}.*vision: false"):
        projectors.check(gguf_raw.write(file, tmp_path / "mmproj.gguf"))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_sound_is_loaded_and_sees(kind: str, bases: dict[str, Path]) -> None:
    assert gguf_search.tried(projector(bases[kind]), bases[kind]) == "computed"


def test_old_files_whose_feed_forward_is_named_the_other_way_round_are_taken(
    bases: dict[str, Path], tmp_path: Path
) -> None:
    file = gguf_raw.read(projector(bases[LLAVA]))
    names = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
    swapped = [
        RawTensor(
            ".".join(names.get(part, part) for part in one.name.split(".")),
            one.kind,
            one.shape,
            one.data,
        )
        for one in file.tensors
    ]
    path = gguf_raw.write(RawFile(file.entries, swapped), tmp_path / "mmproj.gguf")
    assert gguf_search.tried(path, bases[LLAVA]) == "computed"


@pytest.mark.anyio
async def test_a_load_with_such_a_projector_says_how_to_do_without(
    bases: dict[str, Path], tmp_path: Path
) -> None:
    file = typed("mm.0.bias", F16)(gguf_raw.read(projector(bases[QWEN])))
    path = gguf_raw.write(file, tmp_path / "mmproj.gguf")
    load = catalog.BACKENDS["llamacpp"].container.load
    with pytest.raises(LoadFailed, match=r"mmproj\.gguf can't be loaded: .*vision: false"):
        await load(
            catalog.recognise(bases[QWEN]),
            LlamaCppOptions(mmproj=str(path), context_length=256),
            lambda _: None,
        )


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_no_change_of_one_value_or_tensor_ends_the_process(kind: str, tmp_path: Path) -> None:
    model = random_projector.write(kind, tmp_path)
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "tests.backends.gguf_search"),
            *(projector(model), tmp_path / "changed.gguf", model),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    outcomes: dict[str, str] = json.loads(ended.stdout)
    assert outcomes["unchanged"] == "computed"
    assert {name: end for name, end in outcomes.items() if end not in ("computed", "refused")} == {}
