"""Folders exllamav3 can load: recognising them, and the memory they will need. Imports no engine.

It reads EXL3 and unquantized safetensors. The latter are transformers' too, which comes before it
in `backends.catalog`: a user who wants them here names the backend.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from backends.catalog import CPU, Cards, ModelFiles, Placement
from backends.exllama import files as exllama
from backends.exllama.files import PagedCacheSize
from backends.huggingface import model_folder, torch_devices
from backends.huggingface.model_folder import Fields
from backends.protocol import MemoryNeed
from config.engines import EngineOptions, ExLlamaV3Options

SUFFIX = None  # folders
COMPANIONS: tuple[str, ...] = ()
FORMATS = {None: "safetensors", "exl3": "exl3"}  # by quantization
# Classes whose vision tower exllamav3 1.6.5 has (its architecture/), of those whose chat templates
# write one known token for a picture.
SEES = frozenset(
    {
        "Gemma3ForConditionalGeneration",
        "Gemma4ForConditionalGeneration",
        "Glm4vForConditionalGeneration",
        "Glm4vMoeForConditionalGeneration",
        "Lfm2VlForConditionalGeneration",
        "Mistral3ForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
    }
)
MEGABYTE = 1 << 20
ENDS = 1  # tokens kept free behind the longest request: the generator needs its last one to fit


def recognise(path: Path) -> ModelFiles | None:
    """See `model_folder.recognise`."""
    return model_folder.recognise(path, "exllamav3", FORMATS.get, _sees)


def _sees(folder: Path, config: Fields) -> bool:
    prepared = model_folder.encodes_images(
        folder, config, (model_folder.PREPROCESSOR, model_folder.PROCESSOR)
    )
    return prepared and model_folder.of_class(config, SEES)


def cache_bits(cache_type: str) -> tuple[int, int] | None:
    """Bits of a key's and of a value's number; None where they are not quantized."""
    if cache_type == "fp16":
        return None
    keys, _, values = cache_type.removeprefix("q").partition(",")
    return int(keys), int(values or keys)


def cache_share(cache_type: str) -> float:
    """Of a 16-bit cache, what is left: the bits of a number plus a 16-bit scale for each 32."""
    bits = cache_bits(cache_type)
    return 1.0 if bits is None else (sum(bits) / 2 + 16 / 32) / 16


def cache_size(files: ModelFiles, options: ExLlamaV3Options) -> PagedCacheSize:
    """See `exllama.files.cache_size`."""
    return exllama.cache_size(files, options, cache_share(options.cache_type), spare=ENDS)


def draft(options: ExLlamaV3Options) -> ModelFiles | None:
    """The model that guesses ahead, if there is one. Raises LoadFailed."""
    return exllama.draft(options, recognise, "exllamav3")


def fitted(files: ModelFiles, options: EngineOptions) -> ModelFiles:
    """See `exllama.files.fitted`."""
    assert isinstance(options, ExLlamaV3Options)
    return exllama.fitted(files, options)


def placements(
    files: ModelFiles | None,
    options: EngineOptions,
    cards: Cards,
) -> Sequence[Placement]:
    """All cards alike where a tensor is spread over them, else see `exllama.files.placements`."""
    assert isinstance(options, ExLlamaV3Options)
    kept = 0.0
    if files is not None and options.cpu_cache_size:
        kept = options.cpu_cache_size * MEGABYTE / estimate(files, options).total
    found = exllama.placements(options, cards)
    if options.tensor_parallel and not any(options.gpu_split):
        usable = torch_devices.cards(cards)
        found = (dict.fromkeys(usable, 1 / len(usable)) or {CPU: 1.0},)
    return tuple(_beside_main_memory(placement, kept) for placement in found)


def _beside_main_memory(placement: Placement, kept: float) -> Placement:
    """`placement` of all that is not `kept` in main memory."""
    if not kept:
        return placement
    shares = {device: share * (1 - kept) for device, share in placement.items()}
    return {**shares, CPU: shares.get(CPU, 0.0) + kept}


def placed(options: EngineOptions, placement: Placement, cards: Cards) -> EngineOptions:
    """See `exllama.files.placed`."""
    assert isinstance(options, ExLlamaV3Options)
    if options.tensor_parallel:
        return options
    on_cards = {device: share for device, share in placement.items() if device != CPU}
    return exllama.placed(options, on_cards or placement, cards)


def estimate(files: ModelFiles, options: EngineOptions) -> MemoryNeed:
    """The draft model's need is in it."""
    assert isinstance(options, ExLlamaV3Options)
    models = filter(None, (files, draft(options)))
    cells, share = cache_size(files, options).cells, cache_share(options.cache_type)
    found = exllama.need(models, cells, share)
    return msgspec.structs.replace(found, cache=found.cache + options.cpu_cache_size * MEGABYTE)
