"""How a model's cache is laid out, and the memory that this and a pass over it take, by what a GGUF
file's header says. Imports no engine.
"""

from functools import cache

import msgspec

from backends.contract.catalog import ModelFiles
from backends.engines import snapshots
from backends.engines.llamacpp.gguf import BLOCKS
from backends.engines.llamacpp.libraries import on_cpu, uses_ik
from backends.engines.speculation import IS_OFF, STAYS, STREAMS
from backends.engines.step_costs import TOGETHER
from backends.machine import devices, ggml
from backends.machine.control_groups import main_memory
from config.engines import LlamaCppOptions

LONGEST_BY_DEFAULT = 32_768  # tokens; a model trained for a million would claim all memory
SMALL_CACHE = 64 << 20  # bytes, that a cache has at least, if requests can fill it
LARGE_PART = 256 << 20  # bytes; putting one back, in one call, would keep the others waiting
SPARE_SLOTS = 2  # of a shared cache: sequences remembered per sequence running
OUTPUT_BYTES = 4 << 20  # that a batch's logits may take in any case
PADDED = 256  # cells; what a sequence's part of the cache is a multiple of (llama-context.cpp)
# What a context takes of a card beside its buffers: cuBLAS's handles and workspaces, ggml's pools
# (on an H200 11 MiB with 4-bit and 99 MiB with 16-bit weights of SmolLM2). Where a pass can't have
# that, llama.cpp ends the process.
WORKSPACE, WITH_WORKSPACE = 128 << 20, ("CUDA", "ROCm")  # ggml's names begin so
# What states and windows of all sequences may take of the device, unless these are fewer.
SLOTS_SHARE, FEWEST_SLOTS = 0.05, 4
# Whose states llama.cpp keeps of the last tokens of a pass, so that drafts can be taken back
# (llama-arch.cpp, llm_arch_supports_rs_rollback): those of it that were tried. So many tokens, and
# of the weights at most so large a part, if nobody wishes for more.
TURNED_BACK = frozenset({"lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "qwen35", "qwen35moe"})
BACK, BACK_SHARE = 8, 32
LARGE_STATES = (
    "the states of its recurrent layers are large, and earlier ones aren't kept unless a number is "
    "set for speculation.tokens"
)
MOST_SLOTS = 256  # llama.cpp takes no more (llama-cparams.h, LLAMA_MAX_SEQ)
CACHE_TYPES = {  # ggml_type
    "f32": 0,
    "f16": 1,
    "bf16": 30,
    "q8_0": 8,
    "q5_1": 7,
    "q5_0": 6,
    "q4_1": 3,
    "q4_0": 2,
}
CACHE_BITS = {name: 8 * BLOCKS[kind][0] / BLOCKS[kind][1] for name, kind in CACHE_TYPES.items()}


class Layout(msgspec.Struct, frozen=True):
    """How the KV cache is laid out: `cells` tokens over `slots` sequences.

    `split`: each sequence has its own part; attention then reads its own cells only, which is
    faster, but the memory is taken for all sequences at full length. Not split: one pool that all
    draw from.
    """

    cells: int
    slots: int
    split: bool


def context_length(files: ModelFiles, options: LlamaCppOptions) -> int:
    """Tokens one request may have."""
    length = options.context_length or min(files.context_length, LONGEST_BY_DEFAULT)
    return min(length, files.positions or length)


def cache_layout(files: ModelFiles, options: LlamaCppOptions) -> Layout:
    """Of llama.cpp what costs less; of ik_llama.cpp a pool, or all for one request at a time, which
    then has flash attention. It moves no cells that are latent, so there others wait.
    """
    parts, pool = _parts(files, options), _pool(files, options)
    if not uses_ik(files, options):
        return parts if parts.slots > 1 and _is_cheap(parts, pool, files, options) else pool
    if options.max_concurrent == 1 or files.latent:
        return Layout(context_length(files, options), 1, split=True)
    return pool


def _parts(files: ModelFiles, options: LlamaCppOptions) -> Layout:
    """A whole one for each sequence."""
    count = affordable(options.max_concurrent, files, options)
    cells = max(context_length(files, options) * count, options.cache_tokens or 0)
    return Layout(cells, count, split=True)


def _pool(files: ModelFiles, options: LlamaCppOptions) -> Layout:
    """`cache_tokens` cells, or a small cache."""
    wanted, asked = options.max_concurrent, options.cache_tokens
    slots = affordable(max(wanted, min(wanted * SPARE_SLOTS, MOST_SLOTS)), files, options)
    room = min(padded(_parts(files, options)), _small(files)) if asked is None else asked
    return Layout(max(context_length(files, options), room), slots, split=False)


def _is_cheap(parts: Layout, pool: Layout, files: ModelFiles, options: LlamaCppOptions) -> bool:
    """A whole part for each takes no more than the pool would. So a shorter context never takes
    more than a longer one.
    """
    length, asked = context_length(files, options), options.cache_tokens
    if length * files.cache_bytes_per_token > LARGE_PART:
        return False
    if asked is not None:
        return length * options.max_concurrent <= asked
    slides = files.window and window_cells(files, options, parts) > window_cells(
        files, options, pool
    )
    return padded(parts) <= _small(files) and not slides


def _small(files: ModelFiles) -> int:
    return SMALL_CACHE // max(1, files.cache_bytes_per_token)


def affordable(slots: int, files: ModelFiles, options: LlamaCppOptions) -> int:
    """As many of the `slots` as their states and windows leave most of the device for; each has its
    own, whether it is used or not.
    """
    size = part_bytes(files, options) + _wished_back(files, options) * states_of_one(files)
    if not size:
        return slots
    return min(slots, max(FEWEST_SLOTS, int(device_bytes(options) * SLOTS_SHARE) // size))


def part_bytes(files: ModelFiles, options: LlamaCppOptions) -> int:
    """What of one sequence can't be cut: its states, and the cells of a window."""
    window = int(files.window * files.sliding_bytes_per_token * part_of_16_bits(options))
    return states_of_one(files) + window


def states_of_one(files: ModelFiles) -> int:
    """Bytes of one sequence's."""
    return files.state_bytes * files.recurrent_layers


def states_back(files: ModelFiles, options: LlamaCppOptions) -> int:
    """How many earlier states each sequence has, one for each token that may be taken back: what
    was drafted. 0: nothing is drafted. All slots have them, used or not, so without a wish they
    take no more than a small part of what the weights do.
    """
    if options.speculation.mode == "off" or files.architecture not in TURNED_BACK:
        return 0
    if wished := _wished_back(files, options):
        return wished
    each = cache_layout(files, options).slots * states_of_one(files)
    return min(_most_back(options), files.size_bytes // BACK_SHARE // max(1, each))


def undrafted(files: ModelFiles, options: LlamaCppOptions) -> str:
    """Why nothing is drafted; "": something may be."""
    if options.speculation.mode == "off":
        return IS_OFF
    if not files.recurrent_layers or states_back(files, options):
        return ""
    return STAYS if files.architecture not in TURNED_BACK else LARGE_STATES


def _wished_back(files: ModelFiles, options: LlamaCppOptions) -> int:
    """The same, where drafts are asked for."""
    speculation = options.speculation
    asked = speculation.tokens != "auto" or speculation.mode in {"ngram", "model"}
    if speculation.mode == "off" or not (asked or options.draft.model):
        return 0
    return _most_back(options) if files.architecture in TURNED_BACK else 0


def _most_back(options: LlamaCppOptions) -> int:
    """llama.cpp wants a pass to have room for them and more."""
    wanted = options.speculation.tokens
    room = min(options.micro_batch_size, options.batch_size) - 2
    return max(0, min(BACK if wanted == "auto" else wanted, room))


def device_bytes(options: LlamaCppOptions) -> int:
    """Of the cards, or of main memory."""
    return main_memory() if on_cpu(options) else _card_memory() or main_memory()


@cache
def _card_memory() -> int:
    ours = devices.of_llamacpp()
    return sum(one.total for name, one in devices.devices().items() if name in ours)


def part_of_16_bits(options: LlamaCppOptions) -> float:
    """What a cell takes, as a part of what it takes at 16 bits."""
    return (CACHE_BITS[options.cache_type_k] + CACHE_BITS[options.cache_type_v]) / 32


def workspace() -> int:
    """Bytes that a context takes of each card beside its buffers, with this build of llama.cpp."""
    return WORKSPACE if any(one.name.startswith(WITH_WORKSPACE) for one in ggml.devices()) else 0


def keys_of_a_layer(files: ModelFiles, options: LlamaCppOptions) -> int:
    """Bytes of the keys that one layer keeps, which are a tensor of their own, if layers are alike
    and values take as much.
    """
    attending = max(1, files.layers - files.recurrent_layers)
    each = files.cache_bytes_per_token / 2 / attending
    return int(padded(cache_layout(files, options)) * each * CACHE_BITS[options.cache_type_k] / 16)


def snapshot_bytes(files: ModelFiles, options: LlamaCppOptions) -> int:
    """Main memory for snapshots of sequences that can't be cut."""
    slots, wanted = cache_layout(files, options).slots, options.snapshot_memory
    return snapshots.room(part_bytes(files, options), slots, main_memory(), wanted)


def padded(layout: Layout) -> int:
    """All cells, as llama.cpp rounds each sequence's part, or the pool."""
    parts = layout.slots if layout.split else 1
    return parts * _rounded(layout.cells // parts)


def window_cells(files: ModelFiles, options: LlamaCppOptions, layout: Layout) -> int:
    """All cells of a layer that slides (llama-kv-cache-iswa.cpp): each sequence's window, and one
    pass over the graph.
    """
    parts, together = (layout.slots, 1) if layout.split else (1, layout.slots)
    each = files.window * together + min(options.micro_batch_size, options.batch_size)
    return parts * _rounded(min(_rounded(layout.cells // parts), each))


def _rounded(cells: int) -> int:
    return -(-cells // PADDED) * PADDED


def outputs(vocabulary_size: int, files: ModelFiles, options: LlamaCppOptions) -> int:
    """Tokens of a batch with logits. One for each sequence, and those that are drafted; more, for
    the log probabilities of prompts, where they cost little.
    """
    cheap = min(options.batch_size, OUTPUT_BYTES // (4 * vocabulary_size))
    slots = cache_layout(files, options).slots
    return max(slots, min(options.batch_size, max(cheap, _drafted(files, options))))


def _drafted(files: ModelFiles, options: LlamaCppOptions) -> int:
    """Tokens of a step with drafts, at most."""
    return 0 if undrafted(files, options) else STREAMS + TOGETHER


def _pass(options: LlamaCppOptions, layout: Layout) -> tuple[int, int]:
    """Tokens in one pass over the graph, and the cells that each may see."""
    cells = layout.cells // layout.slots if layout.split else layout.cells
    return min(options.micro_batch_size, options.batch_size, layout.cells), cells


def pass_bytes(files: ModelFiles, options: LlamaCppOptions, layout: Layout) -> int:
    """One pass over the graph: activations, and the attention's mask over all cells it may see (one
    more for sliding windows); or the logits, where they are larger. And the logits handed out.
    """
    tokens, cells = _pass(options, layout)
    parts = layout.slots if layout.split else 1
    sliding = window_cells(files, options, layout) // parts if files.window else 0
    whole = files.cache_bytes_per_token > files.sliding_bytes_per_token
    mask = tokens * (cells * whole + sliding)
    attending = 0
    if _has_scores(files, options, layout):  # they lie in memory themselves, at 32 bits
        mask, scores = 4 * mask, 4 * tokens * cells * files.heads
        attending = tokens * files.attention_bytes + scores
    else:
        mask = 2 * mask
    states = layout.slots * files.state_bytes * (1 + states_back(files, options))  # of one layer
    # Scored prompts add at most `OUTPUT_BYTES`.
    logits = 4 * max(layout.slots, _drafted(files, options)) * files.vocab_size
    return mask + max(tokens * files.activation_bytes + states, attending, logits) + logits


def _has_scores(files: ModelFiles, options: LlamaCppOptions, layout: Layout) -> bool:
    """Whether it is computed without flash attention, as ik_llama.cpp's pool always is."""
    return options.flash_attention == "off" or (uses_ik(files, options) and not layout.split)
