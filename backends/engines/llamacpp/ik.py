"""ik_llama.cpp as the library of the engine, behind the functions of llama.cpp that it calls.

With several sequences in one context its flash attention ends the process (GGML_ASSERT(S > 0)), so
that is for one request at a time; several share a pool without it. Vocabulary and samplers are
llama.cpp's.
"""

import ctypes
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import ik_llama_cpp._ctypes_api as bindings
import msgspec
import numpy as np

from backends.contract.catalog import ModelFiles
from backends.contract.errors import GenerationFailed, LoadFailed, OutOfMemory
from backends.engines.llamacpp import load_log, loading, offloading
from backends.engines.llamacpp.batch import NO_ROOM
from backends.engines.llamacpp.files import fitted, layers_on_cards
from backends.engines.llamacpp.layout import cache_layout
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


class View(ctypes.Structure):
    """`llama_kv_cache_view`: which cells are in use. `free`: of the longest run that isn't."""

    _fields_ = (
        ("cells", _INT),
        ("sequences", _INT),
        ("tokens", _INT),
        ("used", _INT),
        ("free", _INT),
        ("free_from", _INT),
        ("of_cells", _POINTER),
        ("of_sequences", _POINTER),
    )


_seq = (_POINTER, _INT)
_seq_rm = _function("llama_kv_cache_seq_rm", ctypes.c_bool, *_seq, _INT, _INT)
_seq_cp = _function("llama_kv_cache_seq_cp", None, _POINTER, _INT, _INT, _INT, _INT)
_pos_min = _function("llama_kv_cache_seq_pos_min", _INT, *_seq)
_pos_max = _function("llama_kv_cache_seq_pos_max", _INT, *_seq)
_view_init = _function("llama_kv_cache_view_init", View, *_seq)
_view_update = _function("llama_kv_cache_view_update", None, _POINTER, ctypes.POINTER(View))
_view_free = _function("llama_kv_cache_view_free", None, ctypes.POINTER(View))
_used_cells = _function("llama_get_kv_cache_used_cells", _INT, _POINTER)
_defrag = _function("llama_kv_cache_defrag", None, _POINTER)
_update = _function("llama_kv_cache_update", _INT, _POINTER)
_state = (_INT, ctypes.c_uint32)  # sequence, flags
_state_size = _function("llama_state_seq_get_size", _SIZE, _POINTER, *_state)
_state_get = _function("llama_state_seq_get_data", _SIZE, _POINTER, _POINTER, _SIZE, *_state)
_state_set = _function("llama_state_seq_set_data", _SIZE, _POINTER, _POINTER, _SIZE, *_state)
_set_threads = _function("llama_set_n_threads", None, _POINTER, ctypes.c_uint32, ctypes.c_uint32)
_log_set = _function("llama_log_set", None, type(load_log.LISTENER), _POINTER)
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
        load_log.listen()  # the vocabulary's lines say nothing of what comes
        _log_set(load_log.LISTENER, None)
        model = _load_model(files, options, progress)
        held.callback(bindings.llama_free_model, model)
        context = bindings.llama_init_from_model(model, context_parameters(files, options))
        if not context:
            raise OutOfMemory(f"not enough memory for the KV cache: {load_log.last_errors()}")
        held.callback(bindings.llama_free, context)
        pool = Pool(context, model, vocabulary.size)
        held.callback(pool.close)
        info = loading.info_of(vocabulary, files, options, None)
        build = f"{ik.PACKAGE} {ik.TRIED} {_system_info().decode()}"
        info = msgspec.structs.replace(
            info, keeps_slots=False, layers={}, buffers={}, memory=None, build=build
        )
        return loading.loaded(files, options, pool, vocabulary, info, held)


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
        raise LoadFailed(f"ik_llama.cpp can't load {files.path.name}: {load_log.last_errors()}")
    return int(model)


def model_parameters(files: ModelFiles, options: LlamaCppOptions) -> Any:
    """Raises LoadFailed for a place that there isn't."""
    params, ours = bindings.llama_model_default_params(), options.ik
    if not on_cpu(options):
        _use_cards(params, options)
    # What is repacked isn't what is mapped.
    params.use_mmap, params.use_mlock = options.mmap and not ours.rtr, options.mlock
    params.repack_tensors, params.mla, params.amb = ours.rtr, ours.mla, ours.amb
    offloading.override(params, _overrides(files, options))
    return params


def _use_cards(params: Any, options: LlamaCppOptions) -> None:
    """As `files.placements` counts on. Raises LoadFailed."""
    if not _supports_gpu_offload():
        raise LoadFailed("this ik_llama.cpp was built without cards: set gpu_layers: 0")
    layers, cards = layers_on_cards(options), list(devices.of_llamacpp())[:MOST_CARDS]
    params.n_gpu_layers = ALL if layers < 0 else layers
    parts = offloading.parts_of_cards(options, cards)
    params.tensor_split = (ctypes.c_float * MOST_CARDS)(*(parts.get(card, 0.0) for card in cards))


