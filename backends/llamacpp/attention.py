"""The attention heads that a GGUF header describes, layer by layer as llama.cpp reads them, and
what its graphs take for granted of them. No engine.

How many values of a head are turned by their position is `rope.dimension_count`. An architecture
whose graph turns nothing may say 0; one that turns only a sliding window's layers may say 0 for the
others. Where a graph does turn, 0 never ends: ggml steps over the turned values of a head, and over
none it doesn't get on (ggml-cpu's ops.cpp, `ggml_compute_forward_rope_flt`).

Which graphs do what stands in `architectures`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from backends.llamacpp import encoders
from backends.llamacpp.architectures import (
    ALL_TURNED,
    COMPRESSED,
    HEADLESS,
    IN_SECTIONS,
    MAY_BE_IN_SECTIONS,
    NEVER_SHARED,
    NEVER_TURNED,
    OWN_KV_HEADS,
    OWN_LENGTHS,
    OWN_ROTATION,
    SAME_HEADS,
    SHARED_EVENLY,
    TRIED,
    TURNED_APART,
    TURNED_SLIDING,
    UNLIKE,
)
from backends.llamacpp.gguf import GgufModel

MOST_LAYERS = 512  # LLAMA_MAX_LAYERS

# Architectures that are one of a kind.
HALVED = "step35"  # whose layers that see all turn half of what the file says
FLAGGED = "granitehybrid"  # which turns nothing where `rope.scaling.finetuned` is false
NEVER_SAYS = "glm5-next"  # whose graph asserts that nothing is turned
REUSING = {"gemma3n": 20}  # whose layers from there on have no keys and values of their own
REUSING_LAST = "gemma4"  # so many of whose last ones have none as the file says
ALL_SLIDE = "lfm2"  # all of whose layers that attend have a window, where it has a length
BOTH_KINDS = (
    "gemma-embedding"  # whose masks for layers that slide and for the others are both filled
)


class SlidingWindow(msgspec.Struct, frozen=True):
    """Of an architecture: all layers but one of `every` slide (0: all of them), the first or the
    last of each such group sees all. There is a window always, or where the file says how long it
    is, or unless it says that it has no length; `layers`: in models of so many alone.
    """

    every: int
    full_first: bool = False
    by: Literal["always", "length", "unless 0"] = "length"
    layers: int = 0

    def used(self, model: GgufModel, count: int) -> bool:
        key = "attention.sliding_window"
        unsaid = self.by == "unless 0" and model.value(key) is None
        there = self.by == "always" or unsaid or model.number(key) > 0
        return there and self.layers in (0, count)


ALWAYS = SlidingWindow(1, by="always")  # such files list the layers that slide
WINDOWS: Mapping[str, SlidingWindow] = {
    **dict.fromkeys(("dots3note", "gemma4", "granite_swa", "maple", "mimo2"), ALWAYS),
    **dict.fromkeys(("spark2_5", "step35"), ALWAYS),
    "afmoe": SlidingWindow(4),
    "cohere2": SlidingWindow(4, by="always"),
    "cohere2moe": SlidingWindow(4, full_first=True, by="always"),
    "exaone-moe": SlidingWindow(4, by="always"),
    "exaone4": SlidingWindow(4, by="always", layers=64),
    "gemma-embedding": SlidingWindow(6, by="always"),
    "gemma2": SlidingWindow(2, by="always"),
    "gemma3": SlidingWindow(6),
    "gemma3n": SlidingWindow(5, by="always"),
    "gpt-oss": SlidingWindow(2, by="always"),
    "laguna": SlidingWindow(4, full_first=True),
    "llama4": SlidingWindow(4, by="unless 0"),
    "mellum": SlidingWindow(4),
    "modern-bert": SlidingWindow(3, full_first=True),
    "muse-glimmer": SlidingWindow(4, by="always"),
    "olmo2": SlidingWindow(4),
    "plamo3": SlidingWindow(8),
    "smallthinker": SlidingWindow(4, full_first=True),
}


class AttentionLayer(msgspec.Struct, frozen=True):
    """`heads` for queries and `kv_heads` for keys and values; values of a `key` and of a `value`,
    and how many of a key's are `turned`. `slides`: it sees a window alone.
    """

    heads: int
    kv_heads: int
    key: int
    value: int
    turned: int
    slides: bool


def layers(model: GgufModel) -> list[AttentionLayer]:
    """Those that write, without those that predict further tokens (llama-model.cpp,
    `load_hparams`). None: the file doesn't say how many there are, and llama.cpp refuses it.
    """
    if model.value("block_count") is None:
        return []
    count = min(model.number("block_count"), MOST_LAYERS) - model.number("nextn_predict_layers")
    whole, sliding = _lengths(model)
    found = []
    for number, slides in enumerate(_sliding(model, max(count, 1))):
        heads = model.number_of("attention.head_count", number)
        kv_heads = model.number_of("attention.head_count_kv", number, heads)
        found.append(
            AttentionLayer(heads, kv_heads, *(sliding if slides else whole), slides=slides)
        )
    return found


def _lengths(model: GgufModel) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Of a key, of a value and of what is turned: of layers that see all, and of those that slide.
    Without heads in the first layer a key has no length, whatever is given of it.
    """

    def given(key: str, default: int) -> int:
        return default if model.value(key) is None else model.number(key)

    key = value = turned = 0
    if heads := model.number_of("attention.head_count", 0):
        even = model.number("embedding_length") // heads
        key = given("attention.key_length", even)
        value = given("attention.value_length", even)
        turned = given("rope.dimension_count", key)
    sliding = (
        given("attention.key_length_swa", key),
        given("attention.value_length_swa", value),
        given("rope.dimension_count_swa", turned),
    )
    halved = turned // 2 if model.architecture == HALVED else turned
    return (key, value, halved), sliding


