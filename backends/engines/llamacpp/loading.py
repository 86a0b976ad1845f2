"""Options to a loaded model and context: progress, cancellation, errors."""

import ctypes
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from backends.contract.catalog import ModelFiles, loadable_adapters
from backends.contract.errors import BackendMissing, GenerationFailed, LoadFailed, OutOfMemory
from backends.contract.protocol import ModelInfo
from backends.engines.draft_model import say_undrafted
from backends.engines.llamacpp.draft import LlamaDraftModel
from backends.engines.llamacpp.draft import check as check_drafter
from backends.engines.llamacpp.files import (
    INSTALLATION,
    adapter_paths,
    draft,
    draft_options,
    estimate,
    fitted,
    layers_on_cards,
)
from backends.engines.llamacpp.files import vocabulary as metadata_alone
from backends.engines.llamacpp.layout import (
    CACHE_BITS,
    CACHE_TYPES,
    MOST_SLOTS,
    Layout,
    cache_layout,
    context_length,
    keys_of_a_layer,
    outputs,
    snapshot_bytes,
    states_back,
    undrafted,
)
from backends.engines.llamacpp.library import Context, api
from backends.engines.llamacpp.load_log import (
    LISTENER,
    buffers_in,
    last_errors,
    layers,
    listen,
    memory_taken,
    said,
)
from backends.engines.llamacpp.offloading import (
    handle,
    override,
    parts_of_cards,
    spread,
    without_experts,
)
from backends.engines.llamacpp.sampling import SUPPORTED
from backends.engines.llamacpp.vocabulary import LlamaVocabulary
from backends.engines.threads import StepThreads, most
from backends.engines.tokenizing import known_info
from backends.machine import devices, ggml
from backends.machine.control_groups import main_memory
from backends.machine.prebuilt import ggml_version
from backends.machine.writers import changeable
from config.engines import LlamaCppOptions
from config.values import Threads

if TYPE_CHECKING:
    from backends.engines.llamacpp.pictures import MtmdEncoder

log = structlog.get_logger(__name__)


FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}  # llama_flash_attn_type
MOST_CELLS = 2**31 - 1
OUT_OF_MEMORY = -2  # llama_decode: buffers could not be allocated