def _overrides(files: ModelFiles, options: LlamaCppOptions) -> list[offloading.Override]:
    """Where tensors lie that are placed by their names. Raises LoadFailed."""
    known = [_main_memory(), *map(_buffers_of, range(_backends()))]
    places = {_name_of(kind).decode(): kind for kind in known}
    found = []
    for text in options.ik.override_tensor:
        pattern, _, name = text.rpartition("=")
        if name not in places:
            raise LoadFailed(f"ik.override_tensor: {name!r} is none of {', '.join(places)}")
        found.append(offloading.Override(pattern.encode(), places[name]))
    return [*found, *offloading.without_experts(files, options, known[0])]


def context_parameters(files: ModelFiles, options: LlamaCppOptions) -> Any:
    """Of the context."""
    params, layout = bindings.llama_context_default_params(), cache_layout(files, options)
    params.n_ctx, params.n_seq_max = layout.cells, layout.slots
    params.flash_attn = layout.slots == 1
    params.mla_attn, params.attn_max_batch = options.ik.mla, options.ik.amb
    params.fused_moe_up_gate = options.ik.fmoe
    params.n_batch = options.batch_size
    rows = RIGHT_ROWS if WRONG.intersection(files.types) else options.micro_batch_size
    params.n_ubatch = min(rows, options.batch_size)
    params.n_threads, params.n_threads_batch = most(options.threads), most(options.threads)
    params.rope_freq_base = options.rope_freq_base or 0.0
    params.rope_freq_scale = options.rope_freq_scale or 0.0
    return params


class Pool(Context):
    """A context, and its memory, as llama.cpp's functions see theirs. It is its own library."""

    llama_batch = bindings.llama_batch
    llama_get_logits_ith = bindings.llama_get_logits_ith
    llama_set_n_threads = _set_threads
    llama_memory_seq_cp = _seq_cp
    llama_memory_seq_pos_min = _pos_min
    llama_state_seq_get_data_ext = _state_get

    def __init__(self, context: int, model: int, vocabulary: int) -> None:
        super().__init__(self, context)
        self._model = model
        self._ids = np.arange(vocabulary)
        self._view = _view_init(self, 1)
        _view_update(self, self._view)
        self._cells = int(self._view.cells)
        self._freed = False  # there may be free cells between others

    def close(self) -> None:
        _view_free(self._view)

    def llama_decode(self, context: Context, batch: Any) -> int:
        """Without room for all of it nothing is changed, as with llama.cpp: ik_llama.cpp would keep
        what it computed of it in passes before the one that has no room.
        """
        self._close_up()
        if batch.n_tokens > self._cells - _used_cells(self):
            return NO_ROOM
        return int(bindings.llama_decode(context, batch))

    def _close_up(self) -> None:
        """Cells in use move together. ik_llama.cpp looks for the last of them in strides of 32
        (llama_kv_cache_cell_max): where it meets free cells alone it attends to too few. Some moves
        fit into a graph, so it may take several, of which each fills a free cell at least. Raises
        GenerationFailed.
        """
        for _ in range(self._cells + 1):
            if not self._freed:
                return
            _view_update(self, self._view)
            self._freed = self._view.free < self._view.cells - self._view.used
            if self._freed and (_defrag(self), _update(self))[1]:
                break
        raise GenerationFailed("ik_llama.cpp can't move the cells of its cache together")

    def llama_sampler_sample(self, chain: Any, _context: Context, row: int) -> int:
        return draw_among(chain, self.row(row, len(self._ids)), self._ids).token

    def llama_get_memory(self, _context: Context) -> "Pool":
        return self

    def llama_memory_clear(self, memory: "Pool", _data: bool) -> None:  # noqa: FBT001 - as llama.cpp's
        bindings.llama_kv_cache_clear(memory)

    def llama_memory_seq_rm(self, memory: "Pool", sequence: int, start: int, end: int) -> bool:
        self._freed = True
        return bool(_seq_rm(memory, sequence, start, end))

    def llama_memory_seq_pos_max(self, memory: "Pool", sequence: int) -> int:
        """Where ik_llama.cpp says 0 of an empty one, too, -1."""
        return -1 if _pos_min(memory, sequence) < 0 else int(_pos_max(memory, sequence))

    def llama_state_seq_get_size_ext(self, context: Context, sequence: int, flags: int) -> int:
        """Nothing of an empty one: what it would give ends the process where it is put back."""
        return 0 if _pos_min(context, sequence) < 0 else int(_state_size(context, sequence, flags))

    def llama_state_seq_set_data_ext(
        self, context: Context, data: Any, size: int, sequence: int, flags: int
    ) -> int:
        """Free cells must be neighbours."""
        self._close_up()
        self._freed = True  # what the sequence had
        return int(_state_set(context, data, size, sequence, flags))

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
