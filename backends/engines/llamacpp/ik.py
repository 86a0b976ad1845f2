"""ik_llama.cpp as the library of the engine, behind the functions of llama.cpp that it calls.

With several sequences in one context ik_llama.cpp ends the process (flash attention: GGML_ASSERT(S
> 0)), and without flash attention it answers wrongly once cells were freed or copied. One sequence
with flash attention is right. So each has a context of its own here, over the same weights, and a
batch is computed sequence by sequence. Vocabulary and samplers are llama.cpp's.
"""

import ctypes
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import ik_llama_cpp._ctypes_api as bindings
import msgspec
import numpy as np

from backends.contract.catalog import ModelFiles
from backends.contract.errors import GenerationFailed, LoadFailed, OutOfMemory
from backends.engines.llamacpp import loading
from backends.engines.llamacpp.files import fitted, layers_on_cards
from backends.engines.llamacpp.layout import cache_layout, context_length
from backends.engines.llamacpp.libraries import RIGHT_ROWS, WRONG, on_cpu
from backends.engines.llamacpp.library import Context, differences
from backends.engines.llamacpp.loading import LlamaModel
from backends.engines.llamacpp.rows import draw_among
from backends.engines.threads import most
from backends.machine import devices, ik
from config.engines import LlamaCppOptions

# See `library.DEFAULTS`.
DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "llama_context_default_params": {
        "n_batch": 2048,
        "n_seq_max": 1,
        "rope_scaling_type": -1,
        "type_v": 1,
        "flash_attn": True,
        "mla_attn": 3,
        "graph_reuse": True,
        "min_experts": -1,
    },
    "llama_model_default_params": {"n_ubatch": 512, "n_v_last": -1, "use_mmap": True},
}
_POINTER, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int32, ctypes.c_size_t


