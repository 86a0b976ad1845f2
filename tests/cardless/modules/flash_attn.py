"""The three functions of flash-attn that exllamav2 calls, in single precision on the CPU.

Queries, keys and values are (batch, tokens, heads, width); several heads of queries may share one
of keys. A causal mask is aligned with the lower right corner: the last query sees all keys.
"""

import torch

__version__ = "2.8.3"
WITHOUT = (-1, -1)  # tokens that are seen to the left and to the right; -1: all


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = WITHOUT,
    softcap: float = 0.0,
) -> torch.Tensor:
    shared = q.shape[2] // k.shape[2]
    queries, keys, values = (part.float().transpose(1, 2) for part in (q, k, v))
    keys, values = (part.repeat_interleave(shared, 1) for part in (keys, values))
    scores = queries @ keys.transpose(-1, -2) * (softmax_scale or q.shape[-1] ** -0.5)
    if softcap:
        scores = (scores / softcap).tanh() * softcap
    hidden = ~seen(q.shape[1], k.shape[1], causal, window_size)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num()
    return (weights @ values).transpose(1, 2).to(q.dtype)


def seen(queries: int, keys: int, causal: bool, window: tuple[int, int]) -> torch.Tensor:
    """(queries, keys), bool."""
    place = torch.arange(queries)[:, None] + keys - queries
    key = torch.arange(keys)
    left, right = window[0], 0 if causal else window[1]
    visible = torch.ones(queries, keys, dtype=torch.bool)
    if left >= 0:
        visible &= key >= place - left
    if right >= 0:
        visible &= key <= place + right
    return visible


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool = False,
) -> torch.Tensor:
    """Of several texts behind one another: (tokens, heads, width)."""
    bounds = zip(
        cu_seqlens_q.tolist(),
        cu_seqlens_q.tolist()[1:],
        cu_seqlens_k.tolist(),
        cu_seqlens_k.tolist()[1:],
        strict=False,
    )
    parts = [
        flash_attn_func(q[None, a:b], k[None, c:d], v[None, c:d], causal=causal)[0]
        for a, b, c, d in bounds
    ]
    return torch.cat(parts)


def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    cache_seqlens: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = WITHOUT,
    softcap: float = 0.0,
) -> torch.Tensor:
    """The cache is (pages, tokens of a page, heads, width), `block_table` has each row's pages in
    order. New keys and values are written behind what a row has.
    """
    assert cache_seqlens is not None
    assert block_table is not None
    rows = []
    for row, length in enumerate(cache_seqlens.tolist()):
        pages = block_table[row].long()
        if k is not None and v is not None:
            write(k_cache, k[row], pages, length)
            write(v_cache, v[row], pages, length)
            length += k.shape[1]  # noqa: PLW2901
        keys, values = (cache[pages].flatten(0, 1)[None, :length] for cache in (k_cache, v_cache))
        query = q[row : row + 1]
        rows.append(
            flash_attn_func(query, keys, values, softmax_scale, causal, window_size, softcap)
        )
    return torch.cat(rows)


def write(cache: torch.Tensor, new: torch.Tensor, pages: torch.Tensor, length: int) -> None:
    places = torch.arange(length, length + len(new))
    size = cache.shape[1]
    cache[pages[places // size], places % size] = new
