"""Folders exllamav2 can load: recognising them, and the memory they will need. Imports no engine.

It reads EXL2, GPTQ and unquantized safetensors. The last two are transformers' too, which comes
before it in `backends.catalog`: a user who wants them here names the backend.
"""

from pathlib import Path

import msgspec

from backends import hf_folder
from backends.catalog import MemoryNeed, ModelFiles
from backends.errors import LoadFailed, UnsupportedModel
from backends.hf_folder import Fields
from backends.protocol import Modality
from config.engines import EngineOptions, ExLlamaV2Options

PAGE = 256  # tokens; the cache's size is a multiple of it (exllamav2's PAGED_PAGE_SIZE)
LONGEST_BY_DEFAULT = 32_768  # tokens; models trained for more would claim all memory for the cache
CACHE_BY_DEFAULT = 4 << 30  # bytes of KV cache for all requests, where one full context takes less
SCRATCH = 768 << 20  # bytes: CUDA context, dequantizing, a prompt chunk's activations; a guess
READS = frozenset({None, "exl2", "gptq"})
# Classes whose vision tower exllamav2 0.3.2 has (its architecture.py).
SEES = frozenset(
    {
        "LlavaForConditionalGeneration",
        "Mistral3ForConditionalGeneration",
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Gemma3ForConditionalGeneration",
    }
)
# Of a 16-bit cache, what is left: the bits of a number plus a 16-bit scale for each 32 of them.
CACHE_SHARE = {"fp16": 1.0, "q8": 8.5 / 16, "q6": 6.5 / 16, "q4": 4.5 / 16}


class Shape(msgspec.Struct, frozen=True):
    """How much KV cache there will be: `cells` tokens in all, `length` for one request, of which
    `drafted` positions behind it are for guesses.
    """

    cells: int
    length: int
    drafted: int

    @property
    def positions(self) -> int:
        """Positions the model must know, guesses included; whole pages."""
        return _pages(self.length + self.drafted)


def recognise(path: Path) -> ModelFiles | None:
    """A folder with a `config.json` of a text generating model and safetensors exllamav2 reads.

    Raises LoadFailed for a broken folder, UnsupportedModel for EXL3.
    """
    if not (path / "config.json").is_file():
        return None
    config = hf_folder.read_json(path / "config.json")
    quantization = hf_folder.quantization(config)
    if quantization == "exl3":
        raise UnsupportedModel(
            f"{path} is quantized as EXL3, which needs exllamav3; Roundhouse has no backend for it "
            "yet. The same model as EXL2, GGUF or plain safetensors can be loaded"
        )
    architecture = hf_folder.architecture(config)
    if architecture is None or quantization not in READS:
        return None
    weights = hf_folder.weights(path)
    if not weights:
        return None
    text = hf_folder.text_config(config)
    return ModelFiles(
        path=path,
        backend="exllamav2",
        format="exl2" if quantization == "exl2" else "safetensors",
        architecture=architecture,
        size_bytes=sum(file.stat().st_size for file in weights),
        context_length=hf_folder.context_length(text),
        cache_bytes_per_token=hf_folder.cache_bytes(text),
        modalities=_modalities(path, config),
        chat_template=hf_folder.chat_template(path),
        parts=tuple(sorted((*weights, *path.glob("*.json"), *path.glob("*.jinja")))),
    )


def _modalities(folder: Path, config: Fields) -> tuple[Modality, ...]:
    names = config.get("architectures") or ()
    prepared = (folder / "preprocessor_config.json").is_file()
    sees = prepared and "vision_config" in config and any(name in SEES for name in names)
    return ("text", "image") if sees else ("text",)


def shape(files: ModelFiles, options: ExLlamaV2Options) -> Shape:
    """As `cache_tokens` says, else `CACHE_BY_DEFAULT`; one full context always fits."""
    length = options.context_length or min(files.context_length, LONGEST_BY_DEFAULT)
    drafted = options.draft_tokens if options.draft_model or options.ngram_speculation else 0
    share = CACHE_SHARE[options.cache_type]
    affordable = int(CACHE_BY_DEFAULT / max(files.cache_bytes_per_token * share, 1))
    cells = options.cache_tokens or min(affordable, length * options.max_concurrent)
    return Shape(_pages(max(cells, length + drafted)), length, drafted)


def _pages(tokens: int) -> int:
    return -(-tokens // PAGE) * PAGE


def draft(options: ExLlamaV2Options) -> ModelFiles | None:
    """The model that guesses ahead, if there is one. Raises LoadFailed."""
    if options.draft_model is None:
        return None
    if options.ngram_speculation:
        raise LoadFailed("a draft model and n-gram speculation exclude each other; choose one")
    path = Path(options.draft_model)
    files = recognise(path)
    if files is None:
        raise UnsupportedModel(f"the draft model {path} is not a model that exllamav2 can read")
    return files


def fitted(files: ModelFiles, options: EngineOptions) -> ModelFiles:
    """exllamav2 can't guess ahead where pictures are."""
    assert isinstance(options, ExLlamaV2Options)
    if options.draft_model or options.ngram_speculation:
        return msgspec.structs.replace(files, modalities=("text",))
    return files


def estimate(files: ModelFiles, options: EngineOptions) -> MemoryNeed:
    """Weights as they lie on disk, the whole cache, a guess for the rest; the draft model's too."""
    assert isinstance(options, ExLlamaV2Options)
    models = [files, *filter(None, [draft(options)])]
    cells = shape(files, options).cells
    per_token = sum(model.cache_bytes_per_token for model in models)
    return MemoryNeed(
        weights=sum(model.size_bytes for model in models),
        cache=int(cells * per_token * CACHE_SHARE[options.cache_type]),
        engine=SCRATCH,
    )
