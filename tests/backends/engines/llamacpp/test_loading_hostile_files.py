"""No GGUF file ends the process that serves it, however its header was changed: it is refused, by
the child process that tries it or in words of llama.cpp's own, or it is loaded and answers.
"""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import bundled
from tests.backends import encoder_gguf, gguf_grown, gguf_raw, gguf_search, random_bert, random_gguf
from tests.backends.gguf_raw import (
    ARRAY,
    BOOL,
    FLOAT32,
    INT32,
    STRING,
    UINT32,
    RawFile,
    RawTensor,
)
from tests.hang import HANG

pytestmark = pytest.mark.slow  # each file is tried in a process of its own

TURNED, SLIDING = "rope.dimension_count", "rope.dimension_count_swa"
KEY, VALUE, SHARED = "attention.key_length", "attention.value_length", "attention.head_count_kv"
WINDOW, SECTIONS = "attention.sliding_window", "rope.dimension_sections"
PATTERN = "attention.sliding_window_pattern"

Q8_0, F16, F64, Q8_1 = 8, 1, 28, 9
Change: TypeAlias = Callable[[RawFile], RawFile]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RawFile]:
    folder = tmp_path_factory.mktemp("bases")
    written = {
        "llama": bundled.GGUF,
        "bert": random_bert.write(folder / "bert.gguf"),
        "nomic": random_bert.write(folder / "nomic.gguf", rotary=True),
        **{name: write(name, folder / f"{name}.gguf") for name in ("experts", "windowed", "mixed")},
    }
    return {name: gguf_raw.read(path) for name, path in written.items()}


def write(name: str, path: Path) -> Path:
    return random_gguf.write(path, random_gguf.MODELS[name])


def number(key: str, value: float, kind: int = UINT32) -> Change:
    return lambda file: file.with_value(key, kind, value)


def words(change: Callable[[list[bytes]], list[bytes]]) -> Change:
    key = "tokenizer.ggml.tokens"
    return lambda file: file.with_value(key, ARRAY, (STRING, change(file.entries[key].value[1])))


def kinds(value: int) -> Change:
    key = "tokenizer.ggml.token_type"

    def changed(file: RawFile) -> RawFile:
        return file.with_value(key, ARRAY, (INT32, [value] * len(file.entries[key].value[1])))

    return changed


def tokenizer(model: str, **entries: int) -> Change:
    def changed(file: RawFile) -> RawFile:
        file = file.with_value("tokenizer.ggml.model", STRING, model.encode())
        for key, value in entries.items():
            kind = BOOL if isinstance(value, bool) else UINT32
            file = file.with_value(f"tokenizer.ggml.{key}", kind, value)
        return file

    return changed


def typed(name: str, kind: int) -> Change:
    return lambda file: file.retyped(name, kind)


def extra(name: str, kind: int, *shape: int) -> Change:
    return lambda file: file.added(RawTensor(name, kind, shape))


def spelled_as_bytes(found: list[bytes]) -> list[bytes]:
    """All but the letter A."""
    texts = (b"<0x%02X>" % n for n in range(256) if n != ord("A"))
    return [next(texts, b"<%d>" % place) for place in range(len(found))]


