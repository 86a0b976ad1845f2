"""Options to models in memory: the model, its cache, a draft model, a vision tower, adapters.

Knows what exllamav2 wants to be called like and in which order, not how it is then stepped.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch

from backends import generation_config, hf_folder
from backends.catalog import ModelFiles
from backends.errors import BackendError, LoadFailed, OutOfMemory, UnsupportedModel
from backends.exllamav2.files import PAGE, Shape, draft, shape
from backends.exllamav2.library import Library, ran_out
from backends.exllamav2.pictures import Pictures
from backends.exllamav2.sampling import SUPPORTED, SUPPORTED_WITH_GUESSES
from backends.hf_vocabulary import Vocabulary
from backends.protocol import ModelInfo, Progress
from config.engines import ExLlamaV2Options

MEGABYTE = 1 << 20

Tell = Callable[[Progress], bool]  # False: nobody wants the model any more


class Placed(msgspec.Struct, frozen=True):
    """A model on its devices, and its cache."""

    model: Any  # ExLlamaV2
    cache: Any  # ExLlamaV2CacheBase


class Loaded:
    """What the engine works with. `free` gives all of it back; nothing here is of use then.

    `generator` is an `ExLlamaV2DynamicGenerator` over the models and caches.
    """

    def __init__(self, library: Library, options: ExLlamaV2Options, plan: Shape) -> None:
        self.library = library
        self.options = options
        self.plan = plan
        self.main: Placed
        self.draft: Placed | None = None
        self.tokenizer: Any
        self.vocabulary: Vocabulary
        self.loras: list[Any] = []
        self.pictures: Pictures | None = None
        self.paged = False
        self.info: ModelInfo
        self.generator: Any = None
        self._unloading = ExitStack()

    def unload_later(self, part: Any) -> None:
        """`part`'s own `unload` is called by `free`, the newest part first."""
        self._unloading.callback(part.unload)

    def renew(self) -> None:
        """Make a new generator; the one before, and its page table, are forgotten."""
        self._dismiss()
        drafted = self.plan.drafted
        self.generator = self.library.generator(
            model=self.main.model,
            cache=self.main.cache,
            tokenizer=self.tokenizer,
            max_batch_size=self.info.max_concurrent,
            max_q_size=drafted + 1,  # positions looked at in one step for one job
            draft_model=self.draft.model if self.draft else None,
            draft_cache=self.draft.cache if self.draft else None,
            num_draft_tokens=drafted,
            use_ngram_draft=self.options.ngram_speculation,
            paged=self.paged,
            filter_background_eval=False,  # we use no filters, so its threads would idle
        )
        if self.loras:
            self.generator.set_loras(self.loras)

    def _dismiss(self) -> None:
        if self.generator is not None:
            self.generator.sampling_pool.shutdown(wait=False)  # its threads would stay
            self.generator = None
            give_back()

    def free(self) -> None:
        self._dismiss()
        self._unloading.close()
        for name in ("main", "draft", "tokenizer", "loras", "pictures"):
            setattr(self, name, None)
        give_back()


def give_back() -> None:
    """Return what nobody holds any more to the device. CUDA's context itself stays."""
    gc.collect()
    torch.cuda.empty_cache()


@contextmanager
def undisturbed() -> Iterator[None]:
    """exllamav2 makes its own stream on the last card the thread's current one, and this thread
    will load other models too.
    """
    if not torch.cuda.is_available():
        yield
        return
    stream = torch.cuda.current_stream()
    try:
        yield
    finally:
        torch.cuda.set_stream(stream)  # its card becomes the current one with it


def load(files: ModelFiles, options: ExLlamaV2Options, library: Library, tell: Tell) -> Loaded:
    """Load on the calling thread. Raises LoadFailed and leaves nothing behind."""
    try:
        with undisturbed():
            return _load(files, options, library, tell)
    except Exception as error:  # noqa: BLE001 - the library raises whatever it likes
        failure = _translated(files, error)
    # Out here the error is gone, and with it the frames that held tensors.
    give_back()
    raise failure


def _translated(files: ModelFiles, error: Exception) -> BackendError:
    if isinstance(error, BackendError):
        return error.with_traceback(None)
    if ran_out(error):
        return OutOfMemory(f"no room for {files.path.name}: {error}")
    return LoadFailed(f"exllamav2 can't load {files.path.name}: {type(error).__name__}: {error}")


def _load(files: ModelFiles, options: ExLlamaV2Options, library: Library, tell: Tell) -> Loaded:
    guess = draft(options)
    loaded = Loaded(library, options, shape(files, options))
    try:
        config = _config(loaded, files.path)
        loaded.tokenizer = library.tokenizer(config)
        loaded.vocabulary = Vocabulary(files.path, config.vocab_size)
        loaded.paged = _paged(library, config)
        tower = _vision(loaded, files, config, tell)
        if guess is not None:
            loaded.draft = _place(loaded, _config(loaded, guess.path), "draft", tell)
        loaded.main = _place(loaded, config, "model", tell)
        loaded.loras = [_lora(loaded, Path(path)) for path in options.adapters.values()]
        if tower is not None:
            model = loaded.main.model
            loaded.pictures = Pictures(tower, model, loaded.tokenizer, loaded.vocabulary)
        loaded.info = _info(loaded, files, config)
        loaded.renew()
    except BaseException:
        loaded.free()
        raise
    return loaded


