"""Stands where exllamav2 has its compiled extension: what an unquantized model needs, in torch, and
the package's own sampler and string matcher, compiled for the CPU. All else raises by its name.

The functions' names and parameters are those of exllamav2 0.3.2's `ext_bindings.cpp`; a tensor on
the device "meta" stands for none.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

from tests.cardless.compiling import exllamav2_sampling
from tests.cardless.modules.hadamard import GROUP, TURN

_sampling = exllamav2_sampling()
apply_rep_penalty = _sampling.apply_rep_penalty
sample_basic = _sampling.sample_basic
logit_filter_exclusive = _sampling.logit_filter_exclusive
fast_fill_cpu_ones_bool = _sampling.fast_fill_cpu_ones_bool
fast_fadd_cpu = _sampling.fast_fadd_cpu
fast_copy_cpu = _sampling.fast_copy_cpu
partial_strings_match = _sampling.partial_strings_match

MOST = 65504.0  # in half precision


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: Any) -> Any:
        raise NotImplementedError(f"exllamav2_ext.{name} needs a card")

    return missing


# -- files -----------------------------------------------------------------------------------------


def stloader_read(filename: str, offset: int, size: int, target: torch.Tensor) -> None:
    with Path(filename).open("rb") as file:
        file.seek(offset)
        read = numpy.fromfile(file, numpy.uint8, size)
    target.view(-1).view(torch.uint8).copy_(torch.from_numpy(read))


# -- layers ----------------------------------------------------------------------------------------


def rms_norm(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, epsilon: float) -> None:
    wide = x.float() if x.dtype == torch.float else x.float().clamp(-MOST, MOST)
    scale = (wide.pow(2).mean(-1, keepdim=True) + epsilon).rsqrt()
    y.copy_(wide * w.float() * scale)


def layer_norm(
    x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, y: torch.Tensor, epsilon: float
) -> None:
    wide = x.float()
    wide = wide - wide.mean(-1, keepdim=True)
    scale = (wide.pow(2).mean(-1, keepdim=True) + epsilon).rsqrt()
    bent = wide * scale * w.float()
    y.copy_(bent if b.is_meta else bent + b.float())


def head_norm(
    x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, y: torch.Tensor, epsilon: float, rms: bool
) -> None:
    """Of each head's numbers: `w` is (heads, width)."""
    if rms:
        rms_norm(x, w, y, epsilon)
    else:
        layer_norm(x, w, b, y, epsilon)


def rope_(
    x: torch.Tensor,
    sin: torch.Tensor,
    cos: torch.Tensor,
    past_len: int,
    num_heads: int,
    head_dim: int,
    offsets: torch.Tensor,
    neox_style: bool,
) -> None:
    """Turn `x` (rows, tokens, heads * width), at places from `past_len` and each row's offset on.
    The tables are as wide as what is turned of a head.
    """
    heads = x.view(x.shape[0], -1, num_heads, head_dim)
    starts = torch.full((len(heads),), max(past_len, 0))
    if not offsets.is_meta:
        starts = starts + offsets
    places = (starts[:, None] + torch.arange(heads.shape[1])).clamp(min=0)
    sines, cosines = (table.float().view(-1, table.shape[-1])[places] for table in (sin, cos))
    part = heads[..., : sin.shape[-1]]
    wide = part.float()
    turned = wide * cosines[:, :, None] + _quarter(wide, neox_style) * sines[:, :, None]
    part.copy_(turned)


