"""LoRA adapters of a model in memory: which of them count in the coming passes, and how pages of
the cache that were computed with others are told apart.

Both libraries compute a pass with one set of adapters, and name a page of the cache by its tokens
and the page before it alone: what was computed with one set would be found by requests with
another. So a chain of pages begins here with an origin, the set that it is computed with. That
holds for all that is kept by these names: pages on cards, in main memory, on disk, and states of
recurrent layers.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

Checksum: TypeAlias = Callable[[Any, bytes | None], bytes]  # of a page's tokens and the one before

PLAIN = b"no adapters"  # in place of an origin, where a page must have one
_here = threading.local()  # on an engine's thread: the origin of chains that begin there


class LoadedAdapter:
    """`lora` is the library's, loaded with the scale 1; `folder` is where it lies."""

    def __init__(self, lora: Any, folder: Path) -> None:
        self.lora = lora
        self.folder = folder
        linears = {id(linear): linear for linear in lora.target_modules.values()}.values()
        self._parts = [
            (linear, linear.lora_a_tensors[lora], linear.lora_b_tensors[lora])
            for linear in linears
            if lora in linear.lora_a_tensors and lora in linear.lora_b_tensors
        ]

    def weigh(self, scale: float) -> None:
        """It counts so much, behind those that are there already; 0: not at all."""
        for linear, down, up in self._parts:
            linear.lora_a_tensors.pop(self.lora, None)
            linear.lora_b_tensors.pop(self.lora, None)
            if scale:
                linear.lora_a_tensors[self.lora] = down
                linear.lora_b_tensors[self.lora] = up if scale == 1 else up * scale


def applied(adapters: Sequence[LoadedAdapter], scales: Sequence[float]) -> list[Any]:
    """The model's layers add these, in this order, and no others. Returns the library's objects."""
    pairs = [*zip(adapters, scales, strict=True)]
    for adapter, scale in pairs:
        adapter.weigh(scale)
    return [adapter.lora for adapter, scale in pairs if scale]


def origin(adapters: Sequence[LoadedAdapter], scales: Sequence[float]) -> bytes | None:
    """What chains of pages begin with; None: no adapter counts, and they have the library's own
    names.
    """
    counting = [
        (str(adapter.folder), scale)
        for adapter, scale in zip(adapters, scales, strict=True)
        if scale
    ]
    return sha256(msgspec.json.encode(counting)).digest()[:16] if counting else None


def begin_chains(of: bytes | None) -> None:
    """Chains of pages that this thread's engine computes begin with `of` from now on."""
    _here.origin = of


def tell_apart(name: str, *modules: Any) -> None:
    """In these modules of a library, its function `name` for the names of pages heeds origins: it
    is a function of the module, so there is no class to derive from.
    """
    checksum: Checksum = getattr(modules[0], name)
    if isinstance(checksum, NamesByOrigin):
        return
    for module in modules:
        setattr(module, name, NamesByOrigin(checksum))


class NamesByOrigin(msgspec.Struct, frozen=True, eq=False):
    """`checksum`, but what has no page before it has its origin there."""

    _checksum: Checksum

    def __call__(self, tokens: Any, before: bytes | None) -> bytes:
        return self._checksum(tokens, getattr(_here, "origin", None) if before is None else before)


def hide_first_pages(pages: Iterable[Any], past: bytes | None, coming: bytes | None) -> None:
    """A first page has none before it, whatever it was computed with, and is compared token by
    token with any prompt: those of other origins say so instead, while these don't count.
    """
    for page in pages:
        if page.prev_hash is None and page.kv_position:
            page.prev_hash = past or PLAIN
        elif page.prev_hash == (coming or PLAIN):
            page.prev_hash = None