def _sliding(model: GgufModel, count: int) -> Sequence[bool]:
    """Which of the layers see a window alone."""
    if model.architecture == ALL_SLIDE and model.number("attention.sliding_window"):
        return [model.number_of("attention.head_count_kv", one) > 0 for one in range(count)]
    kind = WINDOWS.get(model.architecture)
    if kind is None or not kind.used(model, count):
        return [False] * count
    pattern = model.value("attention.sliding_window_pattern")
    if isinstance(pattern, tuple):
        return [bool(one) for one in (*pattern, *[False] * count)[:count]]
    every = kind.every if pattern is None else model.number("attention.sliding_window_pattern")
    full = 0 if kind.full_first else every - 1
    return [not every or number % every != full for number in range(count)]


def shares(model: GgufModel) -> Iterator[str]:
    """Heads that share keys, in every layer; encoders, which keep no cells, build all their layers
    like the first.
    """
    found = layers(model)
    alone = model.architecture in encoders.ENCODERS
    headless = model.architecture in HEADLESS or model.architecture not in TRIED
    for number, layer in enumerate(found[:1] if alone else found):
        own = model.architecture in NEVER_SHARED and layer.kv_heads != layer.heads
        without = not headless and not (layer.heads and layer.kv_heads)
        if own or without or (layer.kv_heads and layer.heads % layer.kv_heads):
            yield (
                f"in its layer {number} {layer.heads:,} heads (attention.head_count) share "
                f"{layer.kv_heads:,} (attention.head_count_kv)"
            )


def alike(model: GgufModel) -> Iterator[str]:
    """What all layers of most architectures have in common."""
    found, architecture = layers(model), model.architecture
    if architecture not in TRIED:
        return
    own = architecture in OWN_KV_HEADS or architecture in encoders.ENCODERS
    if architecture in SAME_HEADS and len({layer.heads for layer in found}) > 1:
        yield "its attention.head_count differs between layers"
    if not own and len({layer.kv_heads for layer in found}) > 1:
        yield "its attention.head_count_kv differs between layers"
    whole, sliding = _lengths(model)
    for name, one, other in zip(("key", "value"), whole, sliding, strict=False):
        if architecture not in OWN_LENGTHS and one != other:
            yield f"its attention.{name}_length_swa is not its attention.{name}_length"
    for layer in () if architecture in UNLIKE else found:
        if layer.key != layer.value:
            yield (
                f"its attention.key_length is {layer.key:,} and its attention.value_length "
                f"{layer.value:,}; its graph takes one of them for both"
            )


