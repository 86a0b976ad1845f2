"""Checks a GGUF header for what would end the process in llama.cpp instead of raising. No engine.

llama.cpp compares every tensor's shape with the numbers of the header and reports what is wrong.
What it takes for granted instead stands here: what it asserts while it reads, while it builds a
graph or in the middle of one, and C++ exceptions that are not caught. Found by changing every value
and tensor of a few files, one at a time (`tests/backends/llamacpp/test_soundness.py`).
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec

from backends.llamacpp import encoders
from backends.llamacpp.gguf import BrokenFile, GgufWords, Header, Tensor, Value

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
    "pooling_type": (0, 4),  # llama_pooling_type
    "attention.layer_norm_epsilon": (0, math.inf),
    "attention.layer_norm_rms_epsilon": (0, math.inf),
    "attention.group_norm_epsilon": (0, math.inf),
}
# Architectures whose graphs assert it: that all of a head is turned (`n_embd_head == n_rot`), that
# there are experts, and that the heads share the width evenly (or an array is reshaped to nothing).
ALL_TURNED = frozenset(
    {
        *("apertus", "arcee", "arctic", "baichuan", "chameleon", "codeshell", "cogvlm", "dbrx"),
        *("cohere2moe", "deci", "deepseek", "dots1", "dream", "ernie4_5", "ernie4_5-moe", "exaone"),
        *("exaone-moe", "exaone4", "falcon", "granite", "granite_swa", "graniteswitch", "grok"),
        *("grovemoe", "hunyuan-moe", "hunyuan_vl", "hy_v3", "internlm2", "jais2", "llada", "llama"),
        *("llada-moe", "llama4", "maincoder", "mellum", "mistral3", "olmo", "olmo2", "olmoe"),
        *("orion", "paddleocr", "pangu-embedded", "plamo", "pockettts", "qwen2", "qwen2moe"),
        *("qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "rnd1", "seed_oss", "smollm3"),
        *("smallthinker", "starcoder2", "talkie", "xverse"),
    }
)
WITH_EXPERTS = frozenset({"bailingmoe2", "glm4moe", "grovemoe", "llada-moe", "smallthinker"})
SHARED_EVENLY = frozenset(
    {"bert", "jina-bert-v2", "jina-bert-v3", "nomic-bert", "nomic-bert-moe", "lfm2", "lfm2moe"}
)
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
ALWAYS = "bert"  # whose texts are framed whatever the file says
WITHOUT_BEGIN = frozenset({"chatglm-bpe", "glm4", "glm5"})  # `tokenizer.ggml.pre`: gpt2, but no bos
BYTE = re.compile(rb"<0x[0-9A-Fa-f]{2}>")
# What texts are made of, as bytes: UTF-8.
IN_TEXTS = (*range(0x80), *range(0x80, 0xC0), *range(0xC2, 0xF5))


class GgufModel(msgspec.Struct, frozen=True):
    """All of a model's header. `tensors`: those of all its files; `encodes`: its architecture is
    one that writes no text.
    """

    header: Header
    tensors: Sequence[Tensor]
    encodes: bool

    @property
    def architecture(self) -> str:
        return self.header.text("general.architecture")

    def value(self, key: str) -> Value:
        """Of the model's own architecture."""
        return self.header.metadata.get(f"{self.architecture}.{key}")

    def numbers(self, key: str) -> tuple[float, ...]:
        found = self.value(key)
        several = found if isinstance(found, tuple) else (found,)
        return tuple(one for one in several if isinstance(one, int | float))

    def number(self, key: str) -> int:
        """The largest; 0: it isn't there."""
        return int(max((one for one in self.numbers(key) if math.isfinite(one)), default=0))


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


def _bounds(model: GgufModel) -> Faults:
    for key, (low, high) in NUMBERS.items():
        for one in model.numbers(key):
            unspecified = key == "pooling_type" and one == UNSPECIFIED
            if not (low <= one <= high or unspecified):
                yield f"its {key} is {one:,}; llama.cpp takes {low:g} to {high:g}"


def _predicting(model: GgufModel) -> Faults:
    layers, predicting = model.number("block_count"), model.number("nextn_predict_layers")
    if predicting > layers:
        yield f"{predicting:,} of its {layers:,} layers are said to predict (nextn_predict_layers)"


def _experts(model: GgufModel) -> Faults:
    count, used = model.number("expert_count"), model.number("expert_used_count")
    groups, chosen = model.number("expert_group_count"), model.number("expert_group_used_count")
    if used > count or (not used and (count or model.architecture in WITH_EXPERTS)):
        yield f"it has {count:,} experts and uses {used:,} (expert_used_count)"
    if groups and groups >= count:
        yield f"its {count:,} experts are in {groups:,} groups (expert_group_count)"
    if groups > 1 and (count % groups or not 0 < chosen < groups):
        yield f"{chosen:,} of {groups:,} groups of its {count:,} experts are used"


def _rotation(model: GgufModel) -> Faults:
    scaling = model.value("rope.scaling.type")
    if isinstance(scaling, str) and scaling not in SCALINGS:
        yield f"its rope.scaling.type is {scaling[:40]!r}; known are {', '.join(sorted(SCALINGS))}"
    whole, length = model.architecture in ALL_TURNED, _head_length(model)
    for turned in model.numbers("rope.dimension_count"):
        odd = not turned or turned % 2 or (length and turned > length)
        if odd or (whole and length and turned != length):
            yield f"its rope.dimension_count is {turned:,} of {length:,} values of a head"


def _head_length(model: GgufModel) -> int:
    """Values of a head's keys; 0: the header doesn't say."""
    if (length := model.number("attention.key_length")) or not model.encodes:
        return length
    return model.number("embedding_length") // max(model.number("attention.head_count"), 1)


def _window(model: GgufModel) -> Faults:
    pattern = model.value("attention.sliding_window_pattern")
    if pattern == 1 and not isinstance(pattern, bool):
        yield "its sliding_window_pattern is 1, so that no layer has the window it speaks of"


def _direction(model: GgufModel) -> Faults:
    if model.value("attention.causal") is False and encoders.task(model.header) == "generate":
        yield "it reads in both directions (attention.causal), so that it can't write step by step"


def _vectors(model: GgufModel) -> Faults:
    width, out = model.number("embedding_length"), model.number("embedding_length_out")
    if out > width:
        yield f"its vectors are said to have {out:,} values, and its layers have {width:,}"
    heads = max(model.number("attention.head_count"), 1)
    even = model.architecture in SHARED_EVENLY
    for key in model.numbers("attention.key_length") if even else ():
        if key * heads != width:
            yield f"its attention.key_length is {key:,}; {heads:,} heads share {width:,} values"


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
    _types,
    _bounds,
    _predicting,
    _experts,
    _rotation,
    _window,
    _direction,
    _vectors,
    _alignment,
    _vocabulary,
)
