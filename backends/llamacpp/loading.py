"""Options to a loaded model and context: progress, cancellation, and llama.cpp's own words when it
fails.
"""

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable

import msgspec
from llama_cpp import llama_cpp as api

from backends.catalog import ModelFiles
from backends.errors import LoadFailed, OutOfMemory
from backends.llamacpp.files import cache_layout, context_length, estimate
from backends.llamacpp.sampling import SUPPORTED
from backends.llamacpp.vocabulary import Vocabulary
from backends.protocol import ModelInfo
from config.engines import LlamaCppOptions

CACHE_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "bf16": 30,
}  # ggml_type
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}  # llama_flash_attn_type
ANNOYED = (3, 4)  # ggml_log_level (ggml.h): warning, error

_words = threading.local()  # what llama.cpp logged on this thread while it loaded


@api.llama_log_callback  # type: ignore[untyped-decorator]
def _listen(level: int, text: bytes, _data: ctypes.c_void_p) -> None:
    if level in ANNOYED:
        heard = _words.__dict__.setdefault("heard", deque(maxlen=3))
        heard.append(text.decode(errors="replace").strip())


class Loaded(msgspec.Struct, frozen=True):
    """What the engine works with. `free` gives all of it back."""

    model: api.llama_model_p
    context: api.llama_context_p
    vocabulary: Vocabulary
    info: ModelInfo
    slots: int
    cells: int
    split: bool  # each sequence has its own part of the cache
    batch_size: int
    on_device: bool  # decoding runs on beside the CPU

    def free(self) -> None:
        api.llama_free(self.context)
        api.llama_model_free(self.model)


def load(files: ModelFiles, options: LlamaCppOptions, progress: Callable[[float], bool]) -> Loaded:
    """Load on the calling thread. `progress` gets 0.0 to 1.0; when it returns False the load is
    abandoned.

    Raises LoadFailed or OutOfMemory and leaves nothing behind.
    """
    _refuse_the_impossible(files, options)
    api.llama_log_set(_listen, None)
    _words.__dict__.pop("heard", None)
    layout = cache_layout(files, options)
    model = _load_model(files, options, progress)
    try:
        vocabulary = Vocabulary(model)
        context = _make_context(model, files, options)
    except BaseException:
        api.llama_model_free(model)
        raise
    return Loaded(
        model=model,
        context=context,
        vocabulary=vocabulary,
        info=_info(model, vocabulary, files, options),
        slots=layout.slots,
        cells=layout.cells,
        split=layout.split,
        batch_size=options.batch_size,
        on_device=bool(api.llama_supports_gpu_offload()) and options.gpu_layers != 0,
    )


def _refuse_the_impossible(files: ModelFiles, options: LlamaCppOptions) -> None:
    """What can't go well: a projector, which nothing here feeds with pictures yet; and more memory
    than there is, since the system's out-of-memory killer would end the process.
    """
    if options.mmproj is not None:
        raise LoadFailed("projectors (mmproj) can't be used yet: without the option it reads text")
    need, there = estimate(files, options), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if need.total > there and not api.llama_supports_gpu_offload():
        raise OutOfMemory(
            f"no room for {files.path.name}: weights {need.weights:,} and KV cache "
            f"{need.cache:,} bytes, the machine has {there:,}"
        )


def _load_model(
    files: ModelFiles, options: LlamaCppOptions, progress: Callable[[float], bool]
) -> api.llama_model_p:
    params = api.llama_model_default_params()
    params.n_gpu_layers = options.gpu_layers
    params.main_gpu = options.main_gpu
    params.load_mode = (
        options.mmap * api.LLAMA_LOAD_MODE_MMAP + options.mlock * api.LLAMA_LOAD_MODE_MLOCK
    )
    if options.tensor_split:
        split = (ctypes.c_float * api.llama_max_devices())(*options.tensor_split)
        params.tensor_split = split
    callback = api.llama_progress_callback(lambda done, _data: progress(done))
    params.progress_callback = callback
    model = api.llama_model_load_from_file(str(files.path).encode(), params)
    if not model:
        raise LoadFailed(f"llama.cpp can't load {files.path.name}: {_last_words()}")
    return model  # type: ignore[no-any-return]


def _make_context(
    model: api.llama_model_p, files: ModelFiles, options: LlamaCppOptions
) -> api.llama_context_p:
    layout = cache_layout(files, options)
    params = api.llama_context_default_params()
    params.n_ctx = layout.cells
    params.n_seq_max = layout.slots
    params.n_outputs_max = layout.slots
    params.kv_unified = not layout.split
    params.n_batch = options.batch_size
    params.n_ubatch = min(options.micro_batch_size, options.batch_size)
    params.n_threads = options.threads or _processors()
    params.n_threads_batch = options.threads_batch or params.n_threads
    params.type_k = CACHE_TYPES[options.cache_type_k]
    params.type_v = CACHE_TYPES[options.cache_type_v]
    params.flash_attn_type = FLASH_ATTENTION[options.flash_attention]
    params.rope_freq_base = options.rope_freq_base or 0.0
    params.rope_freq_scale = options.rope_freq_scale or 0.0
    context = api.llama_init_from_model(model, params)
    if not context:
        raise OutOfMemory(f"no room for the KV cache of {layout.cells} tokens: {_last_words()}")
    return context  # type: ignore[no-any-return]


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _last_words() -> str:
    return "; ".join(getattr(_words, "heard", ())) or "it gave no reason"


def _info(
    model: api.llama_model_p, vocabulary: Vocabulary, files: ModelFiles, options: LlamaCppOptions
) -> ModelInfo:
    template = api.llama_model_chat_template(model, None)
    return ModelInfo(
        backend="llamacpp",
        format=files.format,
        architecture=files.architecture,
        context_length=context_length(files, options),
        max_concurrent=options.max_concurrent,
        vocab_size=vocabulary.size,
        size_bytes=files.size_bytes,
        chat_template=template.decode() if template else None,
        special=vocabulary.special,
        adds_bos=vocabulary.adds_bos,
        samplers=SUPPORTED,
    )
