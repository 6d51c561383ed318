"""The bytes of one tensor, in pieces, in the order in which safetensors wants them."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import Any

from .checkpoint import Checkpoint
from .unpickle import CannotConvert, StoredTensor

PIECE = 8 << 20
# A format of that many bytes for memoryview, to step over elements with.
_FORMATS = {1: "B", 2: "H", 4: "I", 8: "Q"}


def pieces(checkpoint: Checkpoint, tensor: StoredTensor) -> Iterator[bytes | memoryview]:
    """The elements of a tensor side by side, in pieces of about 8 MiB at most."""
    if tensor.nbytes == 0:
        return
    base = checkpoint.place(tensor.storage)
    if tensor.contiguous:
        yield from _run(checkpoint.file.fileno(), base + tensor.offset * tensor.dtype.size, tensor.nbytes)
    else:
        yield from _strided(checkpoint.file.fileno(), base, tensor)


def _run(descriptor: int, start: int, size: int) -> Iterator[bytes]:
    end = start + size
    while start < end:
        piece = os.pread(descriptor, min(PIECE, end - start), start)
        if not piece:
            raise CannotConvert("the file has become shorter while it was read")
        yield piece
        start += len(piece)


def _strided(descriptor: int, base: int, tensor: StoredTensor) -> Iterator[memoryview]:
    """Element runs out of a mapping, whose pages the kernel can take back at any time."""
    size = tensor.dtype.size
    first = base - base % mmap.ALLOCATIONGRANULARITY
    length = base - first + tensor.storage.nbytes
    form: Any = _FORMATS[size]
    with (
        mmap.mmap(descriptor, length, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, offset=first) as memory,
        memoryview(memory) as whole,
        whole[base - first : base - first + tensor.storage.nbytes // size * size] as data,
        data.cast(form) as elements,
    ):
        out, filled = memoryview(bytearray(PIECE)).cast(form), 0
        for start, count, step in _runs(tensor):
            done = 0
            while done < count:
                take = min(count - done, len(out) - filled)
                at = start + done * step
                if step:
                    # A slice that ends with its last element, so that the step does not lead beyond.
                    out[filled : filled + take] = elements[at : at + (take - 1) * step + 1 : step]
                else:
                    for index in range(filled, filled + take):
                        out[index] = elements[at]
                filled += take
                done += take
                if filled == len(out):
                    yield out.cast("B")
                    filled = 0
        yield out[:filled].cast("B")


def _runs(tensor: StoredTensor) -> Iterator[tuple[int, int, int]]:
    """(start, count, step) of each run along the last dimension, in elements of the storage."""
    *outer, count = tensor.shape
    *steps, step = tensor.stride
    index = [0] * len(outer)
    while True:
        yield tensor.offset + sum(i * s for i, s in zip(index, steps, strict=True)), count, step
        for place in reversed(range(len(outer))):
            index[place] += 1
            if index[place] < outer[place]:
                break
            index[place] = 0
        else:
            return