EPSILON = "attention.layer_norm_epsilon"
# A file, and what is changed about it. Loaded unseen, each of them ends the process or never
# ends.
CHANGED: list[tuple[str, Change]] = [
    ("bert", typed("token_types.weight", F16)),
    ("bert", typed("token_types.weight", Q8_0)),
    ("bert", typed("token_embd_norm.weight", F16)),
    ("bert", typed("blk.1.attn_q.bias", F16)),
    ("llama", typed("blk.0.ffn_norm.weight", F16)),
    ("llama", typed("output_norm.weight", Q8_0)),
    ("llama", extra("rope_freqs.weight", F16, 16)),
    ("bert", typed("position_embd.weight", F64)),
    ("llama", typed("token_embd.weight", Q8_1)),
    ("llama", typed("blk.2.attn_q.weight", 26)),
    ("llama", number("llama.block_count", 0)),
    ("llama", number("llama.block_count", 1_000_003)),
    ("bert", number(f"bert.{EPSILON}", -1.0, FLOAT32)),
    ("bert", number(f"bert.{EPSILON}", math.nan, FLOAT32)),
    ("bert", number("bert.pooling_type", 7)),
    ("llama", number("llama.pooling_type", 5)),
    ("llama", number("llama.expert_count", 4)),
    ("llama", number("llama.expert_used_count", 4)),
    ("llama", number("llama.expert_count", 5_000)),
    ("llama", number("llama.expert_group_count", 3)),
    ("llama", number("llama.nextn_predict_layers", 9)),
    (
        "llama",
        lambda file: file.with_value("llama.rope.scaling.type", STRING, b"ntk"),
    ),
    ("nomic", number("nomic-bert.rope.dimension_count", 31)),
    ("nomic", number("nomic-bert.rope.dimension_count", 1_000)),
    ("nomic", number("nomic-bert.rope.dimension_count", 0)),
    ("experts", number("qwen3moe.rope.dimension_count", 16)),
    ("windowed", number("gemma3.rope.dimension_count", 0)),
    ("windowed", number("gemma3.attention.sliding_window_pattern", 1)),
    ("mixed", number("lfm2.attention.causal", False, BOOL)),
    ("mixed", number("lfm2.attention.head_count", 8)),
    (
        "llama",
        lambda file: file.with_value("general.architecture", STRING, b"smallthinker"),
    ),
    ("bert", number("bert.attention.key_length", 31)),
    ("bert", number("bert.embedding_length_out", 5_000)),
    ("llama", number("general.alignment", 8)),
    ("llama", tokenizer("no_vocab")),
    ("llama", tokenizer("llama")),
    ("llama", words(lambda found: [*found[:1], *found[:-1]])),
    ("llama", words(lambda found: [b"a\0b", b"a\0c", *found[2:]])),
    ("llama", words(lambda found: [b"x" * 100_000, *found[1:]])),
    ("bert", kinds(6)),
    ("bert", number("tokenizer.ggml.bos_token_id", 5_000)),
    ("bert", lambda file: file.without("tokenizer.ggml.seperator_token_id")),
    ("bert", tokenizer("t5", add_bos_token=True, bos_token_id=5_000)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("base", "change"), CHANGED, ids=lambda part: part if isinstance(part, str) else ""
)
def test_no_changed_file_ends_the_process(
    base: str, change: Change, bases: dict[str, RawFile], tmp_path: Path
) -> None:
    path = gguf_raw.write(change(bases[base]), tmp_path / "model.gguf")
    assert gguf_search.tried(path) in ("refused", "computed")


HRM = {"hrm.layers_per_stack": 2, "hrm.h_cycles": 1, "hrm.l_cycles": 1}
# The same of architectures that are grown: numbers, and a tensor that is taken away.
GROWN: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"feed_forward_length": 0}, ""),
    ("phi3", {}, "blk.2.attn_qkv.weight"),
    ("falcon-h1", {}, "blk.1.ssm_conv1d.bias"),
    ("qwen35", {"full_attention_interval": 0}, ""),
    ("glm4moe", {"nextn_predict_layers": 4}, ""),
    ("qwen35", {"block_count": 5, "nextn_predict_layers": 1}, ""),
    ("lfm2", {"attention.head_count_kv": 0}, ""),
    ("lfm2", {"attention.head_count_kv": 2}, ""),
    ("plamo2", {"ssm.group_count": 2}, ""),
    ("gpt-oss", {"expert_count": 0, "expert_used_count": 0}, ""),
    ("qwen3moe", {"expert_used_count": [0, 2, 2, 2]}, ""),
    ("mamba2", {"ssm.time_step_rank": 3, "attention.head_count": 0}, ""),
    ("mamba2", {"ssm.group_count": 3, "attention.head_count": 0}, ""),
    ("granitehybrid", {"ssm.inner_size": 64}, ""),
    ("qwen35", {"ssm.state_size": 8}, ""),
    ("qwen35", {"rope.dimension_sections": [0, 0, 0, 0]}, ""),
    ("t5encoder", {"attention.relative_buckets_count": 32}, ""),
    ("hrm_text", HRM | {"hrm.l_cycles": 2}, ""),
    ("hrm_text", HRM | {"hrm.h_cycles": 0}, ""),
    (
        "qwen3vl",
        {"n_deepstack_layers": 4, "rope.dimension_sections": [2, 3, 3, 0]},
        "",
    ),
    ("exaone-moe", gguf_grown.EXPERTS | {"expert_gating_func": 0}, ""),
    ("nanbeige", {"num_loops": 0}, ""),
    ("nanbeige", {"num_loops": 129}, ""),
    ("gemma-embedding", {"block_count": 6, "dense_2_feat_in": 32}, ""),
    ("deepseek2", {"attention.temperature_scale": 0.5}, ""),
    ("deepseek2-ocr", gguf_grown.EXPERTS | {"rope.freq_base": 5e5}, ""),
    ("gemma4", {"attention.shared_kv_layers": 3}, ""),
    ("gemma4", {"attention.shared_kv_layers": 1}, ""),
    ("t5", {}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("architecture", "numbers", "without"), GROWN)
