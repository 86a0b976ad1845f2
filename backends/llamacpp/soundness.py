"""Checks a GGUF header for what would end the process in llama.cpp instead of raising. No engine.

llama.cpp compares every tensor's shape with the numbers of the header and reports what is wrong.
What it takes for granted instead stands here: what it asserts while it reads, while it builds a
graph or in the middle of one, and C++ exceptions that are not caught. Found by changing every value
and tensor of a few files, one at a time (`tests/backends/llamacpp/test_soundness.py`).
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from backends.llamacpp import attention, dimensions, encoders
from backends.llamacpp.architectures import (
    COMPRESSED,
    GATED,
    HYBRID,
    MAY_BE_DRAFTS,
    NOT_ALONE,
    OWN_EXPERTS,
    WITH_EXPERTS,
    WITH_TRUNK,
)
from backends.llamacpp.gguf import BrokenFile, GgufModel, GgufWords, Header

F32 = 0  # ggml_type
KINDS: Mapping[int, str] = {
    1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K",
    11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32",
    27: "I64", 28: "F64", 30: "BF16", 39: "MXFP4",
}  # fmt: skip
# What is added to activations, multiplied with them value by value, or scanned over: all of it is
# computed at 32 bits alone (ggml-cpu's binary-ops.cpp and ops.cpp).
AT_32_BITS = re.compile(
    r"\.bias$|norm[^.]*\.weight$|^token_types\.|^rope_(freqs|factors)|attn_sinks|"
    r"ssm_(a|d|conv1d)\b|shortconv\.conv|layer_output_scale|(time|channel)_mix_(lerp|first)"
)
NO_WEIGHTS = frozenset({9, 15, 24, 25, 26, 27, 28})  # kinds that no matrix is multiplied in
INDICES = re.compile(r"tid2eid")  # tables of whole numbers

# A number of the header and what it may be, both ends included; where it is several, one a layer,
# each of them.
NUMBERS: Mapping[str, tuple[float, float]] = {
    "block_count": (1, 512),  # LLAMA_MAX_LAYERS
    "expert_count": (0, 1024),  # LLAMA_MAX_EXPERTS
    "expert_gating_func": (0, 4),  # llama_expert_gating_func_type
    "pooling_type": (0, 4),  # llama_pooling_type
    "attention.layer_norm_epsilon": (0, math.inf),
    "attention.layer_norm_rms_epsilon": (0, math.inf),
    "attention.group_norm_epsilon": (0, math.inf),
    "hrm.layers_per_stack": (1, 512),
    "hrm.h_cycles": (1, 512),
    "hrm.l_cycles": (1, 512),
    "num_loops": (1, 512),
}
# Whose states are in heads, and the heads in groups; and are twice as wide as the model.
IN_GROUPS = frozenset({"falcon-h1", "granitehybrid", "mamba2", "nemotron_h", "nemotron_h_moe"})
TWICE_AS_WIDE = frozenset({"granitehybrid", "jamba"})
UNGROUPED = "plamo2"  # whose are not
DELTA = frozenset({"qwen3next", "qwen35", "qwen35moe"})  # whose heads' states are square
# Numbers that others are divided by, and in which architectures.
DIVISORS: Mapping[str, frozenset[str]] = {
    "full_attention_interval": frozenset({"minimax-01", "qwen3next", "qwen35", "qwen35moe"}),
    "interleave_moe_layer_step": frozenset({"ernie4_5-moe"}),
    "experts_per_group": frozenset({"grovemoe"}),
}
# What the loader lets a layer go without and its graph doesn't: where it has the first, it needs
# all of one of the others.
NEEDED: Mapping[str, tuple[str, tuple[frozenset[str], ...]]] = {
    **dict.fromkeys(
        ("falcon-h1", "granitehybrid", "nemotron_h", "nemotron_h_moe"),
        ("ssm_conv1d.weight", (frozenset({"ssm_conv1d.bias"}),)),
    ),
    **dict.fromkeys(
        ("qwen35", "qwen35moe", "qwen3next"),
        (
            "ssm_conv1d.weight",
            (frozenset({"attn_qkv.weight", "attn_gate.weight"}), frozenset({"ssm_in.weight"})),
        ),
    ),
    "t5encoder": ("token_embd.weight", (frozenset({"enc.blk.0.attn_rel_b.weight"}),)),
    **dict.fromkeys(
        ("phi3", "pockettts"),
        (
            "attn_output.weight",
            (
                frozenset({"attn_qkv.weight"}),
                frozenset({"attn_q.weight", "attn_k.weight", "attn_v.weight"}),
            ),
        ),
    ),
}
FIRST_NORM = "blk.0.attn_norm.weight"
# Architectures that are one of a kind.
LOOPED, STACKED = "nanbeige", "hrm_text"  # which compute layers several times
FIXED_BASE = "deepseek2-ocr"  # whose rotation has one base alone
PROJECTED = "gemma-embedding"  # whose vectors may be projected, from and to the model's width
STACKS = ("layers_per_stack", "h_cycles", "l_cycles")
MOST_LAYERS, BASE = 512, 10_000
UNSPECIFIED = 2**32 - 1  # a pooling: the same as none
SCALINGS = frozenset({"none", "linear", "yarn", "longrope"})  # llama_rope_scaling_type
ALIGNMENT = 32  # TENSOR_ALIGNMENT (ggml-impl.h)

# By `tokenizer.ggml.model`: the tokens around every text, and what they are unless the file names
# others (llama-vocab.cpp, `load`). None: there is none.
FRAMES: Mapping[str, Mapping[str, int | None]] = {
    "bert": {"bos": 101, "seperator": 102},  # llama.cpp's spelling
    "llama": {"bos": 1, "eos": 2},
    "gpt2": {"bos": 11, "eos": 11},
    "gemma4": {"bos": None, "eos": None},
    "plamo2": {"bos": 1, "eos": 2},
    "t5": {"bos": None, "eos": 1},
}
LONGEST_WORD = 4096  # bytes; a tree of words is left step by step, each on the stack
ALWAYS = "bert"  # whose texts are framed whatever the file says
WITHOUT_BEGIN = frozenset({"chatglm-bpe", "glm4", "glm5"})  # `tokenizer.ggml.pre`: gpt2, but no bos
BYTE = re.compile(rb"<0x[0-9A-Fa-f]{2}>")
# What texts are made of, as bytes: UTF-8.
IN_TEXTS = (*range(0x80), *range(0x80, 0xC0), *range(0xC2, 0xF5))


Faults: TypeAlias = Iterator[str]
Guard: TypeAlias = Callable[[GgufModel], Faults]


def check(model: GgufModel) -> None:
    """Raises BrokenFile with the first thing that would end the process."""
    for guard in GUARDS:
        if fault := next(guard(model), None):
            raise BrokenFile(fault)


def _types(model: GgufModel) -> Faults:
    for tensor in model.tensors:
        kind = KINDS.get(tensor.kind, f"type {tensor.kind}")
        if tensor.kind != F32 and AT_32_BITS.search(tensor.name):
            yield f"its tensor {tensor.name} is {kind}; llama.cpp computes with it as F32 alone"
        elif tensor.kind in NO_WEIGHTS and not INDICES.search(tensor.name):
            yield f"its tensor {tensor.name} is {kind}, in which nothing can be computed"


def _empty(model: GgufModel) -> Faults:
    for tensor in model.tensors:
        if len(tensor.shape) > 1 and 0 in tensor.shape:
            yield f"its tensor {tensor.name} has no values"


def _lacking(model: GgufModel) -> Faults:
    if (rule := NEEDED.get(model.architecture)) is None:
        return
    having, ways = rule
    names = {tensor.name for tensor in model.tensors}
    for name in names:
        layer = name.removesuffix(having)
        if layer != name and not any(all(layer + one in names for one in way) for way in ways):
            needed = " and ".join(sorted(ways[0]))
            yield f"its {layer.rstrip('.') or 'file'} has {having} and lacks {needed}"


def _alone(model: GgufModel) -> Faults:
    if model.architecture in NOT_ALONE:
        yield f"models of its architecture ({model.architecture}) can't write by themselves"


def _divisors(model: GgufModel) -> Faults:
    for key, architectures in DIVISORS.items():
        if model.architecture in architectures and model.value(key) == 0:
            yield f"its {key} is 0"


def _bounds(model: GgufModel) -> Faults:
    for key, (low, high) in NUMBERS.items():
        for one in model.numbers(key):
            unspecified = key == "pooling_type" and one == UNSPECIFIED
            if not (low <= one <= high or unspecified):
                yield f"its {key} is {one:,}; llama.cpp takes {low:g} to {high:g}"


def _predicting(model: GgufModel) -> Faults:
    layers, predicting = model.number("block_count"), model.number("nextn_predict_layers")
    if predicting > layers or (predicting == layers and model.architecture in WITH_TRUNK):
        yield f"{predicting:,} of its {layers:,} layers are said to predict (nextn_predict_layers)"


def _drafts(model: GgufModel) -> Faults:
    names = {tensor.name for tensor in model.tensors}
    drafts = model.architecture in MAY_BE_DRAFTS and model.number("nextn_predict_layers")
    if drafts and FIRST_NORM not in names:
        yield f"it lacks {FIRST_NORM}: it may have the layers alone that predict for a whole model"


def _hybrid(model: GgufModel) -> Faults:
    if model.architecture not in HYBRID:
        return
    found = dimensions.kinds(model)
    if not (found.attending and found.recurrent):
        yield (
            f"{len(found.attending)} of its layers attend and {len(found.recurrent)} are "
            f"recurrent; a {model.architecture} model has layers of both kinds"
        )


def _experts(model: GgufModel) -> Faults:
    count, used = model.number("expert_count"), model.number("expert_used_count")
    own = model.architecture in OWN_EXPERTS
    groups, chosen = model.number("expert_group_count"), model.number("expert_group_used_count")
    if used > count or (not used and (count or model.architecture in WITH_EXPERTS)):
        yield f"it has {count:,} experts and uses {used:,} (expert_used_count)"
    if not own and len(set(model.numbers("expert_used_count"))) > 1:
        yield "its expert_used_count differs between layers"
    gating = model.value("expert_gating_func")
    if count and (gating == 0 or (gating is None and model.architecture in GATED)):
        yield "it doesn't say how its experts are chosen (expert_gating_func)"
    if groups and groups >= count:
        yield f"its {count:,} experts are in {groups:,} groups (expert_group_count)"
    if groups > 1 and (count % groups or not 0 < chosen < groups):
        yield f"{chosen:,} of {groups:,} groups of its {count:,} experts are used"


def _scaling(model: GgufModel) -> Faults:
    scaling = model.value("rope.scaling.type")
    if isinstance(scaling, str) and scaling not in SCALINGS:
        yield f"its rope.scaling.type is {scaling[:40]!r}; known are {', '.join(sorted(SCALINGS))}"


def _repeated(model: GgufModel) -> Faults:
    """Layers that are computed several times, each time with a part of the cache; or that pictures
    enter.
    """
    count, loops = model.number("block_count"), model.number("num_loops")
    if model.architecture == LOOPED and count * loops > MOST_LAYERS:
        yield f"its {count:,} layers are computed {loops:,} times; together {MOST_LAYERS} can be"
    if (deep := model.number("n_deepstack_layers")) and deep >= count:  # the last is no such layer
        yield f"pictures are said to enter {deep:,} of its {count:,} layers (n_deepstack_layers)"
    stack, high, low = (model.number(f"hrm.{one}") for one in STACKS)
    if model.architecture == STACKED and count != stack * high * (low + 1):
        yield f"it has {count:,} layers for {high:,} cycles of {low:,} + 1 stacks of {stack:,}"


def _temperature(model: GgufModel) -> Faults:
    scale, length = (model.value(f"attention.temperature_{one}") for one in ("scale", "length"))
    if model.architecture in COMPRESSED and scale and not length:
        yield "it has an attention.temperature_scale and no attention.temperature_length"


def _base(model: GgufModel) -> Faults:
    if model.architecture == FIXED_BASE and model.value("rope.freq_base") not in (None, BASE):
        yield f"its rope.freq_base is {model.value('rope.freq_base')}; its graph has {BASE:,}"


def _projected(model: GgufModel) -> Faults:
    width = model.number("embedding_length")
    for key in ("dense_2_feat_in", "dense_3_feat_out"):
        if model.architecture == PROJECTED and model.number(key) not in (0, width):
            yield f"its {key} is {model.number(key):,}; its layers have {width:,} values"


def _chunks(model: GgufModel) -> Faults:
    if model.architecture == "llama4" and model.value("attention.sliding_window") == 0:
        yield "its attention.sliding_window is 0, and then its scores have no scale"


def _states(model: GgufModel) -> Faults:
    inner, heads = model.number("ssm.inner_size"), model.number("ssm.time_step_rank")
    groups, width = model.number("ssm.group_count"), model.number("embedding_length")
    if model.architecture in TWICE_AS_WIDE and inner != 2 * width:
        yield f"its ssm.inner_size is {inner:,}, which is not twice the width of {width:,}"
    if model.architecture == UNGROUPED and groups:
        yield f"its ssm.group_count is {groups:,}; {UNGROUPED} has no groups"
    state = model.number("ssm.state_size")
    if model.architecture in DELTA and heads * state != inner:
        yield f"its ssm.inner_size is {inner:,}; {heads:,} heads have {state:,} values each"
    grouped = model.architecture in IN_GROUPS | DELTA
    in_heads = grouped or model.architecture == UNGROUPED
    if in_heads and (not heads or inner % heads):
        yield f"its {inner:,} values of a state (ssm.inner_size) are in {heads:,} heads"
    if grouped and (not groups or inner % groups or heads % groups):
        yield f"its {heads:,} heads of a state are in {groups:,} groups (ssm.group_count)"


def _direction(model: GgufModel) -> Faults:
    if model.value("attention.causal") is False and encoders.task(model.header) == "generate":
        yield "it reads in both directions (attention.causal), so that it can't write step by step"


def _vectors(model: GgufModel) -> Faults:
    width, out = model.number("embedding_length"), model.number("embedding_length_out")
    if out > width:
        yield f"its vectors are said to have {out:,} values, and its layers have {width:,}"


def _alignment(model: GgufModel) -> Faults:
    alignment = model.header.metadata.get("general.alignment")
    if isinstance(alignment, int) and alignment % ALIGNMENT:
        yield f"its general.alignment is {alignment:,}, which is no multiple of {ALIGNMENT}"


def _vocabulary(model: GgufModel) -> Faults:
    header, words = model.header, model.header.words
    kind = header.text("tokenizer.ggml.model")
    if kind in ("none", "no_vocab"):
        yield "it has no vocabulary (tokenizer.ggml.model)"
    if words is None:
        return
    if words.twice:
        yield f"two of its tokens are spelled alike ({words.twice[:40]!r})"
    if words.longest > LONGEST_WORD:
        yield f"one of its tokens has {words.longest:,} bytes; believed are {LONGEST_WORD:,}"
    yield from _bytes(kind, words)
    yield from _frame(kind, header, words)


def _bytes(kind: str, words: GgufWords) -> Faults:
    if kind == "bert" and words.byte_tokens:
        yield "tokenizer.ggml.token_type has tokens of single bytes, which WordPiece doesn't know"
    if kind in ("llama", "t5", "gemma4") and not all(map(BYTE.match, words.byte_tokens)):
        yield "a token for a single byte is not spelled as one (<0x00>)"
    if kind == "llama" and (missing := [one for one in IN_TEXTS if one not in words.bytes_known]):
        yield f"its vocabulary lacks {len(missing)} of the bytes that texts are made of (<0x00>)"


def _frame(kind: str, header: Header, words: GgufWords) -> Faults:
    for name, default in FRAMES.get(kind, {}).items():
        added = header.metadata.get(f"tokenizer.ggml.add_{name}_token")
        if added is not True and kind != ALWAYS:
            continue
        none = name == "bos" and header.text("tokenizer.ggml.pre") in WITHOUT_BEGIN
        own = header.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(own, int) and 0 <= own < words.count:
            continue
        if none or default is None or default >= words.count:
            yield f"tokenizer.ggml.{name}_token_id, which stands at every text, names no token"


GUARDS: tuple[Guard, ...] = (
    _alone,
    _types,
    _lacking,
    _bounds,
    _divisors,
    _predicting,
    _drafts,
    _experts,
    _empty,
    _scaling,
    attention.shares,
    attention.evenly,
    attention.alike,
    attention.compressed,
    attention.rotation,
    attention.sections,
    attention.window,
    attention.reused,
    _repeated,
    _temperature,
    _base,
    _projected,
    _chunks,
    _states,
    _hybrid,
    _direction,
    _vectors,
    _alignment,
    _vocabulary,
)
