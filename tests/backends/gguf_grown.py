"""GGUF files of any architecture, grown from a few numbers: llama.cpp itself reports which keys and
tensors a file lacks and what shapes it expects, until it loads. A tool of tests.

A file whose numbers are absurd may end the process that grows it, so each is grown in a child.
"""

import faulthandler
import math
import os
import re
import signal
from pathlib import Path
from typing import Any, TypeAlias

import gguf
import numpy

from backends.engines.llamacpp import load_log
from backends.engines.llamacpp.library import api
from tests.backends import gguf_raw
from tests.backends.engines.llamacpp import cache_kinds
from tests.backends.gguf_raw import ARRAY, BOOL, FLOAT32, INT32, UINT32, Entry, RawFile, RawTensor
from training.gguf_file import finish

WIDTH, HEADS, HEAD, LAYERS = 64, 4, 16, 4
STEPS = 400  # of growth
MOST = 1 << 22  # values of a tensor
SECONDS = 30  # of the processor
FIRST = ("context_length", "embedding_length", "block_count", "feed_forward_length")
NUMBERS: dict[str, int | float] = {
    "context_length": 512, "embedding_length": WIDTH, "block_count": LAYERS,
    "feed_forward_length": 96, "attention.head_count": HEADS, "attention.sliding_window": 16,
    "attention.layer_norm_epsilon": 1e-5, "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.key_length_swa": HEAD, "attention.value_length_swa": HEAD,
    "attention.q_lora_rank": 24, "attention.kv_lora_rank": 32, "expert_count": 4,
    "expert_used_count": 2, "expert_feed_forward_length": 32, "expert_shared_count": 1,
    "expert_weights_scale": 1.0, "leading_dense_block_count": 1, "ssm.conv_kernel": 4,
    "ssm.inner_size": 64, "ssm.state_size": 16, "ssm.time_step_rank": 4, "ssm.group_count": 2,
    "shortconv.l_cache": 3, "embedding_length_per_layer_input": 16, "logit_scale": 1.0,
    "attention.scale": 0.25, "residual_scale": 1.0, "embedding_scale": 1.0, "vocab_size": 257,
    "attention.shared_kv_layers": 0, "moe_every_n_layers": 2, "interleave_moe_layer_step": 1,
    "rope.dimension_count": HEAD,
}  # fmt: skip
EXPERTS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32}
SOME_ATTEND = {"attention.head_count_kv": [0, 2, 0, 2]}
COMPRESSED = EXPERTS | {
    "attention.kv_lora_rank": 32, "attention.head_count_kv": 1, "attention.key_length": 40,
    "attention.value_length": 32, "attention.key_length_mla": 24, "attention.value_length_mla": 16,
    "rope.dimension_count": 8,
}  # fmt: skip
LATENT = {"attention.key_length": 24, "attention.value_length": 16, "rope.dimension_count": 8}
SLIDING = {"attention.sliding_window_pattern": [True, False, True, False]}
# What else an architecture needs from the beginning.
FURTHER: dict[str, dict[str, Any]] = {
    "deepseek2": COMPRESSED,
    "gemma4": SLIDING,
    "glm4moe": EXPERTS,
    "gpt-oss": EXPERTS,
    "granitehybrid": SOME_ATTEND | {"ssm.inner_size": 2 * WIDTH},
    "lfm2": SOME_ATTEND,
    "llama4": EXPERTS,
    "minicpm3": LATENT,
    "nemotron_h": SOME_ATTEND | {"feed_forward_length": [0, 0, 96, 0]},
    "plamo2": SOME_ATTEND | {"ssm.group_count": 0},
    "plm": LATENT,
    "qwen35": {"rope.dimension_sections": [2, 3, 3, 0]},
    "qwen3moe": EXPERTS,
    "step35": EXPERTS | SLIDING,
}
# Tensors that the loader lets be missing and the graph doesn't.
NEEDED: dict[str, tuple[str, ...]] = {
    "deepseek2": ("output.weight",),  # by ik_llama.cpp
    "falcon-h1": tuple(f"blk.{layer}.ssm_conv1d.bias" for layer in range(LAYERS)),
    "granitehybrid": ("blk.0.ssm_conv1d.bias", "blk.2.ssm_conv1d.bias"),
    "nemotron_h": ("blk.0.ssm_conv1d.bias",),
    "phi3": tuple(f"blk.{layer}.attn_qkv.weight" for layer in range(LAYERS)),
    "qwen35": tuple(
        f"blk.{layer}.attn_{part}.weight" for layer in range(LAYERS - 1) for part in ("qkv", "gate")
    ),
}
_SHAPE = re.compile(r"tensor '(.+?)' has wrong shape; expected ([\d, -]+), got")
_MISSING = re.compile(r"(?:missing tensor|check_tensor_dims: tensor) '(.+?)'(?: not found|;|$)")
_KEY = re.compile(r"key not found in model: ([^\s;]+)")
_DRAWN = (numpy.random.default_rng(0).standard_normal(1 << 16) * 0.1).astype("f4").tobytes()

