"""The header of a GGUF file: metadata and tensor table, read without an engine.

Format: github.com/ggml-org/ggml/blob/master/docs/gguf.md. Long arrays (the vocabulary) are skipped,
not built.
"""

import math
import mmap
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

MAGIC = b"GGUF"
VERSIONS = (2, 3)
EMBEDDING, POSITIONS = "token_embd.weight", "position_embd.weight"
OUTPUT = "output.weight"
_SCALARS = {
    0: "B",
    1: "b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_LENGTH = struct.Struct("<Q").unpack_from
_INT32, _STRING, _ARRAY = 5, 8, 9
_SHORT = 512  # arrays up to here are read, longer ones only counted
_MOST_DIMENSIONS = 4  # ggml's
_SANE = 1 << 32  # a longer text or count means that the file is broken

T = TypeVar("T")
Value: TypeAlias = "str | int | float | bool | tuple[Value, ...] | None"

# Bytes per block and values per block of each ggml type (ggml.c, type_traits): enough to size a
# tensor.
BLOCKS: Mapping[int, tuple[int, int]] = {
    0: (4, 1), 1: (2, 1), 2: (18, 32), 3: (20, 32), 6: (22, 32), 7: (24, 32),
    8: (34, 32), 9: (36, 32), 10: (84, 256), 11: (110, 256), 12: (144, 256), 13: (176, 256),
    14: (210, 256), 15: (292, 256), 16: (66, 256), 17: (74, 256), 18: (98, 256), 19: (50, 256),
    20: (18, 32), 21: (110, 256), 22: (82, 256), 23: (136, 256), 24: (1, 1), 25: (2, 1),
    26: (4, 1), 27: (8, 1), 28: (8, 1), 29: (56, 256), 30: (2, 1), 34: (54, 256),
    35: (66, 256), 39: (17, 32),
}  # fmt: skip


class BrokenFile(Exception):
    """The file says it is GGUF, but its header can't be read, or tensors lie outside the file."""


class CutOff(BrokenFile):
    """The header's end is missing."""

    def __str__(self) -> str:
        return "the file is incomplete (cut off in its header): download it again"


class Tensor(msgspec.Struct, frozen=True):
    """One of the file. `shape`: the values of a row first, as ggml counts; `size` in bytes, 0 for
    an unknown `kind` (ggml_type); `blocks`: of how many it consists.
    """

    name: str
    kind: int
    shape: tuple[int, ...]

    @property
    def blocks(self) -> int:
        return math.prod(self.shape) // BLOCKS.get(self.kind, (0, 1))[1]

    @property
    def size(self) -> int:
        return self.blocks * BLOCKS.get(self.kind, (0, 1))[0]


class Header(msgspec.Struct, frozen=True):
    """What the file says of itself."""

    metadata: Mapping[str, Value]
    tensors: tuple[Tensor, ...]

    def text(self, key: str, default: str = "") -> str:
        value = self.metadata.get(key)
        return value if isinstance(value, str) else default

    def number(self, key: str, default: int = 0) -> int:
        value = self.metadata.get(key)
        if isinstance(value, tuple) and value:  # per-layer values: the largest counts
            value = max(entry for entry in value if isinstance(entry, int))
        return int(value) if isinstance(value, int | float) and isfinite(value) else default

    def number_of(self, key: str, layer: int, default: int = 0) -> int:
        """A number that may have a value for each layer."""
        value = self.metadata.get(key)
        if isinstance(value, tuple):
            one = value[layer] if layer < len(value) else None
            return one if isinstance(one, int) else default
        return self.number(key, default)


def rows(tensors: Iterable[Tensor], name: str) -> int:
    """Of the tensor called so, such as the embedding; 0: it isn't there."""
    shapes = (tensor.shape for tensor in tensors if tensor.name == name)
    return next((shape[-1] for shape in shapes if shape), 0)


def read_header(path: Path) -> Header:
    """Raises BrokenFile with the reason, OSError when the file can't be opened."""
    with _reading(path) as reader:
        return reader.header()


def metadata_alone(path: Path) -> bytes:
    """A GGUF file with the metadata of that at `path` and no tensors: all that its vocabulary
    needs. Raises as `read_header`.
    """
    with _reading(path) as reader:
        return reader.without_tensors()


@contextmanager
def _reading(path: Path) -> "Iterator[_Reader]":
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise BrokenFile("it doesn't begin with 'GGUF'")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                yield _Reader(data)
            except struct.error:  # what it would unpack lies behind the end
                raise CutOff from None
            except (LookupError, OverflowError, ValueError) as error:
                raise BrokenFile(f"its header can't be read ({error})") from error


class _Reader(msgspec.Struct, eq=False):
    """Walks the bytes; `at` is the position."""

    _data: mmap.mmap
    _at: int = len(MAGIC)

    def header(self) -> Header:
        _, tensors, entries = self._begin()
        metadata = dict(self._entries(entries))
        return Header(metadata, self._tensor_table(tensors, metadata))

    def without_tensors(self) -> bytes:
        """The same metadata, but what says that there are further parts."""
        version, _, entries = self._begin()
        kept, start = [], self._at
        for key, _ in self._entries(entries):
            if self._at > len(self._data):
                raise CutOff
            if not key.startswith("split."):
                kept.append(self._data[start : self._at])
            start = self._at
        return b"".join((MAGIC, struct.pack("<IQQ", version, 0, len(kept)), *kept))

    def _begin(self) -> tuple[int, int, int]:
        """The version, and how many tensors and entries of metadata there are."""
        version = self._number("<I")
        if version not in VERSIONS:
            raise BrokenFile(f"its version is {version}, known are 2 and 3")
        return version, self._count(), self._count()

    def _entries(self, count: int) -> Iterator[tuple[str, Value]]:
        for _ in range(count):
            yield self._text(), self._value(self._number("<I"))

    def _skip_strings(self, count: int) -> None:
        data, at = self._data, self._at
        for _ in range(count):
            at += 8 + _LENGTH(data, at)[0]
        self._at = at

    def _tensor_table(self, count: int, metadata: Mapping[str, Value]) -> tuple[Tensor, ...]:
        end, last, table = 0, "", []
        for _ in range(count):
            name = self._text()
            if (dimensions := self._number("<I")) > _MOST_DIMENSIONS:
                raise BrokenFile(f"its tensor {name!r} has {dimensions:,} dimensions")
            shape = tuple(self._count() for _ in range(dimensions))
            table.append(Tensor(name, self._number("<I"), shape))
            offset = self._count()
            if offset + table[-1].size > end:
                end, last = offset + table[-1].size, name
        alignment = metadata.get("general.alignment")
        align = alignment if isinstance(alignment, int) and alignment else 32
        start = -(-self._at // align) * align
        if start + end > len(self._data):
            missing = start + end - len(self._data)
            lacking = f"cut off: {missing:,} bytes are missing, from {last} on"
            raise BrokenFile(f"the file is incomplete ({lacking}): download it again")
        return tuple(table)

    def _number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return value  # type: ignore[no-any-return]

    def _count(self) -> int:
        count = self._number("<Q")
        if count > _SANE:
            raise BrokenFile(f"a length of {count:,} in its header is not believable")
        return count

    def _text(self) -> str:
        length = self._count()
        if self._at + length > len(self._data):
            raise CutOff
        self._at += length
        return self._data[self._at - length : self._at].decode()

    def _value(self, kind: int) -> Value:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            return self._array(self._number("<I"), self._count())
        return self._number(_SCALARS[kind])

    def _array(self, kind: int, count: int) -> Value:
        if kind in _SCALARS and count > _SHORT:
            self._at += count * struct.calcsize(_SCALARS[kind])
            return None
        if kind == _STRING and count > _SHORT:
            self._skip_strings(count)
            return None
        return tuple(self._value(kind) for _ in range(count))