def _quarter(x: torch.Tensor, neox_style: bool) -> torch.Tensor:
    """A quarter turn: of halves, or of neighbours."""
    if neox_style:
        left, right = x.chunk(2, -1)
        return torch.cat((-right, left), -1)
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def gen_mrope_pos_ids(
    positions: torch.Tensor,
    ids: torch.Tensor,
    merged: int,
    spans: Sequence[tuple[int, int]],
    grids: Sequence[tuple[int, int, int]],
) -> int:
    """Times, rows and columns, (3, tokens): those of pictures, whose ids are in `spans`, by their
    grids of patches, of which `merged` by `merged` are a token. Returns the next one.
    """
    first = last = 0
    tokens = ids.tolist()
    for place in range(positions.shape[1]):
        token = tokens[place] if place < len(tokens) else -1
        found = [n for n, (start, end) in enumerate(spans) if start <= token < end]
        if found:
            _, rows, columns = grids[found[0]]
            row, column = divmod(token - spans[found[0]][0], columns // merged)
            time, row = divmod(row, rows // merged)
            turn = (first + time, first + row, first + column)
            last = max(last, *(one + 1 for one in turn))
        else:
            turn = (last, last, last)
            first = last = last + 1
        positions[:, place] = torch.tensor(turn)
    return last


def softcap_(x: torch.Tensor, scale: float) -> None:
    x.copy_((x.float() / scale).tanh() * scale)


# -- caches ----------------------------------------------------------------------------------------


def count_match(a: torch.Tensor, b: torch.Tensor, max_a: int) -> int:
    """How many tokens both begin with, of at most `max_a`."""
    count = min(max_a, b.shape[1])
    differ = (a[0, :count] != b[0, :count]).nonzero()
    return int(differ[0]) if len(differ) else count


def cache_rotate(cache: torch.Tensor, order: torch.Tensor, temp: torch.Tensor) -> None:
    """Move pages, (pages, …): each of `order` becomes the next, the last one the first."""
    cache[order.long()] = cache[order.roll(-1).long()]


def fp16_to_q_kv(
    k_in: torch.Tensor,
    k_out: torch.Tensor,
    k_scales: torch.Tensor,
    v_in: torch.Tensor,
    v_out: torch.Tensor,
    v_scales: torch.Tensor,
    batch_size: int,
    offset: int,
    width: int,
    page_size: int,
    cache_seqlens: torch.Tensor,
    block_table: torch.Tensor,
    wbits: int,
) -> None:
    """Quantize what stands at `width` places: from `offset`, or behind what a row's pages hold."""
    if page_size:
        lengths = cache_seqlens.tolist()
        places = _in_pages([range(at, at + width) for at in lengths], block_table, page_size)
    else:
        places = _in_rows(batch_size, range(offset, offset + width), k_in.shape[1])
    for wide, packed, scales in ((k_in, k_out, k_scales), (v_in, v_out, v_scales)):
        numbers, scale = quantized(wide.flatten(0, 1)[places], packed.shape[-1])
        packed.view(-1, *packed.shape[2:])[places] = numbers
        scales.view(-1, *scales.shape[2:])[places] = scale


def q_to_fp16_kv(
    k_in: torch.Tensor,
    k_out: torch.Tensor,
    k_scales: torch.Tensor,
    v_in: torch.Tensor,
    v_out: torch.Tensor,
    v_scales: torch.Tensor,
    batch_size: int,
    offset: int,
    width: int,
    page_size: int,
    cache_seqlens: torch.Tensor,
    block_table: torch.Tensor,
    wbits: int,
) -> None:
    """The other way round, of all that a row has in its pages."""
    if page_size:
        lengths = cache_seqlens.tolist()
        places = _in_pages([range(length) for length in lengths], block_table, page_size)
    else:
        places = _in_rows(batch_size, range(offset, offset + width), k_in.shape[1])
    for packed, wide, scales in ((k_in, k_out, k_scales), (v_in, v_out, v_scales)):
        found = restored(packed.flatten(0, 1)[places], scales.flatten(0, 1)[places])
        wide.view(-1, *wide.shape[2:])[places] = found


def _in_pages(wanted: Sequence[range], table: torch.Tensor, size: int) -> torch.Tensor:
    """Where the cache has these tokens of each row."""
    parts = []
    for pages, row in zip(table.long(), wanted, strict=True):
        places = torch.arange(row.start, row.stop)
        parts.append(pages[places // size] * size + places % size)
    return torch.cat(parts)


def _in_rows(rows: int, wanted: range, length: int) -> torch.Tensor:
    return torch.cat(
        [
            torch.arange(row * length, (row + 1) * length)[wanted.start : wanted.stop]
            for row in range(rows)
        ]
    )


def quantized(wide: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(…, width) as (…, `size`) bytes, each with one number or two, and a scale for each group,
    within which the numbers are turned first, so that outliers are shared out.
    """
    bits = 8 * size // wide.shape[-1]
    half = 2 ** (bits - 1)
    groups = wide.float().unflatten(-1, (-1, GROUP)) @ TURN
    peak = groups.abs().amax(-1, keepdim=True).clamp(min=1e-7)
    numbers = (groups / peak * half + half).round().clamp(0, 2 * half - 1).flatten(-2)
    scale = (peak / half).squeeze(-1).half()
    single = numbers.to(torch.uint8)
    return (single if bits == 8 else single[..., ::2] | single[..., 1::2] << 4), scale


def restored(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    bits = 8 * packed.shape[-1] // (scales.shape[-1] * GROUP)
    if bits == 4:
        packed = torch.stack((packed & 15, packed >> 4), -1).flatten(-2)
    groups = (packed.float() - 2 ** (bits - 1)).unflatten(-1, (-1, GROUP))
    return (groups * scales.float()[..., None] @ TURN).flatten(-2).half()
