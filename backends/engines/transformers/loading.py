"""From a folder and options to a model in memory, with its LoRA adapters; every failure as one of
ours.

Adapters are loaded by peft itself. transformers has a way of its own to load them, which starts
some of their tensors anew at random (DoRA's magnitudes) and says so in a log alone. peft puts its
layers into the model it is given, so that the model stays the same object.
"""

import itertools
import logging
import shutil
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

import msgspec
import structlog
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.utils import logging as transformers_logging

from backends.contract.catalog import ModelFiles, command
from backends.contract.errors import BackendMissing, LoadFailed, OutOfMemory, UnsupportedModel
from backends.contract.protocol import MemoryNeed, ModelInfo
from backends.engines import model_folder
from backends.engines.draft_model import check_vocabularies, say_undrafted
from backends.engines.sampling.truncation import SUPPORTED
from backends.engines.speculation import IS_OFF, STAYS
from backends.engines.tokenizing import known_info
from backends.engines.transformers import solo
from backends.engines.transformers.files import (
    CacheSize,
    buffers,
    cache_bytes,
    cache_size,
    computes_wide,
    draft,
    draft_options,
    layers_away,
    snapshot_bytes,
)
from backends.engines.transformers.forward import LayerPattern, batching_pattern
from backends.engines.transformers.memory import give_back, ran_out
from backends.engines.transformers.offload import device_map
from backends.engines.transformers.traced import TracedPasses, traced
from backends.engines.vocabulary import HfVocabulary
from config.engines import TransformersOptions
from config.values import Threads

log = structlog.get_logger(__name__)

FILES = ("adapter_config.json", "adapter_model.safetensors")  # pickled ones could run code


def add(model: Any, adapters: Mapping[str, str]) -> None:
    """All of them (name to folder), active together.

    Raises BackendMissing without peft, LoadFailed with the adapter's name.
    """
    if not adapters:
        return
    if not transformers.utils.is_peft_available():
        raise BackendMissing(f"LoRA adapters need peft: {command('adapters')}")
    around = None
    slots = [f"adapter-{number}" for number in range(len(adapters))]
    for slot, (name, given) in zip(slots, adapters.items(), strict=True):
        folder = Path(given).expanduser()
        with _named(name):  # peft would request a missing folder from the hub
            if missing := [file for file in FILES if not (folder / file).is_file()]:
                raise LoadFailed(f"{folder} lacks {' and '.join(missing)}")
            around = _add(model, around, slot, folder)
    assert around is not None
    around.base_model.set_adapter(slots, inference_mode=True)


