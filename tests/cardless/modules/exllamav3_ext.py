"""Stands where exllamav3 has its compiled extension: what an unquantized model needs, in torch. All
else raises by its name.
"""

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from tests.cardless.modules.hadamard import TURN

FROM_BFLOAT16 = 1  # a flag of a load
HALVES = 2  # RopeStyle.NEOX: pairs of a number and the one half of the width behind it


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"exllamav3_ext.{name} needs a card")

    return missing


# -- files -----------------------------------------------------------------------------------------


def stloader_open_file(filename: str) -> str:
    return filename


def stloader_close_file(handle: str) -> None: ...


def stloader_deferred_batch(handles: Sequence[str], loads: torch.Tensor, chunk: int) -> None:
    """Each row: which file, where in it, how many bytes, to which address, its room, and more."""
    for file, offset, size, address, room, flags, _ in loads.tolist():
        with Path(handles[file]).open("rb") as opened:
            opened.seek(offset)
            read = torch.frombuffer(bytearray(opened.read(size)), dtype=torch.uint8)
        if flags & FROM_BFLOAT16:
            read = read.view(torch.bfloat16).half().view(torch.uint8)
        assert read.nbytes == room
        ctypes.memmove(address, read.data_ptr(), room)


def stloader_read(handle: str, offset: int, size: int, target: torch.Tensor) -> None:
    with Path(handle).open("rb") as opened:
        opened.seek(offset)
        read = torch.frombuffer(bytearray(opened.read(size)), dtype=torch.uint8)
    target.view(-1).view(torch.uint8).copy_(read)


# -- layers ----------------------------------------------------------------------------------------