def test_no_changed_file_of_other_architectures_ends_the_process(
    architecture: str, numbers: dict[str, Any], without: str, tmp_path: Path
) -> None:
    path = gguf_grown.write(architecture, tmp_path / "model.gguf", numbers)
    if without:
        file = gguf_raw.read(path)
        left = [tensor for tensor in file.tensors if tensor.name != without]
        gguf_raw.write(RawFile(file.entries, left), path)
    assert gguf_search.tried(path) in ("refused", "computed")


ATTENTION: list[tuple[str, dict[str, Any]]] = [
    ("phi2", {TURNED: 0}),
    ("glm4", {TURNED: 0}),
    ("qwen2", {TURNED: 0}),
    ("lfm2", {TURNED: 0}),
    ("granitehybrid", {TURNED: 0}),
    ("cohere2", {TURNED: 16, SLIDING: 0}),
    ("gemma4", {TURNED: 0, SLIDING: 16}),
    ("gemma2", {TURNED: 16, SLIDING: 3}),
    ("deepseek2", {TURNED: 24, KEY: 56}),
    ("deepseek2", {KEY: 34}),
    ("mistral4", {}),
    ("glm4", {SECTIONS: [2, 8, 0, 8]}),
    ("minicpm3", {TURNED: 3}),
    ("gpt-oss", {TURNED: 8}),
    ("qwen3", {KEY: 8}),
    ("qwen3", {SHARED: 3}),
    ("gemma2", {SHARED: [2, 2, 2, 0]}),
    ("llama", {SHARED: [2, 1, 2, 1]}),
    ("qwen2", {KEY: 8, VALUE: 8}),
    ("gemma2", {KEY: 16, "attention.key_length_swa": 8}),
    ("gemma2", {PATTERN: [False] * 4}),
    ("step35", {"attention.value_length_swa": 8}),
    ("lfm2", {"attention.key_length_swa": 5, WINDOW: 7}),
    ("qwen3tts", {SECTIONS: [8, 8, 0, 1]}),
    ("step35", {TURNED: 2}),
]


@pytest.mark.parametrize(("architecture", "numbers"), ATTENTION)
def test_no_numbers_of_attention_end_the_process(
    architecture: str, numbers: dict[str, Any], tmp_path: Path
) -> None:
    path = gguf_grown.write(architecture, tmp_path / "model.gguf", numbers)
    assert gguf_search.tried(path) in ("refused", "computed")