def _add(model: Any, around: Any, slot: str, folder: Path) -> Any:
    """`around` is what peft keeps of the model, None before the first adapter; returns it.

    `slot` is the adapter's name within peft, which takes no dots.
    """
    import peft  # noqa: PLC0415 - takes a second, and few want it

    if around is None:
        config = peft.PeftConfig.from_pretrained(str(folder))
        if config.is_prompt_learning:
            raise LoadFailed("prompt learning is not supported; use LoRA or a similar method")
        config.inference_mode = True
        around = peft.PeftModel(model, config, slot, autocast_adapter_dtype=False)
    found = around.load_adapter(
        str(folder), slot, torch_device=str(model.device), autocast_adapter_dtype=False
    )
    missing = (key for key in found.missing_keys if slot in key.split("."))
    if odd := next(missing, None) or next(iter(found.unexpected_keys), None):
        raise LoadFailed(f"it was trained for another model: {odd} doesn't match")
    return around


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Every failure names the adapter at fault, except out of memory."""
    try:
        yield
    except Exception as error:
        if ran_out(error):
            raise
        words = shorten(str(error), 300, placeholder=" …")  # peft lists every layer
        raise LoadFailed(f"adapter {name!r} can't be used: {words}") from error


# transformers announces its progress through one hook for the whole process, so loads take turns.
_ONE_AT_A_TIME = threading.Lock()
OWN_TOKENIZER = "tokenizer.json"
Step = Callable[[float], bool]


class TransformersModel(msgspec.Struct):
    """A model and what was found out about it."""

    model: Any
    processor: Any  # None: no image encoder
    vocabulary: HfVocabulary
    info: ModelInfo
    device: torch.device
    pattern: LayerPattern | None  # None: it can't be batched
    traced: TracedPasses | None  # None: its passes run as they are
    limit: CacheSize
    snapshot_bytes: int  # that snapshots of sequences may take
    options: TransformersOptions
    drafting: "TransformersModel | None"  # the model that drafts
    threads: Threads

    def free(self) -> None:
        """Harmless a second time."""
        if self.drafting is not None:
            self.drafting.free()
        self.model = self.processor = self.traced = self.drafting = None
        give_back(self.device)


def load(files: ModelFiles, options: TransformersOptions, progress: Step) -> TransformersModel:
    """Load on the calling thread. `progress` gets 0.0 to 1.0; when it returns False the load is
    abandoned.

    Raises LoadFailed and its kinds, and leaves nothing behind.
    """
    with failing_in_our_words(files, options) as device:
        loaded = _load(files, options, device, progress)
    reason = undrafted(loaded)
    say_undrafted(files.path.name, reason, options)
    if not reason and (drafting := draft(options)) is not None:
        loaded = _with_draft(loaded, drafting, options, progress)
    return loaded


def undrafted(loaded: TransformersModel) -> str:
    """Why nothing is drafted; "": something may be."""
    if loaded.options.speculation.mode == "off":
        return IS_OFF
    if loaded.pattern is None:
        return "its requests share no passes"
    return STAYS if any(layer.states for layer in loaded.pattern.layers) else ""


def _with_draft(
    loaded: TransformersModel, files: ModelFiles, options: TransformersOptions, progress: Step
) -> TransformersModel:
    """With the model in `files` to draft for it."""
    try:
        with failing_in_our_words(files, draft_options(files, options)) as device:
            loaded.drafting = _load(files, draft_options(files, options), device, progress)
        _check_draft(loaded.drafting, loaded.vocabulary, files.path.name)
    except BaseException:
        loaded.free()
        raise
    if loaded.info.memory is not None:
        both = loaded.info.memory.plus(loaded.drafting.info.memory)
        loaded.info = msgspec.structs.replace(loaded.info, memory=both)
    return loaded


def _check_draft(loaded: TransformersModel, target: HfVocabulary, name: str) -> None:
    """Raises LoadFailed where it can't draft for a model with the vocabulary `target`."""
    if loaded.pattern is None or any(layer.states for layer in loaded.pattern.layers):
        raise LoadFailed(
            f"the draft model {name} needs layers of attention alone, in shared passes"
        )
    check_vocabularies(name, loaded.vocabulary, target)


@contextmanager
def failing_in_our_words(files: ModelFiles, options: TransformersOptions) -> Iterator[torch.device]:
    """Around a load onto the device that the options name: raises LoadFailed and its kinds, and
    gives back unreferenced memory.
    """
    device = _device(options.device)
    try:
        yield device
    except LoadFailed:
        raise
    except Exception as error:
        raise _translated(error, files, options) from error
    finally:
        give_back(device)


def _load(
    files: ModelFiles, options: TransformersOptions, device: torch.device, progress: Step
) -> TransformersModel:
    config = transformers.AutoConfig.from_pretrained(
        files.path, trust_remote_code=options.trust_remote_code
    )
    kind = _kind(config, sees="image" in files.modalities)
    made = _processor(files, options, config)  # fails sooner than the weights load
    model = model_of(kind, files, options, config, device, progress)
    rows = int(model.get_output_embeddings().weight.shape[0])
    vocabulary = vocabulary_of(files, options, rows)
    size = cache_size(files, options)
    settle_longrope(model, size.length)
    layers = model.config.get_text_config().num_hidden_layers
    pattern = batching_pattern(model)
    passes = None if pattern is None or options.compile else traced(model, pattern)
    together = options.max_concurrent if pattern is not None else 1
    progress(1.0)
    return TransformersModel(
        model=model,
        processor=made,
        vocabulary=vocabulary,
        info=msgspec.structs.replace(
            known_info(files, vocabulary, length=size.length, together=together),
            memory=_memory(model, files, options),
            layers={str(device): layers},
            response_template=_response_template(files),
            samplers=SUPPORTED,
            rewinds=True,
            constrains=True,
            penalties_first=True,
            tokenizer_path=tokenizer_path(files),
        ),
        device=device,
        pattern=pattern,
        traced=passes,
        limit=size,
        snapshot_bytes=snapshot_bytes(files, options),
        options=options,
        drafting=None,
        threads=options.threads if device.type == "cpu" else "all",
    )


