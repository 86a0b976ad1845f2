"""GGUF files as data: read, changed in one place, and written as they then are, however absurd.

Format: github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import struct
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from backends.engines.llamacpp.gguf import BLOCKS, MAGIC

SCALARS: Mapping[int, str] = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q",
    12: "<d",
}  # fmt: skip
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 4, 5, 6, 7, 8, 9, 10
ALIGNMENT = 32


class Entry(msgspec.Struct, frozen=True):
    """A value of the header by its type's number; of an array, the type of its items and they."""

    kind: int
    value: Any


class RawTensor(msgspec.Struct, frozen=True):
    """`data` of another size than `kind` and `shape` say is written as zeros."""

    name: str
    kind: int
    shape: tuple[int, ...]
    data: bytes = b""

    @property
    def size(self) -> int:
        bytes_of_block, values = BLOCKS.get(self.kind, (1, 1))
        return prod(self.shape) // values * bytes_of_block


class RawFile(msgspec.Struct, frozen=True):
    entries: Mapping[str, Entry]
    tensors: Sequence[RawTensor]

    def with_value(self, key: str, kind: int, value: Any) -> "RawFile":
        """With `value` under `key`."""
        return RawFile({**self.entries, key: Entry(kind, value)}, self.tensors)

    def without(self, key: str) -> "RawFile":
        left = {one: entry for one, entry in self.entries.items() if one != key}
        return RawFile(left, self.tensors)

    def retyped(self, name: str, kind: int) -> "RawFile":
        """The tensor `name` as another type; its values are gone."""
        changed = [
            msgspec.structs.replace(one, kind=kind) if one.name == name else one
            for one in self.tensors
        ]
        return RawFile(self.entries, changed)

    def added(self, tensor: RawTensor) -> "RawFile":
        return RawFile(self.entries, [*self.tensors, tensor])


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def text(self) -> bytes:
        length = self.number("<Q")
        self.at += length
        return self.data[self.at - length : self.at]

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            item, count = self.number("<I"), self.number("<Q")
            return item, [self.value(item) for _ in range(count)]
        return self.number(SCALARS[kind])


def read(path: Path) -> RawFile:
    """All of it, the tensors' data too."""
    cursor = _Cursor(path.read_bytes())
    cursor.at = len(MAGIC) + 4
    tensors, count = cursor.number("<Q"), cursor.number("<Q")
    entries = {}
    for _ in range(count):
        key, kind = cursor.text().decode(), cursor.number("<I")
        entries[key] = Entry(kind, cursor.value(kind))
    table = [_tensor(cursor) for _ in range(tensors)]
    start = -(-cursor.at // ALIGNMENT) * ALIGNMENT
    return RawFile(entries, [_with_data(one, start + at, cursor.data) for one, at in table])


def _tensor(cursor: _Cursor) -> tuple[RawTensor, int]:
    name, dimensions = cursor.text().decode(), cursor.number("<I")
    shape = tuple(cursor.number("<Q") for _ in range(dimensions))
    kind, offset = cursor.number("<I"), cursor.number("<Q")
    return RawTensor(name, kind, shape), offset


def _with_data(tensor: RawTensor, at: int, data: bytes) -> RawTensor:
    return msgspec.structs.replace(tensor, data=data[at : at + tensor.size])


def write(file: RawFile, path: Path) -> Path:
    """As version 3. Where data is zeros the file has a hole."""
    head, data = [_text(key) + _entry(entry) for key, entry in file.entries.items()], 0
    places = []
    for tensor in file.tensors:
        shape = b"".join(struct.pack("<Q", one) for one in tensor.shape)
        described = struct.pack("<I", len(tensor.shape)) + shape
        head.append(_text(tensor.name) + described + struct.pack("<IQ", tensor.kind, data))
        places.append(data)
        data += -(-tensor.size // ALIGNMENT) * ALIGNMENT
    counts = struct.pack("<IQQ", 3, len(file.tensors), len(file.entries))
    header = MAGIC + counts + b"".join(head)
    start = -(-len(header) // ALIGNMENT) * ALIGNMENT
    with path.open("wb") as out:
        out.write(header)
        out.truncate(start + data)
        for tensor, place in zip(file.tensors, places, strict=True):
            if len(tensor.data) == tensor.size:
                out.seek(start + place)
                out.write(tensor.data)
    return path


def _text(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def _entry(entry: Entry) -> bytes:
    return struct.pack("<I", entry.kind) + _value(entry.kind, entry.value)


def _value(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return _text(value)
    if kind == ARRAY:
        item, values = value
        return struct.pack("<IQ", item, len(values)) + b"".join(_value(item, one) for one in values)
    return struct.pack(SCALARS[kind], value)
