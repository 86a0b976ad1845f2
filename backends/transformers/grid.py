"""The KV cache: rows of cells, one row per sequence, shared by all requests.

    row 0  [t t t t t t . . . . . . ]     cell k of a row holds keys and values of its token k;
    row 1  [t t t . . . . . . . . . ]     what lies behind a sequence's end is garbage that
    row 2  [t t t t t t t t t . . . ]     no mask lets through

transformers' own caches make all sequences of a batch grow in step; here each row has its own
length. A pass `aim`s at a run of neighbouring rows, writes its new tokens into their cells by
index, and attention reads the rows' beginnings as a view: nothing is copied. Layers learn their
shape from the first tokens they are given.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

# --------------------------------------------------------------------------------------------- room
# How many rows of how many cells the KV cache should have. Pure: decides, touches nothing.


BLOCK = 64  # cells; capacities are multiples of it
GENEROSITY = 1.5  # a grid that must grow grows by this much, so that it seldom has to


class Size(msgspec.Struct, frozen=True):
    """`rows` sequences of up to `capacity` tokens."""

    rows: int
    capacity: int


class GridLimit(msgspec.Struct, frozen=True):
    """What the grid may take: `rows` at most, `tokens` cells in all, `length` cells in one row."""

    rows: int
    tokens: int
    length: int


def fit(present: Size, rows: int, cells: int, limit: GridLimit) -> Size | None:
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


class Aim:
    """What a pass is about to write and read; the layers read it from here.

    While a pass is recorded (`traced`) sizes are tensors, and so is `length`.
    """

    def __init__(self, first: int, positions: torch.Tensor, length: int) -> None:
        self.first = first  # the first row
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
            self.lazy_initialization(key_states, value_states)
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

    def reshape(self, rows: int, capacity: int) -> None:
        """New cells of another size, with what fits of the old ones."""
        if not self.is_initialized:
            return
        self.keys = _moved(self.keys, rows, capacity)
        self.values = _moved(self.values, rows, capacity)


class Grid:
    """`rows` sequences of up to `capacity` tokens. `cache` is what the model is given."""

    def __init__(self, layers: int) -> None:
        self.rows = 0
        self.capacity = 0
        self.aim = Aim(0, torch.empty(0, 0), 0)
        self._layers = [GridLayer(self) for _ in range(layers)]
        self.cache = Cache(layers=self._layers)

    def point(self, first: int, positions: torch.Tensor, length: int) -> None:
        """The next pass writes row `first + r`'s new tokens at `positions[r]` and reads `length`
        cells of each.
        """
        self.aim = Aim(first, positions, length)

    def over(self, cells: Sequence[torch.Tensor]) -> "Grid":
        """The same layers with other `cells`, as `cells` gives them."""
        other = Grid(len(self._layers))
        pairs = zip(cells[::2], cells[1::2], strict=True)
        for at, layer in enumerate(self._layers):
            if layer.is_initialized:
                other._layers[at] = layer.over(*next(pairs), other)
        other.cache = Cache(layers=other._layers)
        return other

    def reshape(self, rows: int, capacity: int) -> None:
        """Rows and cells beyond the new size are lost."""
        self.rows, self.capacity = rows, capacity
        for layer in self._layers:
            layer.reshape(rows, capacity)

    def copy(self, source: int, target: int, count: int) -> None:
        """The first `count` cells of row `source` into row `target`."""
        for cells in self.cells:
            cells[target, :, :count] = cells[source, :, :count]

    def swap(self, one: int, other: int, count: int) -> None:
        """Two rows change places; `count` cells of them matter."""
        for cells in self.cells:
            kept = cells[one, :, :count].clone()
            cells[one, :, :count] = cells[other, :, :count]
            cells[other, :, :count] = kept

    def clear(self) -> None:
        """Give the memory back."""
        self.rows = self.capacity = 0
        for layer in self._layers:
            layer.keys = layer.values = None
            layer.is_initialized = False

    @property
    def cells(self) -> list[torch.Tensor]:
        """Keys and values of each layer in turn that keeps any; none before the first pass."""
        held = [layer for layer in self._layers if layer.is_initialized]
        return [cells for layer in held for cells in (layer.keys, layer.values)]


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