def _memory(model: Any, files: ModelFiles, options: TransformersOptions) -> MemoryNeed:
    """Weights as they are held; the cache when it is full, which it is not yet."""
    tensors = (*model.parameters(), *model.buffers())
    return MemoryNeed(
        weights=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        cache=cache_bytes(files, options, model.dtype.itemsize),
        engine=buffers(files, options),
        snapshots=snapshot_bytes(files, options),
    )


def _device(name: str) -> torch.device:
    """Raises LoadFailed for a device that isn't there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise LoadFailed(f"invalid device {name!r}; use auto, cpu, cuda, cuda:0, …") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise LoadFailed(
            f"device {name!r} not found: torch has {torch.cuda.device_count()} CUDA devices"
        )
    return device


def _kind(config: Any, *, sees: bool) -> Any:
    """The auto class that makes this model. Raises UnsupportedModel for one that answers no prompt:
    an encoder and decoder (T5, Whisper), or one that takes sound.
    """
    kinds = {
        transformers.AutoModelForCausalLM: transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
        transformers.AutoModelForImageTextToText: transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    }
    own = getattr(config, "auto_map", None) or {}
    fitting = [
        kind for kind, known in kinds.items() if type(config) in known or kind.__name__ in own
    ]
    if config.is_encoder_decoder or not fitting:
        raise UnsupportedModel(
            f"the architecture {config.model_type!r} doesn't generate text; this backend supports "
            "causal language models and vision-language models"
        )
    return fitting[-1 if sees else 0]


def model_of(
    kind: Any,
    files: ModelFiles,
    options: TransformersOptions,
    config: Any,
    device: torch.device,
    progress: Step,
) -> Any:
    """The model on its device, in evaluation mode."""
    with _reporting(progress):
        model = kind.from_pretrained(
            files.path,
            config=config,
            dtype=_dtype(files, options, device),
            device_map=_device_map(kind, options, config, device),
            attn_implementation=options.attn_implementation,
            quantization_config=_quantization(options),
            trust_remote_code=options.trust_remote_code,
            local_files_only=True,
            use_safetensors=True,
        )
    add(model, options.adapters)
    model.eval()
    model.generation_config = transformers.GenerationConfig()  # sampling is ours alone
    if options.compile:
        model.compile(dynamic=True)
    return model


def _device_map(kind: Any, options: TransformersOptions, config: Any, device: torch.device) -> Any:
    """Where each module goes; None: the model is made in main memory, and stays there."""
    if device.type == "cpu":
        return None
    layers = config.get_text_config().num_hidden_layers
    if not (away := layers_away(layers, options)):
        return {"": device}
    return device_map(names_of(kind, options, config), away, str(device))


def names_of(kind: Any, options: TransformersOptions, config: Any) -> Sequence[str]:
    """Of the parameters and buffers that a model of this configuration has."""
    with torch.device("meta"):
        empty = kind.from_config(config, trust_remote_code=options.trust_remote_code)
    tied = empty.named_parameters(remove_duplicate=False)
    return [name for name, _ in itertools.chain(tied, empty.named_buffers())]


def settle_longrope(model: Any, length: int) -> None:
    """The same rotary frequencies at every position of requests of up to `length` tokens: the long
    factors where that is more than the model was first trained for, else the short ones, as
    llama.cpp and vLLM choose.

    transformers chooses at each pass, by the farthest position in it, for all of its rows: keys in
    the cache would be turned by one set of factors, and others of the same sequence by the other
    (modeling_rope_utils.py, longrope_frequency_update).
    """
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        for layer, kind in kinds.items() if isinstance(kinds, dict) else ((None, kinds),):
            if kind == "longrope":
                _settle(module, layer, length)


def _settle(module: Any, layer: str | None, length: int) -> None:
    """Both sets that `module` chooses from for this kind of `layer` become the one."""
    prefix = f"{layer}_" if layer else ""
    parameters = module.config.rope_parameters
    trained = (parameters[layer] if layer else parameters)["original_max_position_embeddings"]
    there = getattr(module, f"{prefix}inv_freq")
    asked = trained + 1 if length > trained else None
    settled, _ = ROPE_INIT_FUNCTIONS["longrope"](
        module.config, there.device, seq_len=asked, layer_type=layer
    )
    there.copy_(settled)
    setattr(module, f"{prefix}original_inv_freq", settled)
    setattr(module, f"{prefix}long_inv_freq", settled)


def _dtype(files: ModelFiles, options: TransformersOptions, device: torch.device) -> Any:
    if options.dtype != "auto":
        return getattr(torch, options.dtype)
    return torch.float32 if computes_wide(files, device.type) else "auto"


def _quantization(options: TransformersOptions) -> Any:
    """Raises BackendMissing without bitsandbytes."""
    if options.quantization is None:
        return None
    if not transformers.utils.is_bitsandbytes_available():
        raise BackendMissing(
            f"quantization {options.quantization!r} needs bitsandbytes: {command('quantization')}"
        )
    # It warns at every multiplication of numbers that aren't float16, which is most models'.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    four = options.quantization == "bnb-4bit"
    return transformers.BitsAndBytesConfig(
        load_in_4bit=four, load_in_8bit=not four, bnb_4bit_compute_dtype=torch.bfloat16
    )


@contextmanager
def _reporting(progress: Step) -> Iterator[None]:
    """While entered, transformers' loading of weights reports to `progress`, and can be abandoned
    there.
    """

    def counted(items: Collection[Any]) -> Iterator[Any]:
        """What transformers iterates over in place of its progress bar."""
        for done, item in enumerate(items):
            if not progress(done / len(items)):
                raise LoadFailed("the load was cancelled")
            yield item

    def hook(factory: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if named.get("desc") == "Loading weights" and arguments:
            return counted(arguments[0])
        return factory(*arguments, **named)

    with _ONE_AT_A_TIME:
        before = transformers_logging.set_tqdm_hook(hook)
        try:
            yield
        finally:
            transformers_logging.set_tqdm_hook(before)


def _processor(files: ModelFiles, options: TransformersOptions, config: Any) -> Any:
    if "image" not in files.modalities:
        return None
    return solo.load(files.path, config, trust_remote_code=options.trust_remote_code)


def vocabulary_of(files: ModelFiles, options: TransformersOptions, size: int) -> HfVocabulary:
    """By the folder's own; where there is none, by the one transformers makes."""
    if (files.path / OWN_TOKENIZER).is_file():
        return HfVocabulary(files.path, size)
    trust = options.trust_remote_code
    tokenizer = transformers.AutoTokenizer.from_pretrained(files.path, trust_remote_code=trust)
    with tempfile.TemporaryDirectory() as made:
        tokenizer.save_pretrained(made)
        for name in ("config.json", "generation_config.json"):  # they name the end tokens
            if (files.path / name).is_file():
                shutil.copy(files.path / name, made)
        return HfVocabulary(Path(made), size)


