"""What fits which memory, by the same estimates the server plans with:

    python -m benchmarks.hardware

Prints the tables of docs/hardware.md. Dimensions and sizes are those of the models' published GGUF
files; no file is needed and nothing is loaded.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from backends.contract.catalog import CPU, ModelFiles, Room
from backends.contract.placement import LayerWeights, ModelWeights
from backends.engines.llamacpp.files import estimate, fit_on
from config.engines import LlamaCppOptions

GIB = 2**30
MEMORY = (8, 12, 24, 48)  # GiB of cards
SPARE = 0.9  # of a card's memory; the rest is the driver's, the desktop's and the context's
CONTEXTS = (131_072, 65_536, 32_768, 16_384, 8_192, 4_096)
CARD, MAIN = 24, 64  # GiB
BANDWIDTHS = {"cuda:0": 936e9, CPU: 60e9}  # bytes a second: an RTX 3090's, and DDR5 in two channels
KV_BYTES = 2 * 2  # keys and values at 16 bits


class Shape(msgspec.Struct, frozen=True):
    """A model's file in one quantization. `bytes`: of its weights; `layers`: that attend, `sliding`
    of which see a `window` alone; `state`: values of each of its `recurrent` layers; `experts`:
    bytes of all of them, of which a token is computed with the part `used`.
    """

    name: str
    bytes: int
    layers: int
    kv_heads: int
    head: int  # dimensions of a head
    width: int  # of the hidden state
    heads: int
    vocabulary: int
    context: int
    sliding: int = 0
    window: int = 0
    recurrent: int = 0
    state: int = 0
    experts: int = 0
    used: float = 1.0


LONG = 131_072
# Of Qwen's linear layers: the convolution's columns of keys, queries and values, and a matrix of
# each head of 128.
QWEN_27B, QWEN_35B = (3 * 80 * 128 + 48 * 128**2), (3 * 64 * 128 + 32 * 128**2)
GRANITE_SMALL = 3 * (8_192 + 2 * 128) + 128 * 8_192
MODELS = (
    Shape("Qwen3 4B Q4_K_M", 2_497_000_000, 36, 8, 128, 2560, 32, 151_936, 40_960),
    Shape("Llama 3.1 8B Q4_K_M", 4_920_000_000, 32, 8, 128, 4096, 32, 128_256, 131_072),
    Shape("Qwen3 8B Q4_K_M", 5_027_000_000, 36, 8, 128, 4096, 32, 151_936, 40_960),
    Shape("Qwen3 14B Q4_K_M", 9_001_000_000, 40, 8, 128, 5120, 40, 151_936, 40_960),
    Shape("Mistral Small 24B Q4_K_M", 14_333_000_000, 40, 8, 128, 5120, 32, 131_072, 32_768),
    Shape("Qwen3 30B-A3B Q4_K_M", 18_556_000_000, 48, 4, 128, 2048, 32, 151_936, 40_960),
    Shape("Qwen3 32B Q4_K_M", 19_762_000_000, 64, 8, 128, 5120, 64, 151_936, 40_960),
    Shape("Llama 3.3 70B Q4_K_M", 42_520_000_000, 80, 8, 128, 8192, 64, 128_256, 131_072),
    Shape("Gemma 3 12B Q4_K_M", 7_301_000_000, 48, 8, 256, 3840, 16, 262_208, LONG, 40, 1_024),
    Shape("Gemma 3 27B Q4_K_M", 16_547_000_000, 62, 16, 128, 5376, 32, 262_208, LONG, 52, 1_024),
    Shape("gpt-oss 20B MXFP4", 12_110_000_000, 24, 8, 64, 2880, 64, 201_088, LONG, 12, 128),
    Shape(
        "gpt-oss 120B MXFP4", 63_388_000_000, 36, 8, 64, 2880, 64, 201_088, LONG, 18, 128,
        experts=60_900_000_000, used=4 / 128,
    ),
    Shape("Devstral Small 24B Q4_K_M", 14_333_000_000, 40, 8, 128, 5120, 32, 131_072, LONG),
    Shape(
        "Qwen3.6 27B, 4.85 bits", 16_600_000_000, 16, 4, 256, 5120, 24, 248_320, 2 * LONG,
        recurrent=48, state=QWEN_27B,
    ),
    Shape(
        "Qwen3.6 35B-A3B, 4.85 bits", 21_200_000_000, 10, 2, 256, 2048, 16, 248_320, 2 * LONG,
        recurrent=30, state=QWEN_35B,
    ),
    Shape(
        "Granite 4-H Small, 4.85 bits", 19_500_000_000, 4, 8, 128, 4096, 32, 100_352, LONG,
        recurrent=36, state=GRANITE_SMALL,
    ),
)  # fmt: skip
CacheType = Literal["f16", "q8_0", "q4_0"]
CACHES: tuple[CacheType, ...] = ("f16", "q8_0", "q4_0")


def files_of(shape: Shape) -> ModelFiles:
    """As the headers of such a file tell."""
    cell = shape.kv_heads * shape.head * KV_BYTES
    return ModelFiles(
        path=Path(shape.name),
        backend="llamacpp",
        format="gguf",
        architecture="llama",
        size_bytes=shape.bytes,
        context_length=shape.context,
        cache_bytes_per_token=shape.layers * cell,
        sliding_bytes_per_token=shape.sliding * cell,
        window=shape.window,
        state_bytes=4 * shape.state,
        recurrent_layers=shape.recurrent,
        vocab_size=shape.vocabulary,
        heads=shape.heads,
        activation_bytes=4 * 8 * shape.width,
        weights=_weights(shape, cell),
    )


def _weights(shape: Shape, cell: int) -> ModelWeights:
    """In layers alike, with a matrix of the vocabulary behind them and one before."""
    count = shape.layers + shape.recurrent
    matrix = min(shape.vocabulary * shape.width, (shape.bytes - shape.experts) // 3)
    shared = (shape.bytes - shape.experts - 2 * matrix) // count
    layer = LayerWeights(shared, shape.experts // count, shape.layers * cell // count)
    return ModelWeights(
        layers=(layer,) * count, output=matrix, embedding=matrix, used=shape.used, largest=shared
    )


def need(shape: Shape, tokens: int, cache: CacheType) -> int:
    """Bytes for one conversation of so many tokens."""
    options = LlamaCppOptions(
        context_length=tokens,
        cache_tokens=tokens,
        max_concurrent=1,
        cache_type_k=cache,
        cache_type_v=cache,
    )
    return estimate(files_of(shape), options).total


def longest(shape: Shape, memory: int, cache: CacheType) -> int:
    """Tokens that fit `memory` bytes together with the weights; 0: not even the shortest."""
    known = (one for one in CONTEXTS if one <= shape.context)
    return next((one for one in known if need(shape, one, cache) <= memory), 0)


def rows() -> Iterator[str]:
    """The table of contexts, in Markdown."""
    sizes = (*(f"{size} GiB" for size in MEMORY), f"{CARD} GiB + {MAIN} GiB")
    yield "| model | file | " + " | ".join(sizes) + " |"
    yield "|---|--:|" + "---|" * len(sizes)
    for shape in MODELS:
        cells = (*(_cell(shape, int(size * GIB * SPARE)) for size in MEMORY), _with_main(shape))
        yield f"| {shape.name} | {shape.bytes / GIB:.1f} GiB | " + " | ".join(cells) + " |"


def _cell(shape: Shape, memory: int) -> str:
    """`16k; 32k q8_0`: the context at 16 bits, and what quantized caches add to it."""
    found: dict[int, CacheType] = {}
    for cache in CACHES:
        if tokens := longest(shape, memory, cache):
            found.setdefault(tokens, cache)
    contexts = [
        f"{tokens // 1024}k" + ("" if cache == "f16" else f" {cache}")
        for tokens, cache in found.items()
    ]
    return "; ".join(contexts) or "no"


def _with_main(shape: Shape) -> str:
    """A card with main memory beside it: what lies there, and how fast a token is read then."""
    free = {"cuda:0": int(CARD * GIB * SPARE), CPU: int(MAIN * GIB * SPARE)}
    options = LlamaCppOptions(context_length=8_192, cache_tokens=8_192, max_concurrent=1)
    room = Room(free=free, bandwidths=BANDWIDTHS)
    fitted = fit_on(files_of(shape), options, ["cuda:0"], room)
    if fitted is None:
        return "yes"
    seconds = sum(read / BANDWIDTHS[device] for device, read in fitted.reads.items())
    part = "experts" if shape.experts else "layers"
    return f"yes, with {part} in memory, about {1 / seconds:.0f} tokens/s"


if __name__ == "__main__":
    print("\n".join(rows()))