def _function(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    """One that the bindings don't have."""
    function: Callable[..., Any] = bindings._lib[name]  # noqa: SLF001 - the loaded library
    function.restype, function.argtypes = result, arguments  # type: ignore[attr-defined]
    return function


_FIELDS = (("token", _INT), ("pos", _INT), ("n_seq_id", _INT), ("logits", ctypes.c_int8))
_seq = (_POINTER, _INT)
_seq_rm = _function("llama_kv_cache_seq_rm", ctypes.c_bool, *_seq, _INT, _INT)
_pos_min = _function("llama_kv_cache_seq_pos_min", _INT, *_seq)
_pos_max = _function("llama_kv_cache_seq_pos_max", _INT, *_seq)
_state = (_INT, ctypes.c_uint32)  # sequence, flags
_state_size = _function("llama_state_seq_get_size", _SIZE, _POINTER, *_state)
_state_get = _function("llama_state_seq_get_data", _SIZE, _POINTER, _POINTER, _SIZE, *_state)
_state_set = _function("llama_state_seq_set_data", _SIZE, _POINTER, _POINTER, _SIZE, *_state)
_set_threads = _function("llama_set_n_threads", None, _POINTER, ctypes.c_uint32, ctypes.c_uint32)
_log_set = _function("llama_log_set", None, type(loading.LISTENER), _POINTER)
_system_info = _function("llama_print_system_info", ctypes.c_char_p)
_supports_gpu_offload = _function("llama_supports_gpu_offload", ctypes.c_bool)
_main_memory = _function("ggml_backend_cpu_buffer_type", _POINTER)
_backends = _function("ggml_backend_reg_get_count", _SIZE)
_buffers_of = _function("ggml_backend_reg_get_default_buffer_type", _POINTER, _SIZE)
_name_of = _function("ggml_backend_buft_name", ctypes.c_char_p, _POINTER)
ALL, MOST_CARDS = 1 << 15, 16  # layers; GGML_CUDA_MAX_DEVICES


def load(
    files: ModelFiles, options: LlamaCppOptions, progress: Callable[[float], bool]
) -> LlamaModel:
    """As `loading.load`."""
    if wrong := differences(bindings, DEFAULTS):
        raise LoadFailed(f"ik_llama.cpp doesn't match its bindings: {'; '.join(wrong)}")
    files = fitted(files, options)
    loading.refuse_the_impossible(files, options)
    with ExitStack() as held:
        vocabulary = loading.load_vocabulary(files.path)
        held.callback(vocabulary.close)
        loading.listen()  # the vocabulary's lines say nothing of what comes
        _log_set(loading.LISTENER, None)
        model = _load_model(files, options, progress)
        held.callback(bindings.llama_free_model, model)
        slots = cache_layout(files, options).slots
        contexts = Contexts(model, context_parameters(files, options), slots, vocabulary.size)
        held.callback(contexts.free)
        contexts.of(0)  # whether there is memory for it
        info = loading.info_of(vocabulary, files, options, None)
        build = f"{ik.PACKAGE} {ik.TRIED} {_system_info().decode()}"
        info = msgspec.structs.replace(
            info, keeps_slots=False, layers={}, buffers={}, memory=None, build=build
        )
        return loading.loaded(files, options, contexts, vocabulary, info, held)


def _load_model(
    files: ModelFiles, options: LlamaCppOptions, progress: Callable[[float], bool]
) -> int:
    params = model_parameters(files, options)
    if params.use_mmap:
        loading.warn_of_writers(files)
    callback = bindings.llama_progress_callback(lambda done, _data: progress(done))
    params.progress_callback = callback
    model = bindings.llama_model_load_from_file(str(files.path).encode(), params)
    if not model:
        raise LoadFailed(f"ik_llama.cpp can't load {files.path.name}: {loading.last_errors()}")
    return int(model)


def model_parameters(files: ModelFiles, options: LlamaCppOptions) -> Any:
    """Raises LoadFailed for a place that there isn't."""
    params, ours = bindings.llama_model_default_params(), options.ik
    if not on_cpu(options):
        _use_cards(params, options)
    # What is repacked isn't what is mapped.
    params.use_mmap, params.use_mlock = options.mmap and not ours.rtr, options.mlock
    params.repack_tensors, params.mla, params.amb = ours.rtr, ours.mla, ours.amb
    loading.place(params, _overrides(files, options))
    return params


def _use_cards(params: Any, options: LlamaCppOptions) -> None:
    """As `files.placements` counts on. Raises LoadFailed."""
    if not _supports_gpu_offload():
        raise LoadFailed("this ik_llama.cpp was built without cards: set gpu_layers: 0")
    layers, cards = layers_on_cards(options), list(devices.of_llamacpp())[:MOST_CARDS]
    params.n_gpu_layers = ALL if layers < 0 else layers
    parts = loading.parts_of_cards(options, cards)
    params.tensor_split = (ctypes.c_float * MOST_CARDS)(*(parts.get(card, 0.0) for card in cards))


def _overrides(files: ModelFiles, options: LlamaCppOptions) -> list[loading.Override]:
    """Where tensors lie that are placed by their names. Raises LoadFailed."""
    known = [_main_memory(), *map(_buffers_of, range(_backends()))]
    places = {_name_of(kind).decode(): kind for kind in known}
    found = []
    for text in options.ik.override_tensor:
        pattern, _, name = text.rpartition("=")
        if name not in places:
            raise LoadFailed(f"ik.override_tensor: {name!r} is none of {', '.join(places)}")
        found.append(loading.Override(pattern.encode(), places[name]))
    return [*found, *loading.without_experts(files, options, known[0])]


def context_parameters(files: ModelFiles, options: LlamaCppOptions) -> Any:
    """Of each context."""
    params = bindings.llama_context_default_params()
    params.n_ctx = context_length(files, options)
    params.n_seq_max, params.flash_attn = 1, True
    params.mla_attn, params.attn_max_batch = options.ik.mla, options.ik.amb
    params.fused_moe_up_gate = options.ik.fmoe
    params.n_batch = options.batch_size
    rows = RIGHT_ROWS if WRONG.intersection(files.types) else options.micro_batch_size
    params.n_ubatch = min(rows, options.batch_size)
    params.n_threads, params.n_threads_batch = most(options.threads), most(options.threads)
    params.rope_freq_base = options.rope_freq_base or 0.0
    params.rope_freq_scale = options.rope_freq_scale or 0.0
    return params


class Contexts(Context):
    """A context for each sequence, made when it gets its first token; as llama.cpp's functions see
    it, one context with split cache, and its memory. It is its own library.
    """

    llama_batch = bindings.llama_batch

    def __init__(self, model: int, params: Any, slots: int, vocabulary: int) -> None:
        super().__init__(self, model)
        self._model, self._params = model, params
        self._each: list[int | None] = [None] * slots
        self._threads = params.n_threads, params.n_threads_batch
        self._batch = bindings.llama_batch()
        self._sequence = (_INT * 1)(0)  # in each context the only one
        pointers = (ctypes.c_void_p * params.n_batch)(
            *[ctypes.addressof(self._sequence)] * params.n_batch
        )
        self._batch.seq_id = ctypes.cast(pointers, ctypes.POINTER(ctypes.POINTER(_INT)))
        self._rows: list[tuple[int, int]] = []  # of the last batch: whose context, which row there
        self._ids = np.arange(vocabulary)

    def free(self) -> None:
        for context in filter(None, self._each):
            bindings.llama_free(context)
        self._each = [None] * len(self._each)

    def of(self, sequence: int) -> int:
        """Its context. Raises OutOfMemory."""
        context = self._each[sequence]
        if context is None:
            context = self._each[sequence] = bindings.llama_init_from_model(
                self._model, self._params
            )
            if not context:
                raise OutOfMemory(f"not enough memory for a sequence: {loading.last_errors()}")
            _set_threads(context, *self._threads)
        return context

    def reserve(self, sequence: int) -> None:
        self.of(sequence)

    def llama_decode(self, _context: Context, batch: Any) -> int:
        """Each sequence's rows, which are neighbours, by themselves. Raises GenerationFailed, also
        where llama.cpp would want room: others may have been computed already.
        """
        ids = list((_INT * batch.n_tokens).from_address(ctypes.addressof(batch.seq_id[0].contents)))
        starts = [row for row, one in enumerate(ids) if not row or one != ids[row - 1]]
        self._rows.clear()
        for start, end in pairwise([*starts, len(ids)]):
            context = self.of(ids[start])
            self._rows += [(context, row) for row in range(end - start)]
            if code := bindings.llama_decode(context, self._part(batch, start, end)):
                raise GenerationFailed(f"ik_llama.cpp's llama_decode failed with code {code}")
        return 0

    def _part(self, batch: Any, start: int, end: int) -> Any:
        part = self._batch
        part.n_tokens = end - start
        for name, kind in _FIELDS:
            address = ctypes.addressof(getattr(batch, name).contents) + start * ctypes.sizeof(kind)
            setattr(part, name, ctypes.pointer(kind.from_address(address)))
        return part

    def llama_get_logits_ith(self, _context: Context, row: int) -> Any:
        return bindings.llama_get_logits_ith(*self._rows[row])

    def llama_sampler_sample(self, chain: Any, _context: Context, row: int) -> int:
        return draw_among(chain, self.row(row, len(self._ids)), self._ids).token

    def llama_set_n_threads(self, _context: Context, single: int, batch: int) -> None:
        self._threads = single, batch
        for context in filter(None, self._each):
            _set_threads(context, single, batch)

    def llama_get_memory(self, _context: Context) -> "Contexts":
        return self

    def llama_memory_clear(self, _memory: "Contexts", _data: bool) -> None:  # noqa: FBT001 - as llama.cpp's
        for context in filter(None, self._each):
            bindings.llama_kv_cache_clear(context)

    def llama_memory_seq_rm(self, _memory: "Contexts", sequence: int, start: int, end: int) -> bool:
        context = self._each[sequence]
        return context is None or bool(_seq_rm(context, 0, start, end))

    def llama_memory_seq_pos_min(self, _memory: "Contexts", sequence: int) -> int:
        context = self._each[sequence]
        return -1 if context is None else int(_pos_min(context, 0))

    def llama_memory_seq_pos_max(self, _memory: "Contexts", sequence: int) -> int:
        """Where ik_llama.cpp says 0 of an empty one, too, -1."""
        empty = self.llama_memory_seq_pos_min(self, sequence) < 0
        return -1 if empty else int(_pos_max(self._each[sequence], 0))

    def llama_state_seq_get_size_ext(self, _context: Context, sequence: int, flags: int) -> int:
        """Nothing of an empty one: what it would give ends the process where it is put back."""
        empty = self.llama_memory_seq_pos_min(self, sequence) < 0
        return 0 if empty else int(_state_size(self._each[sequence], 0, flags))

    def llama_state_seq_get_data_ext(
        self, _context: Context, data: Any, size: int, sequence: int, flags: int
    ) -> int:
        return int(_state_get(self._each[sequence], data, size, 0, flags)) if size else 0

    def llama_state_seq_set_data_ext(
        self, _context: Context, data: Any, size: int, sequence: int, flags: int
    ) -> int:
        return int(_state_set(self.of(sequence), data, size, 0, flags))

    def llama_synchronize(self, _context: Context) -> None:
        """Rows that are read are waited for."""

    # What it is not asked to be: see `libraries.check`.
    def llama_get_model(self, _context: Context) -> int:
        return self._model

    def llama_model_is_recurrent(self, _model: int) -> bool:
        return False

    llama_model_is_hybrid = llama_model_is_recurrent

    def llama_model_n_swa(self, _model: int) -> int:
        return 0
