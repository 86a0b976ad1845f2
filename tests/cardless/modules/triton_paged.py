"""Stands for exllamav3's module of this name, whose kernels attend over pages: in torch.

Names that only other kernels of the package use are nothing.
"""

from typing import Any

import torch

from tests.cardless.modules import flash_attn

_qc_staging = 2  # a quantized cache is restored before it is attended to


def __getattr__(name: str) -> None:
    if name.startswith("__"):
        raise AttributeError(name)


def attend(args: Any) -> torch.Tensor:
    """`args`: the package's `AttnArgs`."""
    assert args.sinks is None
    assert not args.non_causal_spans
    assert not args.is_varlen()
    shared = {
        "softmax_scale": args.sm_scale,
        "causal": args.causal,
        "softcap": args.softcap,
        "window_size": args.get_window_size(),
    }
    if not args.has_kv_cache():
        return flash_attn.flash_attn_func(args.q, args.k, args.v, **shared)
    return flash_attn.flash_attn_with_kvcache(
        args.q,
        args.k_cache,
        args.v_cache,
        k=args.k,
        v=args.v,
        cache_seqlens=args.cache_seqlens,
        block_table=args.block_table,
        **shared,
    )


fn_triton_paged_attn_decode = attend
