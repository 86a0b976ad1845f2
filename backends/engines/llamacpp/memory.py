"""The memory that a GGUF model takes, by the headers of its files: its weights and graph, what
llama.cpp copies into the CPU's own layouts, a multimodal projector, an encoder's passes.

The rules are those of llama.cpp's source files, which are named at each; what its graph computes in
is fitted to what it reports. No engine.
"""

import mmap
import platform
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec

from backends.contract.catalog import ModelFiles
from backends.contract.errors import LoadFailed
from backends.contract.placement import LayerWeights, ModelWeights
from backends.contract.protocol import MemoryNeed, Task
from backends.engines.llamacpp.gguf import EMBEDDING, BrokenFile, Header, Tensor, read_header
from backends.machine import ggml, prebuilt
from config.engines import LlamaCppOptions

# The weights that show what a layer has. A linear attention's projection has a softmax attention's
# name, but such a layer has a convolution too (qwen3next).
KEYS = frozenset({"attn_k.weight", "attn_kv_a_mqa.weight"})
JOINED = "attn_qkv.weight"
CONVOLUTION, SSM = "shortconv.conv.weight", "ssm_conv1d.weight"

MOST_LAYERS = 512  # LLAMA_MAX_LAYERS; llama.cpp refuses a file with more

# Values of one token at the widest place of a recurrent layer, by its width; a state space's by its
# own and by what its convolution goes over (fitted to llama.cpp's `compute buffer size` over random
# models).
CONVOLUTION_VALUES, SSM_VALUES, SEEN_VALUES = 7.5, 6.6, 2.7

# Of architectures whose files needn't say it (llama.cpp's src/models): all layers but one of so
# many slide over a window, 0: all of them; whether that is the first of them, not the last.
SLIDING: Mapping[str, tuple[int, bool]] = {
    **dict.fromkeys(("afmoe", "cohere2", "exaone-moe", "exaone4", "mellum"), (4, False)),
    **dict.fromkeys(("llama4", "muse-glimmer", "olmo2", "smallthinker"), (4, False)),
    **dict.fromkeys(("cohere2moe", "laguna"), (4, True)),
    **dict.fromkeys(("gemma2", "gpt-oss"), (2, False)),
    **dict.fromkeys(("lfm2", "lfm2moe"), (0, False)),
    "gemma3": (6, False),
    "gemma3n": (5, False),
    "plamo3": (8, False),
}
WINDOWS: Mapping[str, int] = {"gemma2": 4_096, "llama4": 8_192}  # where the file doesn't say
OWN_KEYS: Mapping[str, int] = {"gemma3n": 20}  # layers from there on have others' keys


EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"  # as llama.cpp's `--n-cpu-moe` has it
_EXPERTS = re.compile(EXPERTS)
LOOKED_UP = frozenset({EMBEDDING, "per_layer_token_embd.weight", "position_embd.weight"})


def weights(graph: "Graph", tensors: Sequence[Tensor], size: int) -> ModelWeights | None:
    """By layer, of files of `size` bytes; None where no layers are found. What belongs to no layer
    is computed behind the last, but for what a token has a row of, which llama.cpp leaves in main
    memory; so is what isn't weights, as if it were one. An embedding that is the output's matrix
    too lies in both places.
    """
    count = min(graph.number("block_count"), MOST_LAYERS)
    shared, experts = [0] * count, [0] * count
    output, looked_up, largest = 0, 0, 0
    for tensor in tensors:
        layer, _ = _place_of(tensor.name)
        if layer is None or layer >= count:
            looked_up += tensor.size * (tensor.name in LOOKED_UP)
            output += tensor.size * (tensor.name not in LOOKED_UP)
            continue
        (experts if _EXPERTS.search(tensor.name) else shared)[layer] += tensor.size
        largest = max(largest, tensor.size)
    if not count:
        return None
    rest = max(0, size - sum(shared) - sum(experts) - output - looked_up)
    if all(tensor.name != OUTPUT for tensor in tensors):
        output += next((one.size for one in tensors if one.name == EMBEDDING), 0)
    known = graph.number("expert_count")
    used, kept = graph.number("expert_used_count", known), graph.kept()
    return ModelWeights(
        layers=tuple(
            LayerWeights(shared[number], experts[number], *kept.get(number, (0, 0, 0)))
            for number in range(count)
        ),
        output=output,
        embedding=looked_up + rest,
        used=min(1.0, used / known) if known else 1.0,
        largest=largest,
    )


def _place_of(name: str) -> tuple[int | None, str]:
    """Of `blk.3.attn_k.weight` the layer, 3, and what it is called there."""
    kind, _, rest = name.partition(".")
    number, _, inside = rest.partition(".")
    return (int(number), inside) if kind == "blk" and number.isdecimal() else (None, name)


