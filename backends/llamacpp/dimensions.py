"""The memory that a model's graph takes, from the dimensions in its header. No engine."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

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


class Graph(msgspec.Struct, frozen=True):
    """In bytes. `cache`: keys and values of one token over all layers that attend, at 16 bits;
    `state`: of one sequence in one recurrent layer; `activation`: of one token in a pass, and
    `attention` while it attends.
    """

    cache: int
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
        heads, key, value = self.heads()
        name = f"{self.architecture}.attention.head_count_kv"
        return sum(
            self.header.number_of(name, layer, heads) * (key + value) * 2
            for layer in self.attending()
        )

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