def compressed(model: GgufModel) -> Iterator[str]:
    """Keys that may be compressed (deepseek2.cpp): what is stored, and what is turned, of each."""
    found = layers(model)
    if model.architecture not in COMPRESSED or not found:
        return
    layer, rank = found[0], model.number("attention.kv_lora_rank")
    name, length = "attention.key_length", layer.key
    if apart := model.number("attention.value_length_mla") and model.number(f"{name}_mla"):
        name, length = f"{name}_mla", apart
    if apart and (layer.kv_heads != 1 or layer.key != rank + layer.turned):
        yield (
            f"its attention.key_length is {layer.key:,} for {layer.kv_heads:,} heads; one has "
            f"{rank:,} (attention.kv_lora_rank) and {layer.turned:,} (rope.dimension_count)"
        )
    if layer.turned >= length:
        yield f"its rope.dimension_count is {layer.turned:,} of {length:,} values ({name})"


def evenly(model: GgufModel) -> Iterator[str]:
    """Heads that share the width of the model."""
    width = model.number("embedding_length")
    for layer in layers(model)[:1] if model.architecture in SHARED_EVENLY else ():
        if layer.heads and layer.heads * layer.key != width:
            yield (
                f"its attention.key_length is {layer.key:,}; {layer.heads:,} heads share "
                f"{width:,} values"
            )


def rotation(model: GgufModel) -> Iterator[str]:
    """What is turned of a head, in the layers that turn."""
    found, architecture = layers(model), model.architecture
    if not found:
        return
    first = found[0]
    if architecture == NEVER_SAYS and first.turned:
        yield f"its rope.dimension_count is {first.turned:,}; nothing of it may be turned"
    if architecture in ALL_TURNED and first.turned != first.value:
        yield _turned(model, first, first)
    if architecture not in TRIED or architecture in NEVER_TURNED:
        return
    for layer in _turning(model, found):
        given = layer if architecture in OWN_ROTATION else first
        none = not given.turned and architecture not in TURNED_APART
        if none or given.turned % 2 or given.turned > layer.key:
            yield _turned(model, given, layer)


def sections(model: GgufModel) -> Iterator[str]:
    """Positions of several dimensions (M-RoPE): how many pairs each turns."""
    given, found = model.numbers("rope.dimension_sections"), layers(model)
    asked = model.architecture in MAY_BE_IN_SECTIONS and min(given[:2], default=0) > 0
    if not (asked or model.architecture in IN_SECTIONS) or not given or not found:
        return
    length = found[0].key
    if not any(one > 0 for one in given[:3]) or not 0 < sum(given) <= length:
        yield f"its rope.dimension_sections are {given} of {length:,} values of a head"


def _turned(model: GgufModel, given: AttentionLayer, layer: AttentionLayer) -> str:
    """`given`: the layer whose number counts."""
    key = "rope.dimension_count_swa"
    if not given.slides or model.value(key) is None:
        key = "rope.dimension_count"
    return f"its {key} is {given.turned:,} of {layer.key:,} values of a head"


def window(model: GgufModel) -> Iterator[str]:
    """Layers that slide, where there is a window."""
    kind, found = WINDOWS.get(model.architecture), layers(model)
    if kind is None or not kind.used(model, len(found)):
        return
    kinds = {layer.slides for layer in found}
    encodes = model.architecture in encoders.ENCODERS
    if kinds == {False} and not encodes:
        yield "its attention.sliding_window_pattern leaves no layer with the window it speaks of"
    if model.architecture == BOTH_KINDS and len(kinds) == 1:
        yield "its attention.sliding_window_pattern gives all layers a window, or none"


def reused(model: GgufModel) -> Iterator[str]:
    """Layers that have the keys and values of the last one or two before all such layers
    (llama-model.cpp, `create_memory`), which must be of their kind: a window's have a cache of
    their own.
    """
    found, own = layers(model), REUSING.get(model.architecture, 0)
    if model.architecture == REUSING_LAST and found:
        own = model.number("block_count") - model.number("attention.shared_kv_layers")
        if own < 2:
            yield f"{own:,} of its layers have keys of their own (attention.shared_kv_layers)"
    for layer in found[own:] if own >= 2 else ():
        if found[own - (2 if layer.slides else 1)].slides != layer.slides:
            yield (
                f"its last layers have the keys of its layers {own - 2} and {own - 1} "
                "(attention.shared_kv_layers), which are not one with a window and one without"
            )


def _turning(model: GgufModel, found: Sequence[AttentionLayer]) -> Iterator[AttentionLayer]:
    """The layers that turn their queries and keys."""
    if model.architecture == FLAGGED and model.value("rope.scaling.finetuned") is False:
        return
    alone = model.architecture in TURNED_SLIDING
    yield from (layer for layer in found if layer.kv_heads and (layer.slides or not alone))