def _layers(tensors: Iterable[Tensor]) -> Mapping[int, frozenset[str]]:
    """The names of each layer's weights."""
    found: dict[int, set[str]] = defaultdict(set)
    for tensor in tensors:
        layer, name = _place_of(tensor.name)
        if layer is not None:
            found[layer].add(name)
    return {number: frozenset(names) for number, names in found.items()}


def graph_of(header: Header, tensors: Iterable[Tensor]) -> "Graph":
    """`tensors`: those of all parts of the model."""
    return Graph(header, header.text("general.architecture"), _layers(tensors))


class Graph(msgspec.Struct, frozen=True):
    """What a model computes in, by its dimensions."""

    header: Header
    architecture: str
    layers: Mapping[int, frozenset[str]]

    def number(self, key: str, default: int = 0) -> int:
        return self.header.number(f"{self.architecture}.{key}", default)

    def attending(self) -> list[int]:
        """All layers, where the names of their weights don't show it."""
        found = [
            number
            for number, names in self.layers.items()
            if names & KEYS or (JOINED in names and SSM not in names)
        ]
        every = range(min(self.number("block_count"), MOST_LAYERS))
        return found if found or self.recurrent() else list(every)

    def recurrent(self) -> list[int]:
        return [one for one, names in self.layers.items() if names & {CONVOLUTION, SSM}]

    def heads(self) -> tuple[int, int, int]:
        """Of attention: for queries; values of a key; of a value."""
        heads = self.number("attention.head_count", 1)
        width = self.number("embedding_length") // max(heads, 1)
        key = self.number("attention.key_length", width)
        return heads, key, self.number("attention.value_length", width)

    def kept(self) -> Mapping[int, tuple[int, int, int]]:
        """Of each layer that keeps something: bytes of a token at 16 bits, of one in a window, and
        of a sequence.
        """
        state = 4 * self.state()
        found = dict.fromkeys(self.recurrent(), (0, 0, state))
        for layer in self._keeping():
            cell, (_, _, own) = self._cell(layer), found.get(layer, (0, 0, 0))
            found[layer] = (0, cell, own) if self._slides(layer) else (cell, 0, own)
        return found

    def _cell(self, layer: int) -> int:
        """Bytes of one token."""
        heads, key, value = self.heads()
        if self._slides(layer):
            key = self.number("attention.key_length_swa", key)
            value = self.number("attention.value_length_swa", value)
        if self.number("attention.key_length_mla"):
            value = 0  # it is found in what is kept of the key
        name = f"{self.architecture}.attention.head_count_kv"
        return self.header.number_of(name, layer, heads) * (key + value) * 2

    def _keeping(self) -> Iterator[int]:
        """Layers that attend to keys of their own; the last ones may have others'."""
        shared = self.number("attention.shared_kv_layers")
        own = OWN_KEYS.get(self.architecture, self.number("block_count") - shared)
        writing = self.number("block_count") - self.number("nextn_predict_layers")
        return (layer for layer in self.attending() if layer < min(own, writing))

    def window(self) -> int:
        """Tokens that a sliding layer sees; 0: there is none."""
        usual = WINDOWS.get(self.architecture, 0)
        return max(0, self.number("attention.sliding_window", usual))

    def _slides(self, layer: int) -> bool:
        if not self.window():
            return False
        key = f"{self.architecture}.attention.sliding_window_pattern"
        pattern = self.header.metadata.get(key)
        if isinstance(pattern, tuple):
            return bool(pattern[layer]) if layer < len(pattern) else False
        every, first = SLIDING.get(self.architecture, (1, False))
        every = pattern if isinstance(pattern, int) and not isinstance(pattern, bool) else every
        return not every or layer % every != (0 if first else every - 1)

    def state(self) -> int:
        """Values of one layer and sequence (llama-hparams.cpp, `n_embd_r` and `n_embd_s`)."""
        if any(CONVOLUTION in names for names in self.layers.values()):
            return (self.number("shortconv.l_cache", 1) - 1) * self.number("embedding_length")
        held = self.number("ssm.state_size") * self.number("ssm.inner_size")
        return max(self.number("ssm.conv_kernel") - 1, 0) * self.seen() + held

    def seen(self) -> int:
        """Values of a token that the convolution before a state space goes over."""
        groups = self.number("ssm.group_count") * self.number("ssm.state_size")
        return self.number("ssm.inner_size") + 2 * groups

    def activations(self) -> tuple[int, ...]:
        """Values of one token besides the residual stream: in the feed-forward (gate, up and their
        product), with the queries, keys and values, and in a recurrent layer.
        """
        width, (heads, key, value) = self.number("embedding_length"), self.heads()
        kv_heads = self.number("attention.head_count_kv", heads)
        experts = self.number("expert_feed_forward_length") * self.number("expert_used_count", 1)
        return (
            3 * max(self.number("feed_forward_length"), experts) + 4 * width,
            2 * heads * key + kv_heads * (2 * key + value) + 2 * width,
            int(SSM_VALUES * self.number("ssm.inner_size") + SEEN_VALUES * self.seen()),
            int(CONVOLUTION_VALUES * width) if self.number("shortconv.l_cache") else 0,
        )


