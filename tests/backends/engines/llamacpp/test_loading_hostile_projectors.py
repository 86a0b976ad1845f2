"""No projector ends the process that loads it, however its header was changed."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from backends.contract import catalog
from backends.contract.errors import LoadFailed
from config.engines import LlamaCppOptions
from tests.backends import gguf_raw, gguf_search
from tests.backends.engines.llamacpp import random_projector
from tests.backends.gguf_raw import ARRAY, FLOAT32, INT32, UINT32, RawFile, RawTensor
from tests.hang import HANG

pytestmark = pytest.mark.slow  # each file is tried in a process of its own

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


# A kind, and what is changed about its projector. Loaded unseen, each of them ends the process.
CHANGED: list[tuple[str, Change]] = [
    (LLAVA, number("image_size", 1.5, FLOAT32)),
    (QWEN, number("patch_size", 8, INT32)),
    (QWEN, number("block_count", 0)),
    (LLAVA, number("image_size", 0)),
    (LLAVA, number("image_size", 64)),
    (LLAVA, number("patch_size", 7)),
    (QWEN, number("embedding_length", 64)),
    (QWEN, number("attention.head_count", 3)),
    (QWEN, number("attention.head_count", 16)),
    (QWEN, number("attention.layer_norm_epsilon", math.nan, FLOAT32)),
    (QWEN, number("spatial_merge_size", 1)),
    (
        LLAVA,
        lambda file: file.with_value(
            "clip.vision.image_grid_pinpoints", ARRAY, (INT32, [1 << 30, 1 << 30])
        ),
    ),
    (LLAVA, typed("v.blk.0.ln1.weight", F16)),
    (QWEN, typed("mm.0.bias", F16)),
    (QWEN, typed("mm.2.weight", I32)),
    (LLAVA, shaped("v.blk.0.attn_q.weight", 32, 16)),
    (QWEN, shaped("mm.0.weight", 64, 128)),
    (LLAVA, shaped("mm.2.weight", 16, 32)),
    (QWEN, shaped("v.blk.0.ffn_up.bias", 33)),
    (LLAVA, without("mm.2.weight")),
    (QWEN, without("v.blk.0.attn_k.bias")),
    (QWEN, shaped("v.class_embd", 32)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "change"), CHANGED)
def test_no_changed_projector_ends_the_process(
    kind: str, change: Change, bases: dict[str, Path], tmp_path: Path
) -> None:
    path = gguf_raw.write(change(gguf_raw.read(projector(bases[kind]))), tmp_path / "mmproj.gguf")
    assert gguf_search.tried(path, bases[kind]) in ("refused", "computed")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_sound_is_loaded_and_sees(kind: str, bases: dict[str, Path]) -> None:
    assert gguf_search.tried(projector(bases[kind]), bases[kind], HANG) == "computed"


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
    assert gguf_search.tried(path, bases[LLAVA], HANG) == "computed"


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