class LoadedLlama(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine works with. `free` gives all of it back; harmless a second time."""

    context: Context
    vocabulary: LlamaVocabulary
    info: ModelInfo
    threads: StepThreads
    on_device: bool  # decoding runs on beside the CPU
    held: ExitStack  # gives back the newest first

    def free(self) -> None:
        self.held.close()


class LlamaModel(LoadedLlama, frozen=True, kw_only=True):
    """A model that writes."""

    options: LlamaCppOptions
    layout: Layout
    cell_bytes: int  # of one cell at 16 bits, over all layers
    outputs: int  # rows of a batch whose logits may be wanted
    micro_batch_size: int  # rows of one pass over the graph
    snapshot_bytes: int  # that snapshots of sequences may take
    pictures: "MtmdEncoder | None" = None  # None: it reads text
    draft_model: LlamaDraftModel | None = None
    adapters: tuple[api.llama_adapter_lora_p, ...] = ()  # freed with the model


class Loading(msgspec.Struct, frozen=True):
    """A load under way: `progress` gets 0.0 to 1.0, and abandons it by returning False; `held`
    gives back what is there so far.
    """

    files: ModelFiles
    options: LlamaCppOptions
    progress: Callable[[float], bool]
    held: ExitStack

    def weights(self) -> api.llama_model_p:
        """Raises LoadFailed."""
        files, options = self.files, self.options
        _warn_unheeded(options)
        if options.mmap:
            warn_of_writers(files)
        params = api.llama_model_default_params()
        params.n_gpu_layers = layers_on_cards(options)
        override(params, without_experts(files, options, ggml.here().main_memory()))
        params.load_mode = (
            options.mmap * api.LLAMA_LOAD_MODE_MMAP + options.mlock * api.LLAMA_LOAD_MODE_MLOCK
        )
        params.use_extra_bufts = files.repacked
        if not files.repacked:
            log.warning(
                "llama.cpp was compiled by a GCC that breaks AMX: quantized weights go without"
            )
        spread(params, options)
        callback = api.llama_progress_callback(lambda done, _data: self.progress(done))
        params.progress_callback = callback
        model = api.llama_model_load_from_file(str(files.path).encode(), params)
        if not model:
            reason = last_errors()
            kind = OutOfMemory if "unable to allocate" in reason else LoadFailed
            raise kind(f"llama.cpp can't load {files.path.name}: {reason}")
        self.held.callback(api.llama_model_free, model)
        return model

    def vocabulary(self, model: api.llama_model_p) -> LlamaVocabulary:
        vocabulary = LlamaVocabulary(model, self.files.path)
        self.held.callback(vocabulary.close)
        return vocabulary

    def context(
        self, model: api.llama_model_p, vocabulary_size: int, *, whole_window: bool = False
    ) -> Context:
        """Of a model that writes. `whole_window`: cells that a sliding window has left stay, so
        that it can be cut anywhere.
        """
        files, options = self.files, self.options
        layout = cache_layout(files, options)
        params = api.llama_context_default_params()
        params.n_ctx = layout.cells
        params.n_seq_max = layout.slots
        params.n_rs_seq = states_back(files, options)
        params.n_outputs_max = outputs(vocabulary_size, files, options)  # more of them abort
        params.kv_unified = not layout.split
        params.swa_full = whole_window
        params.n_batch = options.batch_size
        params.n_ubatch = min(options.micro_batch_size, options.batch_size)
        params.type_k = CACHE_TYPES[options.cache_type_k]
        params.type_v = CACHE_TYPES[options.cache_type_v]
        return self.context_of(model, params, f"the KV cache of {layout.cells} tokens")

    def context_of(self, model: api.llama_model_p, params: Any, what: str) -> Context:
        """With `params`, and those that all models have. Raises OutOfMemory, which says for `what`
        there is not enough.
        """
        options = self.options
        params.n_threads = most(options.threads)  # until the first step
        params.n_threads_batch = most(batch_threads(options))
        params.flash_attn_type = FLASH_ATTENTION[options.flash_attention]
        params.rope_freq_base = options.rope_freq_base or 0.0
        params.rope_freq_scale = options.rope_freq_scale or 0.0
        context = api.llama_init_from_model(model, params)
        if not context:
            raise OutOfMemory(f"not enough memory for {what}: {last_errors()}")
        self.held.callback(api.llama_free, context)
        return Context(api, context)

    def drafter(self, target: LlamaVocabulary) -> LlamaDraftModel | None:
        """The draft model, for a model with this vocabulary. Raises LoadFailed."""
        if (files := draft(self.files, self.options)) is None:
            return None
        options = draft_options(files, self.options)
        listen()
        loading = Loading(files, options, self.progress, self.held)
        model = loading.weights()
        vocabulary = loading.vocabulary(model)
        check_drafter(files, model, vocabulary, target)
        context = loading.context(model, vocabulary.size, whole_window=True)
        return LlamaDraftModel(
            context,
            vocabulary.size,
            cache_layout(files, options),
            context_length(files, options),
            options.batch_size,
            step_threads(context, options),
            memory_taken(files),
        )

    def pictures(
        self, model: api.llama_model_p, vocabulary: LlamaVocabulary
    ) -> "MtmdEncoder | None":
        """The image encoder, which not every build has. Raises LoadFailed, or BackendMissing."""
        path, options = self.files.projector, self.options
        if path is None:
            return None
        try:
            from llama_cpp import mtmd_cpp as mtmd  # noqa: PLC0415

            from backends.engines.llamacpp.pictures import MtmdEncoder  # noqa: PLC0415
        except (ImportError, OSError, RuntimeError) as error:
            raise BackendMissing(
                f"this build of llama-cpp-python doesn't support images ({error}); `vision: false` "
                "loads the model for text"
            ) from error
        mtmd.mtmd_helper_log_set(LISTENER, None)  # sets mtmd's own with it
        params = mtmd.mtmd_context_params_default()
        params.use_gpu = on_device(options)
        if params.use_gpu and (cards := parts_of_cards(options, list(devices.of_llamacpp()))):
            params.device = handle(next(iter(cards)))  # where the model begins
        params.print_timings = False
        params.n_threads = most(batch_threads(options))
        params.flash_attn_type = FLASH_ATTENTION[options.flash_attention]
        callback = mtmd.mtmd_progress_callback(lambda _done, _data: self.progress(1.0))
        params.progress_callback = callback
        pointer = mtmd.mtmd_init_from_file(str(path).encode(), model, params)
        if not pointer:
            raise LoadFailed(
                f"the projector {path.name} can't be loaded: {last_errors()}; "
                "`vision: false` loads the model for text"
            )
        at_once = min(options.micro_batch_size, options.batch_size)
        made = MtmdEncoder(pointer, vocabulary, at_once=at_once, batch_size=options.batch_size)
        self.held.callback(made.free)
        return made


def load(
    files: ModelFiles, options: LlamaCppOptions, progress: Callable[[float], bool]
) -> LlamaModel:
    """Load on the calling thread. `progress` gets 0.0 to 1.0; when it returns False the load is
    abandoned.

    Raises LoadFailed or OutOfMemory and leaves nothing behind.
    """
    files = fitted(files, options)
    listen()
    refuse_the_impossible(files, options)
    say_undrafted(files.path.name, undrafted(files, options), options)
    with ExitStack() as undone:
        loading = Loading(files, options, progress, undone)
        model = loading.weights()
        vocabulary = loading.vocabulary(model)
        pairs = zip(options.adapters, adapter_paths(options), strict=True)
        # Before the context, whose graph has them.
        loras = tuple(_load_adapter(model, name, path) for name, path in pairs)
        context = loading.context(model, vocabulary.size)
        pictures = loading.pictures(model, vocabulary)
        info = info_of(vocabulary, files, options, pictures)
        drafter = loading.drafter(vocabulary)
        if drafter is not None and info.memory is not None:
            info = msgspec.structs.replace(info, memory=info.memory.plus(drafter.memory))
        if on_device(options):
            layout = cache_layout(files, options)
            warm_up(context, at_once=min(options.micro_batch_size, layout.cells // layout.slots))
        made = loaded(files, options, context, vocabulary, info, undone)
        return msgspec.structs.replace(made, pictures=pictures, draft_model=drafter, adapters=loras)


def loaded(
    files: ModelFiles,
    options: LlamaCppOptions,
    context: Context,
    vocabulary: LlamaVocabulary,
    info: ModelInfo,
    held: ExitStack,
) -> LlamaModel:
    """What an engine works with, by the options: text alone. Takes over what is `held`."""
    return LlamaModel(
        context=context,
        vocabulary=vocabulary,
        info=info,
        options=options,
        layout=cache_layout(files, options),
        cell_bytes=files.cache_bytes_per_token,
        outputs=outputs(vocabulary.size, files, options),
        micro_batch_size=min(options.micro_batch_size, options.batch_size),
        snapshot_bytes=snapshot_bytes(files, options),
        threads=step_threads(context, options),
        on_device=on_device(options),
        held=held.pop_all(),
    )


def refuse_the_impossible(files: ModelFiles, options: LlamaCppOptions) -> None:
    """Raises LoadFailed for what can't succeed: more cells or sequences than llama.cpp counts, and
    more memory than there is, since the system's out-of-memory killer would end the process.
    """
    layout = cache_layout(files, options)
    if layout.cells > MOST_CELLS:  # it would be taken for another number
        raise OutOfMemory(
            f"not enough memory for {files.path.name}: KV cache of {layout.cells:,} tokens"
        )
    if options.flash_attention == "off" and CACHE_BITS[options.cache_type_v] < 16:
        raise LoadFailed(
            f"cache_type_v {options.cache_type_v} needs flash attention, and flash_attention is off"
        )
    if layout.slots > MOST_SLOTS:
        raise LoadFailed(f"llama.cpp runs at most {MOST_SLOTS} requests at once: max_concurrent")
    need, there = estimate(files, options), main_memory()
    if need.total > there and not api.llama_supports_gpu_offload():
        raise OutOfMemory(
            f"not enough memory for {files.path.name}: weights {need.weights:,} and KV cache "
            f"{need.cache:,} bytes, the machine has {there:,}"
        )
    size = keys_of_a_layer(files, options)
    for card in parts_of_cards(options, list(devices.of_llamacpp())) if on_device(options) else ():
        if not ggml.here().takes(devices.of_llamacpp()[card], size):
            raise OutOfMemory(
                f"not enough memory for {files.path.name}: with a KV cache of {layout.cells:,} "
                f"tokens the keys of a layer are {size:,} bytes, more than {card} allows in one "
                "buffer"
            )


def _load_adapter(model: api.llama_model_p, name: str, path: Path) -> api.llama_adapter_lora_p:
    """Raises LoadFailed, which names the adapter."""
    adapter = api.llama_adapter_lora_init(model, str(path).encode()) if path.is_file() else None
    if not adapter:
        reason = last_errors() if path.is_file() else f"there is no file {path}"
        raise LoadFailed(f"adapter {name!r} can't be used: {reason}")
    if api.llama_adapter_get_alora_n_invocation_tokens(adapter):
        raise LoadFailed(f"adapter {name!r} can't be used: it begins at tokens of its own (aLoRA)")
    return adapter


def use_adapters(loaded: LlamaModel, scales: Sequence[float]) -> None:
    """Compute with its adapters at these scales from now on."""
    chosen = [pair for pair in zip(loaded.adapters, scales, strict=True) if pair[1]]
    pointers = (api.llama_adapter_lora_p_ctypes * len(chosen))()
    for place, (adapter, _) in enumerate(chosen):
        pointers[place] = adapter
    numbers = (ctypes.c_float * len(chosen))(*(scale for _, scale in chosen))
    if api.llama_set_adapters_lora(loaded.context, pointers, len(chosen), numbers):
        raise GenerationFailed("llama.cpp can't use the adapters")


def load_vocabulary(path: Path) -> LlamaVocabulary:
    """The vocabulary alone, without weights and device. Raises LoadFailed."""
    listen()
    params = api.llama_model_default_params()
    params.vocab_only = True
    params.n_gpu_layers = 0
    # No device at all: to look for one opens it, and CUDA's context takes hundreds of megabytes of
    # each card in a process that computes nothing there.
    none = (ctypes.c_void_p * 1)()
    params.devices = ctypes.addressof(none)
    model = api.llama_model_load_from_file(str(path).encode(), params)
    if not model:  # it may have tensors that ik_llama.cpp alone knows
        with NamedTemporaryFile(suffix=".gguf") as bare:
            bare.write(metadata_alone(path)[path.name])
            bare.flush()
            model = api.llama_model_load_from_file(bare.name.encode(), params)
    if not model:
        raise LoadFailed(f"llama.cpp can't read the vocabulary of {path.name}: {last_errors()}")
    vocabulary = LlamaVocabulary(model, path)
    weakref.finalize(vocabulary, api.llama_model_free, model)
    return vocabulary


def _warn_unheeded(options: LlamaCppOptions) -> None:
    """Layers on a card were asked for by their number, or there is a card, but none is used."""
    if not api.llama_supports_gpu_offload() and (
        layers_on_cards(options) > 0 or (options.gpu_layers and devices.memory())
    ):
        log.warning(
            "no GPU is used: this llama.cpp was built without GPU support",
            gpu_layers=options.gpu_layers,
            rebuild=INSTALLATION.for_cards,
        )


def warn_of_writers(files: ModelFiles) -> None:
    """A mapped file that gets shorter ends the process (SIGBUS); one that is written over answers
    with what is written.
    """
    if (where := changeable(files.parts or (files.path,))) is not None:
        log.warning(
            "other users may write to a mapped model: if its file gets shorter, this process ends",
            model=files.path.name,
            writable=str(where),
            remedy="remove their write permission, or set mmap: false",
        )


def warm_up(context: Context, *, at_once: int) -> None:
    """Compute a prompt of `at_once` tokens and one token more, and forget them. A device compiles
    its kernels and takes their buffers when it meets them first, which belongs to the load; no
    later request waits for it then. Raises OutOfMemory, LoadFailed.
    """
    api = context.api
    memory = api.llama_get_memory(context)
    compute = api.llama_decode if memory else api.llama_encode
    for count in (at_once, 1):
        tokens = (api.llama_token * count)()  # the first of the vocabulary
        status = compute(context, api.llama_batch_get_one(tokens, count))
        if status == OUT_OF_MEMORY:
            raise OutOfMemory(f"not enough memory for a pass over {count} tokens: {last_errors()}")
        if status:
            raise LoadFailed(f"the first pass failed with code {status}: {last_errors()}")
        api.llama_synchronize(context)
        if memory:  # the prompt may fill all cells
            api.llama_memory_clear(memory, True)


def batch_threads(options: LlamaCppOptions) -> Threads | None:
    """The option for a step of several tokens."""
    return options.threads if options.threads_batch is None else options.threads_batch


def step_threads(context: Context, options: LlamaCppOptions) -> StepThreads:
    """What times the steps of `context` and sets its threads."""

    def use(count: int) -> None:
        context.api.llama_set_n_threads(context, count, count)

    batch = batch_threads(options)
    return StepThreads(options.threads, batch, use, beside=on_device(options))


def on_device(options: LlamaCppOptions) -> bool:
    """Whether a card computes, beside the CPU."""
    return ggml.offloads() and options.gpu_layers != 0 and bool(ggml.here().handles())


def build() -> str:
    """The versions of bindings, library and states, and how the library was compiled."""
    versions = f"{version('llama-cpp-python')}, {ggml_version(api._lib)}"  # noqa: SLF001 - the loaded library
    return f"{versions}, {api.LLAMA_STATE_SEQ_VERSION} {api.llama_print_system_info().decode()}"


def info_of(
    vocabulary: LlamaVocabulary,
    files: ModelFiles,
    options: LlamaCppOptions,
    pictures: "MtmdEncoder | None",
) -> ModelInfo:
    """What is known of it, and what llama.cpp's log said of its load."""
    length = context_length(files, options)
    together = min(options.max_concurrent, cache_layout(files, options).slots)
    return msgspec.structs.replace(
        known_info(files, vocabulary, length=length, together=together),
        chat_template=files.chat_template,
        image_marker=pictures.marker if pictures else None,
        samplers=SUPPORTED,
        rewinds=True,
        scores_prompts=True,
        constrains=True,
        reports_progress=True,
        reports_after_samplers=True,
        undrafted=undrafted(files, options),
        keeps_slots=True,
        chooses_adapters=True,
        adapters=loadable_adapters(options.adapters, options.adapter_scaling),
        layers=layers(),
        buffers=buffers_in(said()),
        memory=memory_taken(files),
        build=build(),
    )
