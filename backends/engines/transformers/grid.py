"""The cache: rows of cells and of states, one row per sequence, shared by all requests.

    row 0  [t t t t t t . . . . . . ]  s  cell k of a row holds keys and values of its token k;
    row 1  [t t t . . . . . . . . . ]  s  what lies behind a sequence's end is garbage that
    row 2  [t t t t t t t t t . . . ]  s  no mask lets through. A state is that after the last one

transformers' own caches make all sequences of a batch grow in step; here each row has its own
length. A pass `aim`s at a run of neighbouring rows, writes its new tokens into their cells by
index, and attention reads the rows' beginnings as a view: nothing is copied. States, of recurrent
layers and of convolutions, are changed where they lie. Layers learn their shape from the first
tokens they are given.
"""

import mmap
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from transformers.cache_utils import Cache, CacheLayerMixin, LinearAttentionLayer

from backends.engines.transformers.files import CacheSize

# How many rows of how many cells the KV cache should have. Pure: decides, touches nothing.


BLOCK = 64  # cells; capacities are multiples of it
GENEROSITY = 1.5  # a grid that must grow grows by this much, so that it seldom has to


class Size(msgspec.Struct, frozen=True):
    """`rows` sequences of up to `capacity` tokens."""

    rows: int
    capacity: int


