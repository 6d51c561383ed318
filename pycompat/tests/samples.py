"""Model files with contents that can be told apart, written without any package."""

from __future__ import annotations

import json
import random
from pathlib import Path

Content = dict[str, tuple[str, list[int], bytes]]


def write(path: Path, tensors: Content, metadata: dict[str, str] | None = None) -> None:
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, _, data in tensors.values():
            file.write(data)


def noise(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def kinds() -> Content:
    """Every type that numpy and torch both have, a scalar, an empty tensor, and enough bytes to be kept in RAM."""
    sizes = {
        "F64": 8, "F32": 4, "F16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1,
        "C64": 8,
    }  # fmt: skip
    tensors: Content = {
        f"t.{dtype}": (dtype, [3, 5], noise(seed, 15 * size)) for seed, (dtype, size) in enumerate(sizes.items())
    }
    ordered = sorted(tensors, key=lambda name: -sizes[name[2:]])
    tensors = {name: tensors[name] for name in ordered}
    tensors["t.BOOL"] = ("BOOL", [4], bytes([1, 0, 0, 1]))
    tensors["scalar"] = ("U8", [], b"\x07")
    tensors["empty"] = ("F32", [0, 3], b"")
    # Lies across: what comes before it is an odd number of bytes.
    tensors["across"] = ("F32", [300_000], noise(99, 1_200_000))
    return tensors


def large(mebibytes: int, seed: int = 5) -> Content:
    size = mebibytes << 20
    each = size // 8
    return {f"block.{i}.weight": ("F32", [each // 4], noise(seed + i, each)) for i in range(8)}