# -- one model -------------------------------------------------------------------------------------


def _config(loaded: Loaded, folder: Path) -> Any:
    options, chunk = loaded.options, -(-loaded.options.chunk_size // PAGE) * PAGE
    config = loaded.library.config(str(folder))
    if config.arch.arch_string != config.architecture:  # it would be run as a Llama
        raise UnsupportedModel(f"exllamav2 doesn't know the architecture {config.architecture}")
    config.arch_compat_overrides(quiet=True)
    _read_new_rope(config, folder)
    config.max_seq_len = loaded.plan.positions
    config.max_input_len = min(chunk, loaded.plan.positions)
    config.max_attention_size = config.max_input_len**2
    if options.rope_scale is not None:
        config.scale_pos_emb = options.rope_scale
    if options.rope_alpha is not None:
        config.scale_alpha_value = options.rope_alpha
    return config


def _read_new_rope(config: Any, folder: Path) -> None:
    """What transformers 5 writes as `rope_parameters`, exllamav2 0.3.2 does not look at: it would
    silently take its own default. Raises UnsupportedModel for what can't be carried over.
    """
    text = hf_folder.text_config(hf_folder.read_json(folder / "config.json"))
    rope = text.get("rope_parameters")
    if not isinstance(rope, dict):
        return
    if "rope_theta" in rope:
        config.rotary_embedding_base = float(rope["rope_theta"])
    if rope.get("rope_type", "default") != "default" and not text.get("rope_scaling"):
        raise UnsupportedModel(
            f"{folder / 'config.json'} tells its positions' scaling in rope_parameters alone, "
            "which exllamav2 can't read; repeat it there as rope_scaling"
        )


def _paged(library: Library, config: Any) -> bool:
    """Whether flash-attn is there; without it jobs run one after another."""
    try:
        library.assert_paged()
    except AssertionError:
        return False
    return not config.no_flash_attn


def _place(loaded: Loaded, config: Any, stage: str, tell: Tell) -> Placed:
    library, options = loaded.library, loaded.options
    model = library.model(config)
    loaded.unload_later(model)
    cache_class, cells = library.caches[options.cache_type], loaded.plan.cells
    callback = _telling(stage, tell)
    if options.gpu_split:
        model.load(gpu_split=list(options.gpu_split), callback=callback)
        return Placed(model, cache_class(model, max_seq_len=cells))
    cache = cache_class(model, max_seq_len=cells, lazy=True)
    reserve = _reserve(options, library.devices)
    model.load_autosplit(cache, reserve_vram=reserve, last_id_only=True, callback=callback)
    return Placed(model, cache)


def _reserve(options: ExLlamaV2Options, devices: int) -> list[int]:
    """Bytes for every card; what is said of the last card holds for those after it."""
    told = options.autosplit_reserve or (0.0,)
    return [int(told[min(card, len(told) - 1)] * MEGABYTE) for card in range(devices)]


def _telling(stage: str, tell: Tell) -> Callable[[int, int], None]:
    """exllamav2's callback: module `done` of `total` is loaded."""

    def callback(done: int, total: int) -> None:
        if not tell(Progress(stage, done, total)):
            raise LoadFailed("nobody wants the model any more")

    return callback


# -- what belongs to it ----------------------------------------------------------------------------


def _vision(loaded: Loaded, files: ModelFiles, config: Any, tell: Tell) -> Any:
    """The vision tower, if the model sees; exllamav2 can't combine pictures with guesses."""
    if "image" not in files.modalities or loaded.plan.drafted:
        return None
    tower = loaded.library.vision(config)
    loaded.unload_later(tower)
    tower.load(callback=_telling("vision", tell))
    return tower


def _lora(loaded: Loaded, folder: Path) -> Any:
    lora = loaded.library.lora.from_directory(loaded.main.model, str(folder))
    loaded.unload_later(lora)
    return lora


def _info(loaded: Loaded, files: ModelFiles, config: Any) -> ModelInfo:
    plan, vocabulary = loaded.plan, loaded.vocabulary
    together = min(loaded.options.max_concurrent, config.max_input_len // (plan.drafted + 1))
    return ModelInfo(
        backend="exllamav2",
        format=files.format,
        architecture=files.architecture,
        context_length=plan.length,
        max_concurrent=together if loaded.paged else 1,
        vocab_size=vocabulary.size,
        size_bytes=files.size_bytes,
        chat_template=files.chat_template,
        special=vocabulary.special,
        adds_bos=vocabulary.adds_bos,
        modalities=("text", "image") if loaded.pictures else ("text",),
        samplers=SUPPORTED_WITH_GUESSES if plan.drafted else SUPPORTED,
        generation_defaults=generation_config.read(files.path),
    )
