"""Recurrent layers by a model's `config.json`: which they are, and the state that one keeps.

Families name alike things differently; the configuration classes of transformers are the source.
Imports no engine.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from backends.errors import LoadFailed

Fields = Mapping[str, Any]

KINDS = ("layer_types", "layers_block_type")
PATTERN = "hybrid_override_pattern"  # Nemotron-H: M is a Mamba's, * attention, - and E neither
INNER = ("mamba_d_ssm", "intermediate_size")  # how wide a Mamba is, where it isn't by its heads
HEAD_COUNTS = ("mamba_num_heads", "mamba_n_heads", "n_mamba_heads")
HEAD_WIDTHS = ("mamba_head_dim", "mamba_d_head", "mamba_headdim")
EXPANDS = ("mamba_expand", "expand")
STATES = ("mamba_d_state", "ssm_state_size", "state_size")
GROUPS = ("mamba_n_groups", "mamba_ngroups", "n_groups")
KERNELS = ("mamba_d_conv", "linear_conv_kernel_dim", "conv_kernel", "conv_L_cache")


def counts(text: Fields, layers: int, *, heads: bool) -> tuple[int, int]:
    """How many of the layers keep keys and values, and how many a state; one may keep both.
    `heads`: whether the configuration names any of attention.
    """
    if kinds := next((text[name] for name in KINDS if text.get(name)), None):
        return _of_kinds(kinds)
    if pattern := text.get(PATTERN):
        return str(pattern).count("*"), str(pattern).count("M")
    attending = _interspersed(text, layers)
    if attending is not None:
        return attending, layers - attending
    if _state(text) and heads:  # Falcon-H1's layers keep both
        return layers, layers
    return (layers, 0) if heads else (0, layers)


def _of_kinds(kinds: Sequence[str]) -> tuple[int, int]:
    both = sum(kind.startswith("hybrid") for kind in kinds)
    recurring = sum(kind in ("linear_attention", "mamba", "conv", "recurrent") for kind in kinds)
    attending = sum("attention" in kind and "linear" not in kind for kind in kinds)
    return attending + both, recurring + both


def _interspersed(text: Fields, layers: int) -> int | None:
    """How many attend, where they are numbered or stand at regular distances; None: neither."""
    for name in ("attn_layer_indices", "full_attn_idxs"):
        if isinstance(numbered := text.get(name), list):
            return len(numbered)
    if period := number(text, ("full_attention_interval",), 0):
        return layers // period
    if period := number(text, ("attn_layer_period",), 0):
        return len(range(number(text, ("attn_layer_offset",), 0), layers, period))
    if number(text, ("linear_num_value_heads",), 0):
        return layers // 4  # as Qwen3-Next and Qwen3.5 have them where nothing is said
    return None


def state_bytes(text: Fields) -> int:
    """What one sequence keeps in one recurrent layer, at 32 bits: the state, and the last inputs of
    the convolution before it.
    """
    kernel = number(text, KERNELS, 4)
    if heads := number(text, ("linear_num_value_heads",), 0):  # a gated delta rule
        key, value = (number(text, (f"linear_{one}_head_dim",), 0) for one in ("key", "value"))
        keys = number(text, ("linear_num_key_heads",), 0) * key
        return 4 * (heads * key * value + (2 * keys + heads * value) * kernel)
    if "conv_L_cache" in text or "block_multiple_of" in text:  # LFM2: a convolution alone
        return 4 * number(text, ("hidden_size",), 0) * number(text, ("conv_L_cache",), 3)
    inner, state = _inner(text), _state(text)
    seen = inner + 2 * number(text, GROUPS, 0) * state
    return 4 * (inner * state + seen * kernel) if state else 0


def scan_bytes(text: Fields) -> int:
    """What one token of a pass holds while a state space is scanned without kernels of its own, at
    32 bits: three numbers for each of the state (`mamba_selective_scan`), and a score for each that
    goes in (measured).
    """
    inner, state = _inner(text), _state(text)
    return 4 * (3 * inner * state + 20 * inner) if state else 0


def _state(text: Fields) -> int:
    """Values of the state for each of what goes in; 0: the model has no state space."""
    return number(text, STATES, 0)


def _inner(text: Fields) -> int:
    """How wide a state space is."""
    width = text.get(next((name for name in HEAD_WIDTHS if text.get(name)), ""))
    if isinstance(width, int):
        return number(text, HEAD_COUNTS, 0) * width
    expanded = number(text, EXPANDS, 2) * number(text, ("hidden_size", "d_model"), 0)
    named = INNER[:1] if "mamba_d_state" in text else INNER  # else that of the feed-forward
    return number(text, named, expanded)


def number(config: Fields, names: Sequence[str], default: int) -> int:
    """Of the first of the fields that is there and not 0. Raises LoadFailed for what is no
    number.
    """
    for name in names:
        if value := config.get(name):
            try:
                return int(value)
            except (ValueError, TypeError, OverflowError) as error:
                reason = f"{name} is {str(value)[:40]}, which is not a number"
                raise LoadFailed(f"config.json: {reason}") from error
    return default
