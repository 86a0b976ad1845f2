"""The dimensions of published models, as their configurations have them: dense ones from 0.6 to 405
billion parameters, and mixtures of experts.
"""

from typing import NamedTuple

from backends.contract.placement import LayerWeights, ModelWeights, Variant

BITS = 4.85  # of a weight, as Q4_K_M has them on average
KV_BYTES = 2 * 2  # keys and values at 16 bits


class Dimensions(NamedTuple):
    """`dense`: so many of the first layers have no experts; `shared`: width of experts that every
    token is computed with; `attending`: layers with keys and values, 0: all.
    """

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head: int
    inner: int  # of a layer without experts
    vocabulary: int
    tied: bool = False
    experts: int = 0
    used: int = 0
    expert_inner: int = 0
    shared: int = 0
    dense: int = 0
    attending: int = 0


# fmt: off
MODELS = (
    Dimensions("Qwen3 0.6B", 28, 1024, 16, 8, 128, 3072, 151_936, True),
    Dimensions("Llama 3.2 1B", 16, 2048, 32, 8, 64, 8192, 128_256, True),
    Dimensions("Llama 3.2 3B", 28, 3072, 24, 8, 128, 8192, 128_256, True),
    Dimensions("Qwen3 4B", 36, 2560, 32, 8, 128, 9728, 151_936, True),
    Dimensions("Gemma 3 4B", 34, 2560, 8, 4, 256, 10_240, 262_208, True),
    Dimensions("Mistral 7B", 32, 4096, 32, 8, 128, 14_336, 32_768),
    Dimensions("Llama 3.1 8B", 32, 4096, 32, 8, 128, 14_336, 128_256),
    Dimensions("Qwen3 8B", 36, 4096, 32, 8, 128, 12_288, 151_936),
    Dimensions("Mistral Nemo 12B", 40, 5120, 32, 8, 128, 14_336, 131_072),
    Dimensions("Gemma 3 12B", 48, 3840, 16, 8, 256, 15_360, 262_208, True),
    Dimensions("Phi-4", 40, 5120, 40, 10, 128, 17_920, 100_352),
    Dimensions("Qwen3 14B", 40, 5120, 40, 8, 128, 17_408, 151_936),
    Dimensions("Mistral Small 24B", 40, 5120, 32, 8, 128, 32_768, 131_072),
    Dimensions("Gemma 3 27B", 62, 5376, 32, 16, 128, 21_504, 262_208, True),
    Dimensions("Qwen3 32B", 64, 5120, 64, 8, 128, 25_600, 151_936),
    Dimensions("Llama 3.3 70B", 80, 8192, 64, 8, 128, 28_672, 128_256),
    Dimensions("Command R+ 104B", 64, 12_288, 96, 8, 128, 33_792, 256_000, True),
    Dimensions("Mistral Large 123B", 88, 12_288, 96, 8, 128, 28_672, 32_768),
    Dimensions("Llama 3.1 405B", 126, 16_384, 128, 8, 128, 53_248, 128_256),
    Dimensions("OLMoE 1B-7B", 16, 2048, 16, 16, 128, 0, 50_304, False, 64, 8, 1024),
    Dimensions(
        "DeepSeek V2 Lite", 27, 2048, 16, 1, 288, 10_944, 102_400, False,
        64, 6, 1408, 2816, 1,
    ),
    Dimensions("gpt-oss 20B", 24, 2880, 64, 8, 64, 0, 201_088, False, 32, 4, 2880),
    Dimensions(
        "ERNIE 4.5 21B-A3B", 28, 2560, 20, 4, 128, 12_288, 103_424, True,
        64, 6, 1536, 3072, 1,
    ),
    Dimensions("Qwen3 30B-A3B", 48, 2048, 32, 4, 128, 0, 151_936, False, 128, 8, 768),
    Dimensions(
        "Granite 4-H Small", 40, 4096, 32, 8, 128, 0, 100_352, True,
        72, 10, 768, 1536, 0, 4,
    ),
    Dimensions("Mixtral 8x7B", 32, 4096, 32, 8, 128, 0, 32_000, False, 8, 2, 14_336),
    Dimensions(
        "Qwen3-Next 80B-A3B", 48, 2048, 16, 2, 256, 0, 151_936, False,
        512, 10, 512, 512, 0, 12,
    ),
    Dimensions("GLM-4.5-Air", 46, 4096, 96, 8, 128, 10_944, 151_552, False, 128, 8, 1408, 1408, 1),
    Dimensions("Llama 4 Scout", 48, 5120, 40, 8, 128, 0, 202_048, False, 16, 1, 8192, 8192),
    Dimensions("gpt-oss 120B", 36, 2880, 64, 8, 64, 0, 201_088, False, 128, 4, 2880),
    Dimensions("Mixtral 8x22B", 56, 6144, 48, 8, 128, 0, 32_768, False, 8, 2, 16_384),
    Dimensions("Qwen3 235B-A22B", 94, 4096, 64, 4, 128, 0, 151_936, False, 128, 8, 1536),
    Dimensions("DeepSeek V3", 61, 7168, 128, 1, 288, 18_432, 129_280, False, 256, 8, 2048, 2048, 3),
    Dimensions("Kimi K2", 61, 7168, 64, 1, 288, 18_432, 163_840, False, 384, 8, 2048, 2048, 1),
)
# fmt: on


def weights_of(model: Dimensions) -> ModelWeights:
    """As a file of about `BITS` bits a weight has them."""

    def size(values: int) -> int:
        return int(values * BITS / 8)

    attention = model.width * model.head * (2 * model.heads + 2 * model.kv_heads)
    cache = model.kv_heads * model.head * KV_BYTES
    attending = model.attending or model.layers

    def layer(number: int) -> LayerWeights:
        mixed = model.experts and number >= model.dense
        inner = model.shared if mixed else model.inner
        return LayerWeights(
            shared=size(attention + 3 * model.width * inner),
            experts=size(3 * model.width * model.expert_inner * model.experts) if mixed else 0,
            cache=cache
            if number * attending // model.layers != (number - 1) * attending // model.layers
            else 0,
        )

    embedding = size(model.vocabulary * model.width)
    return ModelWeights(
        layers=tuple(map(layer, range(model.layers))),
        output=embedding,
        embedding=embedding,
        used=model.used / model.experts if model.experts else 1.0,
        largest=size(model.width * max(model.inner, model.expert_inner * max(1, model.experts))),
    )


def variant_of(weights: ModelWeights, context: int, cache_type: str = "f16") -> Variant:
    """For one conversation of so many tokens."""
    part = {"f16": 1.0, "q8_0": 17 / 32, "q4_0": 9 / 32}[cache_type]
    return Variant(
        context=context,
        cache_type=cache_type,
        caches=tuple(int(layer.cache * context * part) for layer in weights.layers),
        buffers=512 << 20,
        moved=weights.largest,
    )