OUTPUT = "output.weight"
Q8_0, F16 = 8, 1  # ggml_type, as the numbers below (ggml.h)
Q4_0, Q4_1, Q2_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4 = 2, 3, 10, 12, 13, 14, 20, 23, 39

AMX_ROWS = 32  # their number must be a multiple (amx.cpp, `supports_op`)
# Of what AMX multiplies: bytes that a block gets in addition (mmq.cpp, `get_row_size`).
AMX_ADDED = {F16: 0, Q4_0: 0, Q4_1: 0, Q8_0: 4, Q4_K: 4, Q5_K: 4, Q6_K: 0, IQ4_XS: 2}
AMX_WIDTH_OF_FLOATS = 16  # values of a row must be a multiple; of others, of a block

# What is repacked on a CPU with a feature, and what its number of rows must be a multiple of
# (repack.cpp, `ggml_repack_get_optimal_repack_type`).
REPACKED: Mapping[str, Mapping[int, int]] = {
    "avx2": {Q4_0: 8, Q4_K: 8, IQ4_NL: 8, MXFP4: 8},
    "avx512f": {Q2_K: 8},
    "asimddp": {Q4_0: 4, Q8_0: 4, IQ4_NL: 4, MXFP4: 4, Q4_K: 8, Q5_K: 8, Q6_K: 8},
}

# Texts that are in llama.cpp's CPU library if it was built with these buffers.
AMX_BUILT, REPACK_BUILT = b"AMX is not ready", b"CPU_REPACK"

# The first of each GCC that compiles how llama.cpp configures AMX's tiles. Those before leave most
# of it unwritten, and the first quantized matrix ends the process (gcc.gnu.org/PR114098;
# github.com/ggml-org/llama.cpp/pull/26954).
COMPILER = re.compile(rb"GCC: \([^)\0]*\) (\d+)\.(\d+)")
SOUND_FROM: Mapping[int, int] = {11: 5, 12: 4, 13: 3}
MENDED = b"AMX tiles are configured whole"  # in a library compiled with scripts/ggml_cpu.h


class CpuLayouts(msgspec.Struct, frozen=True):
    """The buffers of the CPU's own layouts that llama.cpp copies weights into: `features` of the
    CPU as Linux names them, and what the library was built with.

    A matrix goes into the first of these buffers that takes it (llama-model-loader.cpp,
    `select_weight_buft`; ggml-cpu.cpp, `ggml_backend_cpu_get_extra_buffer_types`): that of AMX,
    which packs some types larger than they are in the file, or that of repacking, whose layouts
    have the file's size. An embedding that is the output's matrix too is looked up by rows, which
    only the file's layout allows, so that it is held in both.
    """

    features: frozenset[str] = frozenset()
    amx_built: bool = False
    repack_built: bool = False
    tiles_sound: bool = True  # see `COMPILER`

    @property
    def amx(self) -> bool:
        return self.amx_built and {"amx_int8", "avx512_vnni"} <= self.features

    def bears(self, tensors: Iterable[Tensor]) -> bool:
        """Whether a model's matrices can be multiplied in them. 16 bits need no tiles."""
        tiled = (t for t in tensors if len(t.shape) == 2 and t.kind != F16 and _fits_amx(t))
        return self.tiles_sound or not self.amx or next(tiled, None) is None

    def packed_bytes(self, tensor: Tensor) -> int | None:
        """Of a matrix of weights in the buffer that takes it; None: it stays as in the file."""
        if len(tensor.shape) != 2:
            return None
        if self.amx and _fits_amx(tensor):
            return tensor.size + tensor.blocks * AMX_ADDED[tensor.kind]
        return tensor.size if self._repacks(tensor) else None

    def _repacks(self, tensor: Tensor) -> bool:
        return self.repack_built and any(
            tensor.kind in kinds and tensor.shape[1] % kinds[tensor.kind] == 0
            for feature, kinds in REPACKED.items()
            if feature in self.features
        )


