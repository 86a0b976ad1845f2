"""The memory that a model's graph takes, from the dimensions in its header. No engine."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from backends.llamacpp.gguf import Header, Tensor

# The weights that show what a layer has. A linear attention's projection has a softmax attention's
# name, but such a layer has a convolution too (qwen3next).
KEYS = frozenset({"attn_k.weight", "attn_kv_a_mqa.weight"})
JOINED = "attn_qkv.weight"
CONVOLUTION, SSM = "shortconv.conv.weight", "ssm_conv1d.weight"

MOST_LAYERS = 512  # LLAMA_MAX_LAYERS; llama.cpp refuses a file with more

# Values of one token at the widest place of a recurrent layer, by its width (fitted to llama.cpp's
# `compute buffer size` over random models).
CONVOLUTION_VALUES, SSM_VALUES = 7.5, 6.6

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


class Graph(msgspec.Struct, frozen=True):
    """In bytes. `cache`: keys and values of one token over all layers that attend, at 16 bits;
    `sliding`: of it, what layers have that see no more than `window` tokens; `state`: of one
    sequence in one recurrent layer; `activation`: of one token in a pass, and `attention` while it
    attends.
    """

    cache: int
    sliding: int
    window: int
    activation: int
    attention: int
    state: int = 0
    recurrent_layers: int = 0


def graph(header: Header, tensors: Iterable[Tensor]) -> Graph:
    """`tensors`: those of all parts of the model."""
    architecture = header.text("general.architecture")
    dimensions = _Dimensions(header, architecture, _layers(tensors))
    return Graph(
        cache=dimensions.cache(),
        sliding=dimensions.sliding_cache(),
        window=dimensions.window(),
        activation=4 * max(dimensions.activations()),
        attention=4 * dimensions.activations()[1],
        state=4 * dimensions.state(),
        recurrent_layers=len(dimensions.recurrent()),
    )


def _layers(tensors: Iterable[Tensor]) -> Mapping[int, frozenset[str]]:
    """The names of each layer's weights: of `blk.3.attn_k.weight`, the end."""
    found: dict[int, set[str]] = defaultdict(set)
    for tensor in tensors:
        kind, _, rest = tensor.name.partition(".")
        number, _, name = rest.partition(".")
        if kind == "blk" and number.isdecimal():
            found[int(number)].add(name)
    return {number: frozenset(names) for number, names in found.items()}


class _Dimensions(msgspec.Struct, frozen=True):
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

    def cache(self) -> int:
        return sum(map(self._cell, self._keeping()))

    def sliding_cache(self) -> int:
        return sum(self._cell(layer) for layer in self._keeping() if self._slides(layer))

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
        inner, state = self.number("ssm.inner_size"), self.number("ssm.state_size")
        seen = inner + 2 * self.number("ssm.group_count") * state
        return max(self.number("ssm.conv_kernel") - 1, 0) * seen + state * inner

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
            int(SSM_VALUES * self.number("ssm.inner_size")),
            int(CONVOLUTION_VALUES * width) if self.number("shortconv.l_cache") else 0,
        )