class BC_LinearFP16:  # noqa: N801 - its name
    """A layer for the fused blocks; there are none of these without quantization."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None: ...


def hgemm(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    c.copy_(a.float() @ b.float())


def rms_norm(
    x: torch.Tensor,
    w: torch.Tensor | None,
    y: torch.Tensor,
    epsilon: float,
    constant_bias: float = 0.0,
    constant_scale: float = 1.0,
    span_heads: bool = False,
    add_residual: bool = False,
    groups: int = 1,
) -> None:
    assert not span_heads
    assert groups == 1
    found = _normed(x, w, epsilon, constant_bias, constant_scale)
    y.copy_(y.float() + found if add_residual else found)


def rms_norm_res_in(
    x: torch.Tensor,
    w: torch.Tensor | None,
    y: torch.Tensor,
    residual: torch.Tensor,
    epsilon: float,
    constant_bias: float,
    constant_scale: float,
) -> None:
    """Of the sum of both, which `residual` becomes."""
    residual.copy_(residual.float() + x.float())
    y.copy_(_normed(residual, w, epsilon, constant_bias, constant_scale))


def _normed(
    x: torch.Tensor, w: torch.Tensor | None, epsilon: float, bias: float, scale: float
) -> torch.Tensor:
    wide = x.float()
    found = wide * (wide.pow(2).mean(-1, keepdim=True) + epsilon).rsqrt() * scale
    return found if w is None else found * (w.float() + bias)


def _gated(
    bend: Callable[[torch.Tensor], torch.Tensor],
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], None]:
    def multiply(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor, limit: float) -> None:
        assert not limit
        out.copy_(bend(gate.float()) * up.float())

    return multiply


silu_mul = _gated(functional.silu)
gelu_mul = _gated(lambda x: functional.gelu(x, approximate="tanh"))
relu2_mul = _gated(lambda x: functional.relu(x) ** 2)


def softcap(x: torch.Tensor, y: torch.Tensor, scale: float) -> None:
    y.copy_((x.float() / scale).tanh() * scale)


def deinterleave_qg(qg: torch.Tensor, q: torch.Tensor, gates: torch.Tensor, head_dim: int) -> None:
    """Queries and their gates, which take turns in `qg` head by head."""
    both = qg.unflatten(-1, (-1, 2, head_dim))
    q.copy_(both[..., 0, :].reshape(q.shape))
    gates.copy_(both[..., 1, :].reshape(gates.shape))


def mul_sigmoid_(x: torch.Tensor, y: torch.Tensor) -> None:
    x.copy_(x.float() * y.float().sigmoid().view(x.shape))


def rope(
    q: torch.Tensor,
    out_q: torch.Tensor,
    k: torch.Tensor | None,
    out_k: torch.Tensor | None,
    inv_freq: torch.Tensor,
    position: int,
    positions: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    rope_mode: int,
    attn_factor: float,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    norm_eps: float,
    norm_constant_bias: float,
    llama_4_scaling_beta: float,
    llama_4_scaling_original: int,
    rotate_dims: int,
    rotate_offset: int,
) -> None:
    """Turn queries and keys, (rows, tokens, heads, width), after their norms if they have any."""
    assert not llama_4_scaling_beta
    assert not rotate_offset
    places = torch.arange(q.shape[1])[None] + position
    if position_ids is not None:
        places = position_ids
    elif positions is not None:
        places = positions[:, None] + torch.arange(q.shape[1])
    angles = places[..., None].float() * inv_freq.float()
    for x, out, norm in ((q, out_q, q_norm), (k, out_k, k_norm)):
        if x is not None and out is not None:
            wide = x.float()
            if norm is not None:
                wide = _normed(x, norm, norm_eps, norm_constant_bias, 1.0)
            out.copy_(_turned(wide, angles[:, :, None], attn_factor, halves=rope_mode == HALVES))


def _turned(
    wide: torch.Tensor, angles: torch.Tensor, factor: float, *, halves: bool
) -> torch.Tensor:
    """`angles`: one for each pair of numbers; what is behind them stays."""
    count = 2 * angles.shape[-1]
    part, rest = wide[..., :count], wide[..., count:]
    sine, cosine = angles.sin() * factor, angles.cos() * factor
    one, other = part.chunk(2, -1) if halves else (part[..., ::2], part[..., 1::2])
    turned = (one * cosine - other * sine, other * cosine + one * sine)
    joined = torch.cat(turned, -1) if halves else torch.stack(turned, -1).flatten(-2)
    return torch.cat((joined, rest), -1)


# -- the generator ---------------------------------------------------------------------------------


def generator_stage_decode(
    arena: torch.Tensor,
    width: int,
    block_indices: Sequence[torch.Tensor],
    kv_positions: Sequence[int],
    rope_offsets: Sequence[int],
    batch_ids: torch.Tensor | None,
    sequences: Sequence[torch.Tensor],
    pages: Sequence[torch.Tensor],
    page_offsets: Sequence[int],
) -> None:
    """Into `arena`: each row's pages, `width` of them, then all lengths, then all positions. And
    the next token of each sequence into `batch_ids` and its page.
    """
    rows = len(block_indices)
    table = arena[: rows * width].view(rows, width).zero_()
    for row, (index, at) in enumerate(zip(block_indices, kv_positions, strict=True)):
        table[row, : min(index.numel(), width)] = index.view(-1)[:width]
        arena[rows * width + row] = at
        if rope_offsets:
            arena[rows * (width + 1) + row] = at + rope_offsets[row]
    for row, (sequence, page) in enumerate(zip(sequences, pages, strict=True)):
        assert batch_ids is not None
        token = sequence.view(-1)[kv_positions[row]]
        batch_ids[row, 0] = token
        page.view(-1)[page_offsets[row]] = token


def cache_rotate(cache: torch.Tensor, order: torch.Tensor, temp: torch.Tensor) -> None:
    """Move pages, (pages, …): each of `order` becomes the next, the last one the first."""
    cache[order.long()] = cache[order.roll(-1).long()]


def paged_kv_cache_update(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    cache_seqlens: torch.Tensor,
) -> None:
    """Put the new tokens, (rows, tokens, heads, width), behind what each row's pages hold."""
    for row, start in enumerate(cache_seqlens.tolist()):
        places = _places(range(start, start + k.shape[1]), block_table[row], k_cache.shape[1])
        k_cache.flatten(0, 1)[places] = k[row]
        v_cache.flatten(0, 1)[places] = v[row]


def gumbel_noise_f16(logits: torch.Tensor, out: torch.Tensor, seed: int) -> None:
    noise = torch.empty(logits.shape).exponential_(generator=torch.Generator().manual_seed(seed))
    out.copy_(logits.float() - noise.log())


gumbel_noise_f32 = gumbel_noise_f16


def gumbel_noise_log(chances: torch.Tensor, out: torch.Tensor, seed: int) -> None:
    gumbel_noise_f16(chances.float().log(), out, seed)


