"""The header of a GGUF file: metadata and tensor table, read without an engine.

Format: github.com/ggml-org/ggml/blob/master/docs/gguf.md. Long arrays (the vocabulary) are skipped,
not built.
"""

import math
import mmap
import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

MAGIC = b"GGUF"
VERSIONS = (2, 3)
EMBEDDING = "token_embd.weight"
TOKENS, TOKEN_TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
BYTE_TOKEN = 6  # llama_token_type
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


class GgufWords(msgspec.Struct, frozen=True):
    """What a file's list of tokens is like. `twice`: one that is spelled as another; `byte_tokens`:
    the texts of those that the file says stand for single bytes; `bytes_known`: the bytes that have
    a token, by themselves or as `<0x41>`.
    """

    count: int
    twice: bytes
    byte_tokens: tuple[bytes, ...]
    bytes_known: frozenset[int]
    longest: int  # bytes


class Header(msgspec.Struct, frozen=True):
    """What the file says of itself. `words`: None: it has no tokens. `kinds`: the types of the
    values by their keys (gguf_type).
    """

    metadata: Mapping[str, Value]
    tensors: tuple[Tensor, ...]
    words: GgufWords | None = None
    kinds: Mapping[str, int] = {}

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding; 0: it isn't in this file."""
        shapes = (tensor.shape for tensor in self.tensors if tensor.name == EMBEDDING)
        return next((shape[-1] for shape in shapes if shape), 0)

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


class GgufModel(msgspec.Struct, frozen=True):
    """A model's header. `tensors`: those of all its files."""

    header: Header
    tensors: Sequence[Tensor]

    @property
    def architecture(self) -> str:
        return self.header.text("general.architecture")

    def value(self, key: str) -> Value:
        """Of the model's own architecture."""
        return self.header.metadata.get(f"{self.architecture}.{key}")

    def numbers(self, key: str) -> tuple[float, ...]:
        found = self.value(key)
        several = found if isinstance(found, tuple) else (found,)
        return tuple(one for one in several if isinstance(one, int | float))

    def number(self, key: str) -> int:
        """The largest; 0: it isn't there."""
        return int(max((one for one in self.numbers(key) if isfinite(one)), default=0))

    def number_of(self, key: str, layer: int, default: int = 0) -> int:
        """Of one layer, where each may have its own."""
        return self.header.number_of(f"{self.architecture}.{key}", layer, default)


def read_header(path: Path) -> Header:
    """Raises BrokenFile with the reason, OSError when the file can't be opened."""
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise BrokenFile("it doesn't begin with 'GGUF'")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _Reader(data).header()
            except (struct.error, LookupError, OverflowError, ValueError) as error:
                raise BrokenFile(f"its header can't be read ({error})") from error


def _twice(words: Sequence[bytes]) -> bytes:
    """The first that another one before it is; llama.cpp reads each up to a byte 0, and gives those
    without text names of their own. Nothing: there is none.
    """
    if len(set(words)) == len(words) and b"\0" not in b"".join(words):
        return b""
    seen: set[bytes] = set()
    for word in words:
        if (bare := word.partition(b"\0")[0]) and bare in seen:
            return bare
        seen.add(bare)
    return b""


def _places_of(wanted: int, numbers: Sequence[int]) -> Sequence[int]:
    """Where it stands; few are wanted of many."""
    if wanted not in numbers:
        return ()
    return [place for place, number in enumerate(numbers) if number == wanted]


def _bytes_known(words: Sequence[bytes]) -> frozenset[int]:
    short = {word for word in words if len(word) in (1, 6)}
    return frozenset(n for n in range(256) if bytes((n,)) in short or b"<0x%02X>" % n in short)


class _Reader:
    """Walks the bytes; `at` is the position."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = len(MAGIC)

    def header(self) -> Header:
        version = self._number("<I")
        if version not in VERSIONS:
            raise BrokenFile(f"its version is {version}, known are 2 and 3")
        tensors, entries = self._count(), self._count()
        metadata: dict[str, Value] = {}
        places: dict[str, int] = {}
        kinds: dict[str, int] = {}
        for _ in range(entries):
            key = self._text()
            places[key] = self._at
            kinds[key] = self._number("<I")
            metadata[key] = self._value(kinds[key])
        table = self._tensor_table(tensors, metadata)
        return Header(metadata, table, self._vocabulary(places), kinds)

    def _vocabulary(self, places: Mapping[str, int]) -> GgufWords | None:
        """`places`: where the values of keys are."""
        if TOKENS not in places:
            return None
        words = self._list(places[TOKENS], _STRING, self._strings)
        kinds = self._list(places.get(TOKEN_TYPES, 0), _INT32, self._integers)
        marked = _places_of(BYTE_TOKEN, kinds[: len(words)])
        spelled = tuple(words[place] for place in marked)
        longest = max(map(len, words), default=0)
        return GgufWords(len(words), _twice(words), spelled, _bytes_known(words), longest)

    def _list(self, at: int, kind: int, read: Callable[[int], Sequence[T]]) -> Sequence[T]:
        """The array whose value begins at `at`; nothing where it isn't one of that kind."""
        self._at = at
        if not at or (self._number("<I"), self._number("<I")) != (_ARRAY, kind):
            return ()
        return read(self._count())

    def _integers(self, count: int) -> Sequence[int]:
        numbers = array("i")
        numbers.frombytes(self._data[self._at : self._at + 4 * count])
        return numbers

    def _strings(self, count: int) -> list[bytes]:
        """A vocabulary has hundreds of thousands, so this is one plain loop; so is the next."""
        data, at, found = self._data, self._at, []
        for _ in range(count):
            begin = at + 8
            at = begin + _LENGTH(data, at)[0]
            found.append(data[begin:at])
        return found

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
            raise BrokenFile(f"it is cut off: {missing:,} bytes are missing ({last})")
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
        return self._bytes().decode()

    def _bytes(self) -> bytes:
        length = self._count()
        if self._at + length > len(self._data):
            raise BrokenFile("its header is cut off")
        self._at += length
        return self._data[self._at - length : self._at]

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