def _fits_amx(tensor: Tensor) -> bool:
    columns, rows = tensor.shape
    floats = tensor.kind == F16  # of the others rows are whole blocks anyway
    return (
        tensor.kind in AMX_ADDED
        and rows % AMX_ROWS == 0
        and not (floats and columns % AMX_WIDTH_OF_FLOATS)
    )


def added_bytes(tensors: Sequence[Tensor], layouts: CpuLayouts) -> int:
    """What the weights take beyond the bytes in the file, if all of them are in main memory."""
    if not layouts.bears(tensors):
        return 0
    by_name = {tensor.name: tensor for tensor in tensors}
    tied = by_name.get(EMBEDDING) if OUTPUT not in by_name else None
    grown = sum(
        packed - tensor.size
        for name, tensor in by_name.items()
        if name != EMBEDDING and (packed := layouts.packed_bytes(tensor)) is not None
    )
    return grown + ((layouts.packed_bytes(tied) or 0) if tied else 0)


@cache
def of_this_machine() -> CpuLayouts:
    """For the CPU by Linux's /proc and the installed llama-cpp-python, which isn't imported. Other
    systems don't report it: there nothing is added.
    """
    folder = ggml.libraries()
    patterns = ("*ggml-cpu*.so", prebuilt.LIBRARY)
    libraries = [one for pattern in patterns if folder for one in folder.glob(pattern)]
    tiled = [file for file in libraries if prebuilt.holds(file, AMX_BUILT)]
    return CpuLayouts(
        features=_features(Path("/proc/cpuinfo")) if platform.system() == "Linux" else frozenset(),
        amx_built=bool(tiled),
        repack_built=any(prebuilt.holds(file, REPACK_BUILT) for file in libraries),
        tiles_sound=all(is_sound(file) for file in tiled),
    )


def _features(cpuinfo: Path) -> frozenset[str]:
    """The words of its first line of `flags` (x86) or `Features` (ARM)."""
    for line in cpuinfo.read_text().splitlines():
        name, _, words = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(words.split())
    return frozenset()


def is_sound(library: Path) -> bool:
    """By the compiler that it names; where it names none, as that of other systems' wheels."""
    if prebuilt.holds(library, MENDED):
        return True
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = [(int(major), int(minor)) for major, minor in COMPILER.findall(data)]
    return all(minor >= SOUND_FROM.get(major, 0) for major, minor in found)


MARK = "mmproj"
# By size and by how exact they are: a quantized encoder saves little and is less exact.
PRECISIONS = ("f16", "bf16", "f32", "q8_0")
# Image encoders that take pictures of any size: tokens of the one that they are prepared for, and
# patches to a side that become one token, unless the file says how many (clip.cpp, `load_hparams`).
ANY_SIZE = {
    "qwen2vl_merger": (46 * 46, 2),
    "qwen2.5vl_merger": (46 * 46, 2),
    "qwen3vl_merger": (46 * 46, 2),
    "glm4v": (46 * 46, 2),
    "pixtral": (16 * 16, 1),
    "lightonocr": (16 * 16, 1),
}
OTHER_VALUES = 80  # of a patch, in any tower (fitted to llama.cpp's `compute buffer size`)
_PRECISION = re.compile(rf"[-_.]?({'|'.join(PRECISIONS)})$")


def beside(model: Path, is_alone: Callable[[], bool]) -> Path | None:
    """The best multimodal projector in the folder of `model` that is its.

    A projector is a GGUF file of its own, of the architecture "clip": an image encoder and a
    projection to the model's embeddings. Repositories put one, in several precisions, beside the
    quantizations of a model, and state with its name alone which model it belongs to: where there
    are several models, to those whose names begin with its own.
    """
    named = (path for path in model.parent.iterdir() if MARK in path.name.lower())
    found = [path for path in sorted(named) if path.suffix.lower() == ".gguf" and _sees(path)]
    if found and not is_alone():
        found = [path for path in found if _is_named_after(path, model)]
    return min(found, key=_preference, default=None)


def named(path: Path) -> Path:
    """The projector that an option names. Raises LoadFailed for a file that is none."""
    try:
        header = read_header(path)
    except (OSError, ValueError, BrokenFile) as error:
        raise LoadFailed(f"mmproj: {path} can't be used: {error}") from error
    if not _encodes_images(header):
        raise LoadFailed(f"mmproj: {path} is not an image projector")
    return path


def buffer(path: Path, *, scores: bool) -> int:
    """Bytes that the projector's image encoder computes in, for a picture as large as llama.cpp
    prepares it for; a larger one takes more while it is encoded. `scores`: those of attention lie
    in memory too. 0: it can't be read.
    """
    try:
        return _buffer(read_header(path), scores=scores)
    except (OSError, ValueError, BrokenFile):
        return 0