Numbers: TypeAlias = dict[str, Any]


def write(architecture: str, path: Path, numbers: Numbers | None = None) -> Path:
    """`numbers`: of the architecture, in place of the usual ones; None: without that key. What
    can't be grown is left at `path` as far as it got.
    """
    writer = gguf.GGUFWriter(path, architecture)
    cache_kinds.words(writer)
    finish(writer)
    file = gguf_raw.read(path)
    usual = {key: NUMBERS[key] for key in (*FIRST, "attention.head_count")}
    own = usual | FURTHER.get(architecture, {}) | (numbers or {})
    for key, value in own.items():
        if value is not None:
            file = _put(file, f"{architecture}.{key}", value)
    needed = NEEDED.get(architecture, ())
    if own.get("nextn_predict_layers"):  # else llama.cpp takes it for a file of those layers alone
        needed += ("blk.0.attn_norm.weight",)
    for name in needed:
        file = file.added(_tensor(name, (1,)))
    gguf_raw.write(file, path)
    return grow(file, path)


def grow(file: RawFile, path: Path) -> Path:
    """In a child of this process."""
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.environ["GGML_NO_BACKTRACE"] = "1"
        faulthandler.disable()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            _grow(file, path)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return path


def _grow(file: RawFile, path: Path) -> None:
    for _ in range(STEPS):
        gguf_raw.write(file, path)
        if (changed := _mended(file, _complaint(path))) is None:
            return
        file = changed


def _complaint(path: Path) -> str:
    """Why llama.cpp doesn't load it; nothing: it does."""
    load_log.listen()
    if model := api.llama_model_load_from_file(
        str(path).encode(), api.llama_model_default_params()
    ):
        api.llama_model_free(model)
        return ""
    return load_log.last_errors()


def _mended(file: RawFile, complaint: str) -> RawFile | None:
    if found := _SHAPE.search(complaint):
        shape = tuple(map(int, found[2].strip(", ").split(",")))
        if math.prod(shape) > MOST or min(shape) < 0:
            return None
        while len(shape) > 1 and shape[-1] == 1:
            shape = shape[:-1]
        left = [one for one in file.tensors if one.name != found[1]]
        return RawFile(file.entries, [*left, _tensor(found[1], shape)])
    if found := _MISSING.search(complaint):
        there = any(one.name == found[1] for one in file.tensors)
        return None if there else file.added(_tensor(found[1], (1,)))
    if found := _KEY.search(complaint):
        value = NUMBERS.get(found[1].partition(".")[2])
        return None if value is None else _put(file, found[1], value)
    return None


def _put(file: RawFile, key: str, value: Any) -> RawFile:
    entry = _entry(value)
    return RawFile({**file.entries, key: entry}, file.tensors)


def _entry(value: Any) -> Entry:
    if isinstance(value, list):
        return Entry(ARRAY, (BOOL if isinstance(value[0], bool) else INT32, value))
    if isinstance(value, bool):
        return Entry(BOOL, value)
    return Entry(FLOAT32 if isinstance(value, float) else UINT32, value)


def _tensor(name: str, shape: tuple[int, ...]) -> RawTensor:
    size = 4 * math.prod(shape)
    return RawTensor(name, 0, shape, (_DRAWN * (size // len(_DRAWN) + 1))[:size])
