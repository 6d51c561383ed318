"""The header of a safetensors file: what is in it and where, checked before anything is believed.

The format: 8 bytes with the length of the header (little-endian), the header as a JSON object, then the tensors, whose
`data_offsets` count from the end of the header. They cover the rest of the file without holes or overlaps.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

from .errors import WeightfsError

# The format's own limit.
MAX_HEADER = 100_000_000

# Bits of an element, by the format's names. Those that are no whole bytes are packed.
BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
}  # fmt: skip


class InvalidFile(WeightfsError, ValueError):
    """The file is no safetensors file, or a damaged one."""


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file: `start` and `end` are offsets in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return self.end - self.start


@dataclass(frozen=True)
class Header:
    """What a file holds. `tensors` are by name, in the order of their places in the file."""

    size: int
    tensors: dict[str, Tensor]
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def data_bytes(self) -> int:
        """All tensors together: what loading the file takes, in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def read(file: str | os.PathLike[str] | int) -> Header:
    """The header of a file or an open descriptor. Raises `InvalidFile`, or `OSError` if it cannot be read."""
    if not isinstance(file, int):
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return read(descriptor)
        finally:
            os.close(descriptor)
    size = os.fstat(file).st_size
    first = _exactly(file, 8, 0)
    length = int.from_bytes(first, "little")
    if length > min(MAX_HEADER, size - 8):
        raise InvalidFile(f"no safetensors file, or not all of it: a header of {length} bytes in a file of {size}")
    return parse(_exactly(file, length, 8), size)


def parse(text: bytes, size: int) -> Header:
    """The header `text` of a file of `size` bytes. Raises `InvalidFile`."""
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidFile(f"the header is not JSON: {error}") from None
    if not isinstance(entries, dict):
        raise InvalidFile("the header is no object")
    metadata = entries.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict):
        raise InvalidFile("the metadata of the header are no object")
    base = 8 + len(text)
    tensors = sorted((_tensor(name, entry, base) for name, entry in entries.items()), key=lambda t: (t.start, t.end))
    at = base
    for tensor in tensors:
        if tensor.start != at:
            raise InvalidFile(f"tensor {tensor.name!r} starts at byte {tensor.start} where byte {at} is next")
        at = tensor.end
    if at != size:
        raise InvalidFile(f"the tensors end at byte {at} of a file of {size}: it is damaged, or not all of it is there")
    return Header(size, {tensor.name: tensor for tensor in tensors}, metadata)


def _tensor(name: str, entry: Any, base: int) -> Tensor:
    try:
        dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        bits = BITS[dtype]
    except (KeyError, TypeError, ValueError):
        raise InvalidFile(f"the header does not say of tensor {name!r} what it is, or names an unknown type") from None
    if not all(type(n) is int and n >= 0 for n in (*shape, start, end)):
        raise InvalidFile(f"tensor {name!r} has a shape or place that is no list of numbers")
    for extent in shape:
        bits *= extent
    if bits != (end - start) * 8:
        raise InvalidFile(f"tensor {name!r} of type {dtype} and shape {shape} cannot take {end - start} bytes")
    return Tensor(name, dtype, tuple(shape), base + start, base + end)


def _exactly(descriptor: int, count: int, offset: int) -> bytes:
    content = bytearray()
    while len(content) < count:
        piece = os.pread(descriptor, min(count - len(content), 1 << 24), offset + len(content))
        if not piece:
            raise InvalidFile(f"no safetensors file, or not all of it: it ends after {offset + len(content)} bytes")
        content += piece
    return bytes(content)