def _buffer(header: Header, *, scores: bool) -> int:
    """Of a vision transformer: patches of three values for each pixel. The widest of three places
    counts, at 32 bits: the pixels, with a copy at 16 bits in the order of the patches; the queries,
    keys and values; the feed-forward.
    """

    def number(key: str, default: int = 0) -> int:
        return header.number(f"clip.vision.{key}", default)

    side, width = max(number("patch_size", 1), 1), number("embedding_length")
    kind = header.text("clip.vision.projector_type") or header.text("clip.projector_type")
    tokens, merged = ANY_SIZE.get(kind, (0, 1))
    merged = number("spatial_merge_size", merged)
    patches = tokens * merged**2 or (number("image_size") // side) ** 2
    widest = max(3 * (3 * side**2) // 2, 5 * width, number("feed_forward_length") + 3 * width)
    scored = number("attention.head_count") * patches if scores else 0
    return 4 * patches * (widest + OTHER_VALUES + scored)


def _sees(path: Path) -> bool:
    try:
        return _encodes_images(read_header(path))
    except (OSError, ValueError, BrokenFile):  # still on its way here, say: the model reads text
        return False


def _encodes_images(header: Header) -> bool:
    clip = header.text("general.architecture") == "clip"
    return clip and header.metadata.get("clip.has_vision_encoder") is True


def _is_named_after(projector: Path, model: Path) -> bool:
    name = _PRECISION.sub("", projector.stem.lower()).replace(MARK, "").strip("-_.")
    return bool(name) and model.stem.lower().startswith(_PRECISION.sub("", name))


def _preference(path: Path) -> tuple[int, str]:
    precision = _PRECISION.search(path.stem.lower().replace(f"-{MARK}", ""))
    rank = PRECISIONS.index(precision[1]) if precision else len(PRECISIONS)
    return rank, path.name


NONE, MEAN, CLS, LAST, RANK = range(5)  # llama_pooling_type (llama.h)
POOLINGS: Mapping[str, int] = {"mean": MEAN, "cls": CLS, "last": LAST, "rank": RANK}
# Architectures that read a text in both directions and write none (llama-arch.cpp); without a
# pooling of their own, the mean is taken, as sentence-transformers does.
ENCODERS = frozenset(
    {
        "bert",
        "eurobert",
        "gemma-embedding",
        "jina-bert-v2",
        "jina-bert-v3",
        "llama-embed",
        "modern-bert",
        "neo-bert",
        "nomic-bert",
        "nomic-bert-moe",
        "t5encoder",
    }
)
LONGEST_BY_DEFAULT = 8_192  # tokens of one text: a pass takes it as a whole
MOST_ROWS = 64  # texts of one pass


def pooling(header: Header) -> int:
    """How the model makes one vector of a text's tokens; `NONE`: it makes none, it writes."""
    architecture = header.text("general.architecture")
    named = header.number(f"{architecture}.pooling_type", NONE)
    known = named if named in POOLINGS.values() else NONE  # a file may say "unspecified": 2**32 - 1
    return MEAN if known == NONE and architecture in ENCODERS else known


def task(header: Header) -> Task:
    """What it is for."""
    kind = pooling(header)
    if kind == NONE:
        return "generate"
    return "rank" if kind == RANK else "embed"


def text_length(files: ModelFiles, options: LlamaCppOptions) -> int:
    """Tokens of one text."""
    length = options.context_length or min(files.context_length, LONGEST_BY_DEFAULT)
    return min(length, files.positions or length)


def pass_length(files: ModelFiles, options: LlamaCppOptions) -> int:
    """Tokens of one pass. Only with causal attention, where the last token represents the whole,
    could a text be computed in parts. Files don't state that here, so every text is computed at
    once.
    """
    return max(text_length(files, options), options.micro_batch_size)


def estimate(files: ModelFiles, options: LlamaCppOptions, weights: int) -> MemoryNeed:
    """Of a model with `weights` bytes: cells only where it reads from the beginning, then also
    scores for every word of the vocabulary; activations, and the attention mask of a pass.
    """
    tokens = pass_length(files, options)
    words = 0 if files.architecture in ENCODERS else 4 * files.vocab_size
    mask = tokens * (2 if options.flash_attention != "off" else 4 * (1 + files.heads))
    return MemoryNeed(
        weights=weights,
        cache=tokens * files.cache_bytes_per_token,
        engine=tokens * (files.activation_bytes + words + mask),
    )
