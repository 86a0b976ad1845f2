"""What llama.cpp would not survive is refused by the file's header, in words; and a search for what
else there is.
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
from backends.errors import LoadFailed
from backends.llamacpp.files import recognise
from tests.backends import encoder_gguf, gguf_grown, gguf_raw, random_bert, random_gguf
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
# A file, what is changed about it, and words of the refusal. Without the guard each of them ends
# the process, or never ends.
REFUSED: list[tuple[str, Change, str]] = [
    ("bert", typed("token_types.weight", F16), "token_types.weight is F16.* F32 alone"),
    ("bert", typed("token_types.weight", Q8_0), "token_types.weight is Q8_0.* F32 alone"),
    ("bert", typed("token_embd_norm.weight", F16), r"token_embd_norm\.weight is F16"),
    ("bert", typed("blk.1.attn_q.bias", F16), r"blk\.1\.attn_q\.bias is F16"),
    ("llama", typed("blk.0.ffn_norm.weight", F16), r"blk\.0\.ffn_norm\.weight is F16"),
    ("llama", typed("output_norm.weight", Q8_0), r"output_norm\.weight is Q8_0"),
    ("llama", extra("rope_freqs.weight", F16, 16), r"rope_freqs\.weight is F16"),
    ("bert", typed("position_embd.weight", F64), r"position_embd\.weight is F64"),
    ("llama", typed("token_embd.weight", Q8_1), r"token_embd\.weight is Q8_1"),
    ("llama", typed("blk.2.attn_q.weight", 26), r"blk\.2\.attn_q\.weight is I32"),
    ("llama", number("llama.block_count", 0), "block_count is 0"),
    ("llama", number("llama.block_count", 1_000_003), "block_count is 1,000,003"),
    ("bert", number(f"bert.{EPSILON}", -1.0, FLOAT32), "layer_norm_epsilon is -1"),
    ("bert", number(f"bert.{EPSILON}", math.nan, FLOAT32), "layer_norm_epsilon is nan"),
    ("bert", number("bert.pooling_type", 7), "pooling_type is 7"),
    ("llama", number("llama.pooling_type", 5), "pooling_type is 5"),
    ("llama", number("llama.expert_count", 4), "4 experts and uses 0"),
    ("llama", number("llama.expert_used_count", 4), "0 experts and uses 4"),
    ("llama", number("llama.expert_count", 5_000), "expert_count is 5,000"),
    ("llama", number("llama.expert_group_count", 3), "0 experts are in 3 groups"),
    ("llama", number("llama.nextn_predict_layers", 9), "9 of its 4 layers"),
    (
        "llama",
        lambda file: file.with_value("llama.rope.scaling.type", STRING, b"ntk"),
        "rope.scaling.type is 'ntk'",
    ),
    ("nomic", number("nomic-bert.rope.dimension_count", 31), "dimension_count is 31"),
    ("nomic", number("nomic-bert.rope.dimension_count", 1_000), "is 1,000 of 64 values"),
    ("nomic", number("nomic-bert.rope.dimension_count", 0), "dimension_count is 0"),
    ("experts", number("qwen3moe.rope.dimension_count", 16), "is 16 of 32 values"),
    ("windowed", number("gemma3.rope.dimension_count", 0), "dimension_count is 0"),
    ("windowed", number("gemma3.attention.sliding_window_pattern", 1), "pattern leaves no layer"),
    ("mixed", number("lfm2.attention.causal", False, BOOL), "reads in both directions"),
    ("mixed", number("lfm2.attention.head_count", 8), "8 heads share 512 values"),
    (
        "llama",
        lambda file: file.with_value("general.architecture", STRING, b"smallthinker"),
        "0 experts and uses 0",
    ),
    ("bert", number("bert.attention.key_length", 31), "4 heads share 256 values"),
    ("bert", number("bert.embedding_length_out", 5_000), "said to have 5,000 values"),
    ("llama", number("general.alignment", 8), "alignment is 8"),
    ("llama", tokenizer("no_vocab"), "no vocabulary"),
    ("llama", tokenizer("llama"), "lacks .* of the bytes"),
    ("llama", words(lambda found: [*found[:1], *found[:-1]]), "spelled alike"),
    ("llama", words(lambda found: [b"a\0b", b"a\0c", *found[2:]]), "spelled alike"),
    ("llama", words(lambda found: [b"x" * 100_000, *found[1:]]), "has 100,000 bytes"),
    ("bert", kinds(6), "WordPiece"),
    ("bert", number("tokenizer.ggml.bos_token_id", 5_000), "bos_token_id.* names no token"),
    ("bert", lambda file: file.without("tokenizer.ggml.seperator_token_id"), "seperator_token_id"),
    ("bert", tokenizer("t5", add_bos_token=True, bos_token_id=5_000), "bos_token_id"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("base", "change", "reason"), REFUSED, ids=[f"{one[0]}: {one[2]}" for one in REFUSED]
)
def test_what_would_end_the_process_is_refused_by_name(
    base: str, change: Change, reason: str, bases: dict[str, RawFile], tmp_path: Path
) -> None:
    path = gguf_raw.write(change(bases[base]), tmp_path / "model.gguf")
    with pytest.raises(LoadFailed, match=f"not a usable GGUF file: .*{reason}"):
        recognise(path)


HRM = {"hrm.layers_per_stack": 2, "hrm.h_cycles": 1, "hrm.l_cycles": 1}
# The same of architectures that are grown: numbers, and a tensor that is taken away.
GROWN: list[tuple[str, dict[str, Any], str, str]] = [
    ("llama", {"feed_forward_length": 0}, "", r"tensor blk\.\d\.ffn_\w+\.weight has no values"),
    ("phi3", {}, "blk.2.attn_qkv.weight", r"blk\.2 has attn_output.weight and lacks attn_qkv"),
    ("falcon-h1", {}, "blk.1.ssm_conv1d.bias", r"blk\.1 has .* lacks ssm_conv1d\.bias"),
    ("qwen35", {"full_attention_interval": 0}, "", "full_attention_interval is 0"),
    ("glm4moe", {"nextn_predict_layers": 4}, "", "4 of its 4 layers"),
    ("qwen35", {"block_count": 5, "nextn_predict_layers": 1}, "", r"lacks blk\.0\.attn_norm"),
    ("lfm2", {"attention.head_count_kv": 0}, "", "0 of its layers attend and 4 are recurrent"),
    ("lfm2", {"attention.head_count_kv": 2}, "", "4 of its layers attend and 0 are recurrent"),
    ("plamo2", {"ssm.group_count": 2}, "", "group_count is 2; plamo2 has no groups"),
    ("gpt-oss", {"expert_count": 0, "expert_used_count": 0}, "", "0 experts and uses 0"),
    ("qwen3moe", {"expert_used_count": [0, 2, 2, 2]}, "", "expert_used_count differs"),
    ("mamba2", {"ssm.time_step_rank": 3, "attention.head_count": 0}, "", "64 .* in 3 heads"),
    ("mamba2", {"ssm.group_count": 3, "attention.head_count": 0}, "", "in 3 groups"),
    ("granitehybrid", {"ssm.inner_size": 64}, "", "inner_size is 64"),
    ("qwen35", {"ssm.state_size": 8}, "", "inner_size is 64; 4 heads have 8"),
    ("qwen35", {"rope.dimension_sections": [0, 0, 0, 0]}, "", "dimension_sections"),
    ("t5encoder", {"attention.relative_buckets_count": 32}, "", r"lacks enc\.blk\.0\.attn_rel_b"),
    ("hrm_text", HRM | {"hrm.l_cycles": 2}, "", r"4 layers for 1 cycles of 2 \+ 1 stacks of 2"),
    ("hrm_text", HRM | {"hrm.h_cycles": 0}, "", "hrm.h_cycles is 0"),
    (
        "qwen3vl",
        {"n_deepstack_layers": 4, "rope.dimension_sections": [2, 3, 3, 0]},
        "",
        "enter 4 of its 4 layers",
    ),
    ("exaone-moe", gguf_grown.EXPERTS | {"expert_gating_func": 0}, "", "how its experts are"),
    ("nanbeige", {"num_loops": 0}, "", "num_loops is 0"),
    ("nanbeige", {"num_loops": 129}, "", "4 layers are computed 129 times"),
    ("gemma-embedding", {"block_count": 6, "dense_2_feat_in": 32}, "", "dense_2_feat_in is 32"),
    ("deepseek2", {"attention.temperature_scale": 0.5}, "", "no attention.temperature_length"),
    ("deepseek2-ocr", gguf_grown.EXPERTS | {"rope.freq_base": 5e5}, "", "its graph has 10,000"),
    ("gemma4", {"attention.shared_kv_layers": 3}, "", "1 of its layers have keys"),
    ("gemma4", {"attention.shared_kv_layers": 1}, "", "layers 1 and 2 .* not one with a window"),
    ("t5", {}, "", "can't write by themselves"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("architecture", "numbers", "without", "words"), GROWN, ids=[one[3] for one in GROWN]
)
def test_what_would_end_the_process_is_refused_in_other_architectures(
    architecture: str, numbers: dict[str, Any], without: str, words: str, tmp_path: Path
) -> None:
    path = gguf_grown.write(architecture, tmp_path / "model.gguf", numbers)
    if without:
        file = gguf_raw.read(path)
        left = [tensor for tensor in file.tensors if tensor.name != without]
        gguf_raw.write(RawFile(file.entries, left), path)
    with pytest.raises(LoadFailed, match=f"not a usable GGUF file: .*{words}"):
        recognise(path)


TAKEN: list[tuple[str, Change]] = [
    ("bert", typed("position_embd.weight", F16)),
    ("bert", typed("position_embd.weight", Q8_0)),
    ("bert", number("bert.pooling_type", 2**32 - 1)),
    ("bert", number("bert.attention.key_length", 64)),
    ("windowed", number("gemma3.attention.head_count", 8)),
    ("nomic", number("nomic-bert.rope.dimension_count", 32)),
    ("llama", words(lambda found: [b"", b"", *found[2:]])),
    ("llama", number("general.alignment", 64)),
    ("llama", lambda file: words(spelled_as_bytes)(tokenizer("gpt2")(file))),
]


@pytest.mark.parametrize(("base", "change"), TAKEN)
def test_what_llama_cpp_bears_is_taken(
    base: str, change: Change, bases: dict[str, RawFile], tmp_path: Path
) -> None:
    assert recognise(gguf_raw.write(change(bases[base]), tmp_path / "model.gguf")) is not None


def test_one_byte_without_a_token_is_enough(bases: dict[str, RawFile], tmp_path: Path) -> None:
    file = words(spelled_as_bytes)(tokenizer("llama")(bases["llama"]))
    with pytest.raises(LoadFailed, match="lacks 1 of the bytes"):
        recognise(gguf_raw.write(file, tmp_path / "model.gguf"))


@pytest.mark.parametrize("name", random_gguf.MODELS)
def test_every_kind_of_model_is_taken(name: str, tmp_path: Path) -> None:
    path = random_gguf.write(tmp_path / "model.gguf", random_gguf.MODELS[name])
    assert recognise(path) is not None


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