# An architecture and its numbers, which load and answer.
SOUND: list[tuple[str, dict[str, Any]]] = [
    ("starcoder", {TURNED: 0}),  # positions are learned
    ("bloom", {TURNED: 0}),  # and these are biases of the scores
    ("mamba2", {"attention.head_count": 0, TURNED: 0}),
    ("nemotron_h", {TURNED: 0}),
    ("granitehybrid", {TURNED: 0, "rope.scaling.finetuned": False}),
    ("deepseek2", {TURNED: 0, KEY: 32}),
    ("minicpm3", {TURNED: 0}),
    ("cohere2", {TURNED: 0, SLIDING: 16}),  # turned in layers that slide alone
    ("gemma2", {TURNED: 0, SLIDING: 16}),  # what is given of the first layer, which slides, counts
    ("llama4", {TURNED: 0, SLIDING: 16}),
    ("phi2", {TURNED: 8}),
    ("glm4", {TURNED: 8}),
    ("glm4", {SECTIONS: [0, 8, 8, 8]}),  # one kind of position, as the first is 0
    ("glm4moe", {SECTIONS: [2, 3, 3, 0]}),
    ("llama", {SHARED: 2, TURNED: 16}),
    ("qwen3", {KEY: 8, VALUE: 8}),
    ("gemma4", {SHARED: [2, 1, 2, 1]}),
    ("lfm2", {}),
    ("lfm2", {WINDOW: 7}),
    ("falcon-h1", {}),
    ("phi3", {}),
    ("qwen35", {}),
]


@pytest.mark.parametrize(("architecture", "numbers"), SOUND)
def test_what_is_sound_loads_and_answers(
    architecture: str, numbers: dict[str, Any], tmp_path: Path
) -> None:
    path = gguf_grown.write(architecture, tmp_path / "model.gguf", numbers)
    assert gguf_search.tried(path, seconds=HANG) == "computed"


TAKEN: list[tuple[str, Change]] = [
    ("bert", typed("position_embd.weight", F16)),
    ("bert", typed("position_embd.weight", Q8_0)),
    ("bert", number("bert.pooling_type", 2**32 - 1)),
    ("bert", number("bert.attention.key_length", 64)),
    ("nomic", number("nomic-bert.rope.dimension_count", 32)),
    ("llama", words(lambda found: [b"", b"", *found[2:]])),
    ("llama", lambda file: words(spelled_as_bytes)(tokenizer("gpt2")(file))),
]


@pytest.mark.parametrize(("base", "change"), TAKEN)
def test_what_llama_cpp_bears_is_loaded(
    base: str, change: Change, bases: dict[str, RawFile], tmp_path: Path
) -> None:
    path = gguf_raw.write(change(bases[base]), tmp_path / "model.gguf")
    assert gguf_search.tried(path, seconds=HANG) == "computed"


@pytest.mark.long
@pytest.mark.parametrize("base", ["llama", "bert", "rank", "nomic", "experts", "windowed", "mixed"])
def test_no_change_of_one_value_or_tensor_ends_the_process(base: str, tmp_path: Path) -> None:
    path = tmp_path / "base.gguf"
    match base:
        case "llama":
            path = bundled.GGUF
        case "bert" | "rank" | "nomic":
            pooling = encoder_gguf.RANK if base == "rank" else encoder_gguf.MEAN
            random_bert.write(path, pooling=pooling, rotary=base == "nomic")
        case _:
            write(base, path)
    search = subprocess.run(
        [sys.executable, "-m", "tests.backends.gguf_search", path, tmp_path / "changed.gguf"],
        capture_output=True,
        text=True,
        check=True,
    )
    outcomes: dict[str, str] = json.loads(search.stdout)
    assert len(outcomes) > 500
    assert outcomes["unchanged"] == "computed"
    assert {name: end for name, end in outcomes.items() if end not in ("computed", "refused")} == {}
