"""Checkpoints as torch writes them, made without torch."""

from __future__ import annotations

import io
import pickle
import struct
import sys
import types
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_STORAGES = {"F32": ("FloatStorage", 4), "F16": ("HalfStorage", 2), "I64": ("LongStorage", 8), "U8": ("ByteStorage", 1)}


@dataclass
class Bytes:
    """A storage: elements of `dtype`."""

    key: str
    dtype: str
    data: bytes

    @property
    def count(self) -> int:
        return len(self.data) // _STORAGES[self.dtype][1]


@dataclass
class View:
    """A tensor: a view of a storage."""

    storage: Bytes
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0
    parameter: bool = False


def whole(key: str, dtype: str, shape: tuple[int, ...], data: bytes, **more: Any) -> View:
    stride, step = [], 1
    for extent in reversed(shape):
        stride.insert(0, step)
        step *= extent
    return View(Bytes(key, dtype, data), shape, tuple(stride), **more)


def _found(*_: Any) -> None:
    """What a pickle of torch names; never called here."""


@contextmanager
def _names() -> Iterator[dict[str, Any]]:
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    made: dict[str, Any] = {}
    for name, _ in _STORAGES.values():
        made[name] = type(name, (), {"__module__": "torch"})
        setattr(torch, name, made[name])
    for name in ("_rebuild_tensor_v2", "_rebuild_parameter"):
        made[name] = types.FunctionType(_found.__code__, globals(), name)
        made[name].__module__, made[name].__qualname__ = "torch._utils", name
        setattr(utils, name, made[name])
    before = {name: sys.modules.get(name) for name in ("torch", "torch._utils")}
    sys.modules.update({"torch": torch, "torch._utils": utils})
    try:
        yield made
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, names: dict[str, Any], legacy: bool) -> None:
        super().__init__(file, protocol=2)
        self._names, self._legacy = names, legacy
        self.storages: dict[str, Bytes] = {}

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, Bytes):
            return None
        self.storages[value.key] = value
        kind = self._names[_STORAGES[value.dtype][0]]
        identity = ("storage", kind, value.key, "cpu", value.count)
        return (*identity, None) if self._legacy else identity

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, View):
            return NotImplemented
        arguments = (value.storage, value.offset, value.shape, value.stride, False, {})
        rebuilt = (self._names["_rebuild_tensor_v2"], arguments)
        if not value.parameter:
            return rebuilt
        plain = View(value.storage, value.shape, value.stride, value.offset)
        return self._names["_rebuild_parameter"], (plain, True, {})


def save(path: Path, root: Any, byteorder: bytes = b"little", compression: int = zipfile.ZIP_STORED) -> None:
    """As `torch.save` does now: a zip archive."""
    with _names() as names:
        text = io.BytesIO()
        pickler = _Pickler(text, names, False)
        pickler.dump(root)
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("model/data.pkl", text.getvalue())
        archive.writestr("model/byteorder", byteorder)
        for key, storage in pickler.storages.items():
            archive.writestr(f"model/data/{key}", storage.data)


def save_legacy(path: Path, root: Any) -> None:
    """As `torch.save` did before 1.6: pickles, then the storages."""
    text = io.BytesIO()
    for value in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}):
        pickle.dump(value, text, protocol=2)
    with _names() as names:
        pickler = _Pickler(text, names, True)
        pickler.dump(root)
    pickle.dump(sorted(pickler.storages), text, protocol=2)
    for _, storage in sorted(pickler.storages.items()):
        text.write(struct.pack("<q", storage.count) + storage.data)
    path.write_bytes(text.getvalue())