# -- quantized caches ------------------------------------------------------------------------------


def quant_cache_paged(
    k_in: torch.Tensor,
    k_out: torch.Tensor,
    k_scales: torch.Tensor,
    v_in: torch.Tensor,
    v_out: torch.Tensor,
    v_scales: torch.Tensor,
    cache_seqlens: torch.Tensor,
    block_table: torch.Tensor,
    page_size: int,
    length: int,
    compand: float,
    contiguous: bool,
) -> None:
    """Quantize the `length` tokens behind what a row's pages hold; in `contiguous` ones they come
    alone, else where they stand in the pages.
    """
    for row, start in enumerate(cache_seqlens.tolist()):
        places = _places(range(start, start + length), block_table[row], page_size)
        for wide, packed, scales in ((k_in, k_out, k_scales), (v_in, v_out, v_scales)):
            new = wide[row] if contiguous else wide.flatten(0, 1)[places]
            numbers, scale = _quantized(new.flatten(1), packed.shape[-1] * 32 // new[0].numel())
            packed.flatten(0, 1)[places] = numbers
            scales.flatten(0, 1)[places] = scale


def dequant_cache_paged(
    k_in: torch.Tensor,
    k_scales: torch.Tensor,
    k_out: torch.Tensor,
    v_in: torch.Tensor,
    v_scales: torch.Tensor,
    v_out: torch.Tensor,
    cache_seqlens: torch.Tensor,
    block_table: torch.Tensor,
    page_size: int,
    window: int,
    compand: float,
) -> None:
    """The other way round, of all that a row has in its pages."""
    for row, length in enumerate(cache_seqlens.tolist()):
        places = _places(range(length), block_table[row], page_size)
        for packed, scales, wide in ((k_in, k_scales, k_out), (v_in, v_scales, v_out)):
            found = _restored(packed.flatten(0, 1)[places], scales.flatten(0, 1)[places])
            wide.flatten(0, 1)[places] = found.unflatten(-1, wide.shape[-2:])


def _places(wanted: range, pages: torch.Tensor, size: int) -> torch.Tensor:
    tokens = torch.arange(wanted.start, wanted.stop)
    return pages.long()[tokens // size] * size + tokens % size


def _quantized(wide: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens, width) as `bits` words of 32 bits for each 32 numbers, and their scale: bit b of all
    32 numbers is the word b.
    """
    groups = wide.float().unflatten(-1, (-1, 32)) @ TURN
    peak = groups.abs().amax(-1, keepdim=True).clamp(min=1e-7)
    half = 2 ** (bits - 1)
    numbers = (groups / peak * half + half).round().clamp(0, 2 * half - 1).long()
    words = [
        ((numbers >> bit & 1) << torch.arange(32)).sum(-1).to(torch.int32) for bit in range(bits)
    ]
    return torch.stack(words, -1).flatten(-2), (peak / half).squeeze(-1).half()


def _restored(words: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    bits = words.shape[-1] // scales.shape[-1]
    each = words.unflatten(-1, (-1, bits)).long()
    single = each[..., None] >> torch.arange(32) & 1  # (…, groups, bits, 32)
    numbers = (single << torch.arange(bits)[:, None]).sum(-2).float() - 2 ** (bits - 1)
    return (numbers * scales.float()[..., None] @ TURN).flatten(-2).half()


def count_match_tensor(a: torch.Tensor, b: torch.Tensor, max_a: int) -> int:
    """How many tokens both begin with, of at most `max_a`."""
    count = min(max_a, b.shape[1], a.shape[1])
    differ = (a[0, :count] != b[0, :count]).nonzero()
    return int(differ[0]) if len(differ) else count


class BC_SAM:  # noqa: N801 - its name
    """Finds what a sequence ends with, earlier in it."""

    def accept_tensor(self, tokens: torch.Tensor) -> tuple[int, int]:
        """Where the longest such piece begins, and where it ends; -1: there is none."""
        said = tokens.view(-1).tolist()
        best = (-1, -1)
        for end in range(1, len(said)):
            length = 0
            while length < end and said[end - 1 - length] == said[-1 - length]:
                length += 1
            if length > best[1] - best[0]:
                best = (end - length, end)
        return best
