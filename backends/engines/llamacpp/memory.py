"""The memory that a GGUF model takes, by the headers of its files: its weights and its graph, or an
encoder's passes.

The rules are those of llama.cpp's source files, which are named at each; what its graph computes in
is fitted to what it reports. No engine.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from backends.contract.catalog import ModelFiles
from backends.contract.placement import LayerWeights, ModelWeights
from backends.contract.protocol import MemoryNeed, Task
from backends.engines.llamacpp.gguf import EMBEDDING, OUTPUT, Header, Tensor
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


def layers_of(tensors: Iterable[Tensor]) -> Mapping[int, frozenset[str]]:
    """The names of each layer's weights."""
    found: dict[int, set[str]] = defaultdict(set)
    for tensor in tensors:
        layer, name = _place_of(tensor.name)
        if layer is not None:
            found[layer].add(name)
    return {number: frozenset(names) for number, names in found.items()}


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