def build(loaded: TransformersModel) -> str:
    """The versions of what computes, and in which numbers: another card may choose others."""
    versions = f"transformers {transformers.__version__} torch {torch.__version__}"
    return f"{versions} {loaded.model.dtype}"


def _response_template(files: ModelFiles) -> str | None:
    named = model_folder.read_json_if_there(files.path / "tokenizer_config.json")
    response = named.get("response_template")
    return msgspec.json.encode(response).decode() if response else None


def _translated(error: Exception, files: ModelFiles, options: TransformersOptions) -> LoadFailed:
    """A foreign failure as one of ours; the kinds say what can be done about it."""
    words = str(error)
    if ran_out(error):
        return OutOfMemory(f"not enough memory for {files.path.name}: {words}")
    if isinstance(error, ImportError):
        return BackendMissing(
            f"{files.path.name} needs a library that isn't installed, or can't be used here: "
            f"{words.strip()}{_because(error)}"
        )
    if "trust_remote_code" in words and not options.trust_remote_code:
        return LoadFailed(
            f"{files.path.name} contains custom code, which runs only with the option "
            "`trust_remote_code: true`; review the code first"
        )
    if isinstance(error, ValueError | KeyError) and "architecture" in words.lower():
        return UnsupportedModel(
            f"this release of transformers ({transformers.__version__}) doesn't support "
            f"the architecture {files.architecture!r}"
        )
    return LoadFailed(f"{files.path.name} can't be loaded: {type(error).__name__}: {words}")


def _because(error: ImportError) -> str:
    """The library imports its modules late and reports only their names; the reason lies below."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return f" ({cause})" if cause is not error else ""


def tokenizer_path(files: ModelFiles) -> str | None:
    """See `ModelInfo.tokenizer_path`: one that was converted is nowhere else."""
    return str(files.path) if (files.path / OWN_TOKENIZER).is_file() else None