def fit(present: Size, rows: int, cells: int, limit: CacheSize) -> Size | None:
    """The size with room for `rows` sequences, the longest of `cells` tokens; `present` if that
    will do.

    None: they don't fit together. One row of `limit.length` always fits.
    """
    if present.rows >= rows and present.capacity >= cells:
        return present
    affordable = max(limit.tokens, limit.length) // rows
    if rows > limit.rows or cells > affordable:
        return None
    generous = -(-int(cells * GENEROSITY) // BLOCK) * BLOCK
    capacity = max(cells, min(generous, affordable, limit.length))
    return Size(rows=max(rows, min(limit.rows, limit.tokens // capacity)), capacity=capacity)


class KeptByLayer(msgspec.Struct, frozen=True):
    """What a layer keeps of a sequence: `cells`, and so many `states`."""

    cells: bool = True
    states: int = 0


class Aim:
    """What a pass is about to write and read; the layers read it from here.

    While a pass is recorded (`traced`) sizes are tensors, and so is `length`.
    """

    def __init__(self, first: int, positions: torch.Tensor, length: int) -> None:
        self.first = first  # the first row
        self.rows = positions.shape[0]
        self.length = length  # cells to read in each row
        self._positions = positions
        self._cells: dict[int, torch.Tensor] = {}

    def cells(self, heads: int, capacity: int) -> torch.Tensor:
        """Where each head of each new token goes, counted over a layer's whole grid."""
        found = self._cells.get(heads)
        if found is None:
            rows, device = self._positions.shape[0], self._positions.device
            lines = torch.arange(self.first * heads, (self.first + rows) * heads, device=device)
            starts = (lines * capacity).view(rows, heads, 1)
            found = self._cells[heads] = (starts + self._positions[:, None, :]).flatten()
        return found


class GridLayer(CacheLayerMixin):
    """One layer's keys and values, each (rows, heads, capacity, width).

    Heads come before cells: attention reads one head's cells after another, and takes half as long
    when they lie side by side (measured on a CPU, 1,000 cells).
    """

    is_sliding = False

    def __init__(self, grid: "Grid") -> None:
        super().__init__()
        self._grid = grid
        self._heads = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys = self._blank(key_states)
        self.values = self._blank(value_states)
        self._heads = self.keys.shape[1]
        self.is_initialized = True

    def over(self, keys: torch.Tensor, values: torch.Tensor, grid: "Grid") -> "GridLayer":
        """The same layer of another grid, with these cells."""
        other = GridLayer(grid)
        other.keys, other.values, other._heads = keys, values, self._heads
        other.is_initialized = True
        return other

    def _blank(self, states: torch.Tensor) -> torch.Tensor:
        shape = (self._grid.rows, states.shape[1], self._grid.capacity, states.shape[3])
        return torch.zeros(shape, dtype=states.dtype, device=states.device)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write (rows, heads, tokens, width) where the grid aims; returns all that these rows may
        see.
        """
        if not self.is_initialized:
            GridLayer.lazy_initialization(self, key_states, value_states)  # see `HybridLayer`
        aim = self._grid.aim
        return (
            _written(self.keys, key_states, aim, self._heads),
            _written(self.values, value_states, aim, self._heads),
        )

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._grid.aim.length, 0

    def get_seq_length(self) -> int:
        return self._grid.aim.length

    def get_max_length(self) -> int:
        return -1

    def reshape_cells(self, rows: int, capacity: int) -> None:
        """New cells of another size, with what fits of the old ones."""
        if not self.is_initialized:
            return
        self.keys = _moved(self.keys, rows, capacity)
        self.values = _moved(self.values, rows, capacity)


class StateLayer(LinearAttentionLayer):
    """One layer's states, each (rows, …), numbered: of convolutions and of recurrences.

    What transformers calls `conv_states` and `recurrent_states` are the rows that the pass aims at,
    as views. A sequence begins with a state of zeros, so that every pass but a layer's first goes
    on from a state.
    """

    def __init__(self, grid: "Grid", count: int) -> None:
        super().__init__(number_of_states=count)
        self._grid = grid
        self._whole: dict[tuple[str, int], torch.Tensor] = {}

    def lazy_initialization(
        self,
        conv_states: torch.Tensor | None = None,
        recurrent_states: torch.Tensor | None = None,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
    ) -> None:
        if conv_states is not None:
            width = conv_kernel_size or conv_states.shape[-1]
            self.conv_kernel_size[state_idx] = width
            shape = (*conv_states.shape[1:-1], width)
            self._whole["conv_states", state_idx] = self._zeros(conv_states, shape)
            self.is_conv_states_initialized[state_idx] = True
        if recurrent_states is not None:
            shape = tuple(recurrent_states.shape[1:])
            self._whole["recurrent_states", state_idx] = self._zeros(recurrent_states, shape)
            self.is_recurrent_states_initialized[state_idx] = True
        self.point(self._grid.aim)

    def _zeros(self, like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return torch.zeros((self._grid.rows, *shape), dtype=like.dtype, device=like.device)

    def point(self, aim: Aim) -> None:
        for (name, number), states in self._whole.items():
            getattr(self, name)[number] = states[aim.first : aim.first + aim.rows]

    @property
    def states(self) -> Sequence[torch.Tensor]:
        return tuple(self._whole.values())

    def reshape_states(self, rows: int) -> None:
        for place, states in self._whole.items():
            moved = states.new_zeros((rows, *states.shape[1:]))
            both = min(rows, len(states))
            moved[:both] = states[:both]
            self._whole[place] = moved


class HybridLayer(StateLayer, GridLayer):
    """A layer that keeps both."""

    def __init__(self, grid: "Grid", count: int) -> None:
        GridLayer.__init__(self, grid)
        StateLayer.__init__(self, grid, count)


class Grid:
    """`rows` sequences of up to `capacity` tokens. `cache` is what the model is given."""

    def __init__(self, layers: Sequence[KeptByLayer]) -> None:
        self.aim = Aim(0, torch.empty(0, 0), 0)
        self._kept = layers
        self.keeps_states = any(kept.states for kept in layers)
        self.clear()

    def clear(self) -> None:
        """Nothing is left of it, and its memory is given back."""
        self.rows = self.capacity = 0
        self._layers = [_layer(self, kept) for kept in self._kept]
        self.cache = Cache(layers=self._layers)

    def point(self, first: int, positions: torch.Tensor, length: int) -> None:
        """The next pass writes row `first + r`'s new tokens at `positions[r]` and reads `length`
        cells of each.
        """
        self.aim = Aim(first, positions, length)
        for layer in self._stateful:
            layer.point(self.aim)

    def over(self, cells: Sequence[torch.Tensor]) -> "Grid":
        """The same layers with other `cells`, as `cells` gives them."""
        other = Grid(self._kept)
        pairs = zip(cells[::2], cells[1::2], strict=True)
        for at, layer in enumerate(self._layers):
            if isinstance(layer, GridLayer) and layer.is_initialized:
                other._layers[at] = layer.over(*next(pairs), other)
        other.cache = Cache(layers=other._layers)
        return other

    def reshape(self, rows: int, capacity: int) -> None:
        """Rows and cells beyond the new size are lost."""
        self.rows, self.capacity = rows, capacity
        for layer in self._attending:
            layer.reshape_cells(rows, capacity)
        for layer in self._stateful:
            layer.reshape_states(rows)

    def copy(self, source: int, target: int, count: int) -> None:
        """The first `count` cells of row `source`, and its states, into row `target`."""
        for there, here in zip(self._of(target, count), self._of(source, count), strict=True):
            there.copy_(here)

    def swap(self, one: int, other: int, count: int) -> None:
        """Two rows change places; `count` cells of them matter."""
        for here, there in zip(self._of(one, count), self._of(other, count), strict=True):
            kept = here.clone()
            here.copy_(there)
            there.copy_(kept)

    def begin(self, row: int) -> None:
        """A sequence begins in the row."""
        for states in self._states:
            states[row].zero_()

    def _of(self, row: int, count: int) -> list[torch.Tensor]:
        """The first `count` cells of a row, and its states, as they lie there."""
        return [*(cells[row, :, :count] for cells in self.cells), *self.states(row)]

    def states(self, row: int) -> list[torch.Tensor]:
        """Those of one row, as they lie there."""
        return [states[row] for states in self._states]

    def taken(self, row: int) -> list[torch.Tensor]:
        """A copy of them in main memory: beside the heap, where each that outlasts a pass would
        leave a hole too small for the next one's activations.
        """
        states = self.states(row)
        apart = np.frombuffer(mmap.mmap(-1, self.state_bytes), np.uint8)
        copies = from_bytes(apart, states)
        assert copies is not None
        for copy, one in zip(copies, states, strict=True):
            copy.copy_(one)
        return copies

    def put_back(self, row: int, kept: Sequence[torch.Tensor]) -> None:
        """What were its `states` once, from whatever device."""
        for states, before in zip(self._states, kept, strict=True):
            states[row] = before.to(states.device)

    def whole(self, row: int, count: int) -> npt.NDArray[np.uint8]:
        """The first `count` cells of a row, and its states; none before the first pass."""
        return as_bytes(self._of(row, count))

    def parts(
        self, row: int, whole: npt.NDArray[np.uint8], count: int
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]] | None:
        """Of what was a `whole` of `count` cells: each layer's cells, and its states, in main
        memory. None: it isn't of this grid.
        """
        shapes = [
            torch.empty((cells.shape[1], count, cells.shape[3]), dtype=cells.dtype, device="meta")
            for cells in self.cells
        ]
        parts = from_bytes(whole, [*shapes, *self.states(row)])
        return None if parts is None else (parts[: len(shapes)], parts[len(shapes) :])

    def fill(self, row: int, parts: Sequence[torch.Tensor], first: int, end: int) -> None:
        """Put back its cells from `first` to `end`."""
        for cells, part in zip(self.cells, parts, strict=True):
            cells[row, :, first:end] = part[:, first:end].to(cells.device)

    @property
    def cell_bytes(self) -> int:
        """Of one cell of one row; 0 before the first pass."""
        return sum(cells[:1, :, :1].nbytes for cells in self.cells)

    @property
    def row_bytes(self) -> int:
        """All of a row; 0 before the first pass."""
        tensors = (*self._states, *self.cells)
        return sum(tensor[:1].nbytes for tensor in tensors)

    @property
    def state_bytes(self) -> int:
        """Of one row; 0 before the first pass."""
        return sum(states[:1].nbytes for states in self._states)

    @property
    def _states(self) -> Iterator[torch.Tensor]:
        return (states for layer in self._stateful for states in layer.states)

    @property
    def cells(self) -> list[torch.Tensor]:
        """Keys and values of each layer in turn that keeps any; none before the first pass."""
        held = [layer for layer in self._attending if layer.is_initialized]
        return [cells for layer in held for cells in (layer.keys, layer.values)]

    @property
    def _attending(self) -> Iterator[GridLayer]:
        return (layer for layer in self._layers if isinstance(layer, GridLayer))

    @property
    def _stateful(self) -> Iterator[StateLayer]:
        return (layer for layer in self._layers if isinstance(layer, StateLayer))


def as_bytes(tensors: Sequence[torch.Tensor]) -> npt.NDArray[np.uint8]:
    """One after the other."""
    if not tensors:
        return np.empty(0, np.uint8)
    flat = [one.detach().cpu().contiguous().flatten().view(torch.uint8).numpy() for one in tensors]
    return np.concatenate(flat)


def from_bytes(
    data: npt.NDArray[np.uint8], like: Sequence[torch.Tensor]
) -> list[torch.Tensor] | None:
    """Tensors of those shapes and types, in main memory, which nobody changes: the same bytes
    where they lie as the type wants it. None where there are more of them, or fewer.
    """
    if len(data) != sum(one.nbytes for one in like):
        return None
    found, start = [], 0
    for one in like:
        there = data[start : start + one.nbytes]
        if not there.flags.writeable or there.ctypes.data % one.element_size():
            there = there.copy()
        raw = torch.from_numpy(there)
        found.append(raw.view(one.dtype).view(one.shape))
        start += one.nbytes
    return found


def _layer(grid: Grid, kept: KeptByLayer) -> GridLayer | StateLayer:
    if not kept.states:
        return GridLayer(grid)
    return HybridLayer(grid, kept.states) if kept.cells else StateLayer(grid, kept.states)


def _written(cells: torch.Tensor, states: torch.Tensor, aim: Aim, heads: int) -> torch.Tensor:
    rows, width = states.shape[0], states.shape[3]
    cells.view(-1, width).index_copy_(
        0, aim.cells(heads, cells.shape[2]), states.reshape(-1, width)
    )
    return cells[aim.first : aim.first + rows, :, : aim.length]


def _moved(cells: torch.Tensor, rows: int, capacity: int) -> torch.Tensor:
    moved = cells.new_zeros((rows, cells.shape[1], capacity, cells.shape[3]))
    both_rows, both_cells = min(rows, cells.shape[0]), min(capacity, cells.shape[2])
    moved[:both_rows, :, :both_cells] = cells[:both_rows, :, :both_cells]
    return moved
