"""Tensors in device memory: as torch has them where it has CUDA, else as arrays that other libraries take over."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from ..frameworks import TorchMaker, UnsupportedType
from .driver import LIBRARY_VARIABLE
from .loading import Upload

#: The types that the array interface knows, by the names of the format.
_TYPE_STRINGS = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "F16": "<f2", "U32": "<u4", "I32": "<i4",
    "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8", "C64": "<c8",
}  # fmt: skip


@dataclass(frozen=True)
class DeviceTensor:
    """A tensor in device memory. ``__cuda_array_interface__`` is there for the types that the interface knows."""

    upload: Upload
    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int

    @property
    def pointer(self) -> int:
        """Where it is on the device."""
        return self.upload.pointer(self.name)

    @property
    def device(self) -> str:
        """Such as cuda:0."""
        return self.upload.buffer.device

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        typestr = _TYPE_STRINGS.get(self.dtype)
        if typestr is None:
            raise AttributeError(f"the array interface has no {self.dtype}")
        return {"shape": self.shape, "typestr": typestr, "data": (self.pointer, False), "strides": None, "version": 3}

    def to_bytes(self) -> bytes:
        """Copies it back to the host."""
        return self.upload.buffer.read(self.upload.places[self.name], self.size)


def has_torch() -> bool:
    """Whether torch is there, with CUDA, and has the same driver."""
    if os.environ.get(LIBRARY_VARIABLE):
        return False
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def tensors_of(upload: Upload, infos: dict[str, tuple[str, tuple[int, ...], int]]) -> dict[str, Any]:
    """The tensors of an upload, which live as long as any of them: name → (dtype, shape, bytes). Raises
    `UnsupportedType` for what torch has no type for."""
    if not has_torch() or not upload.buffer.size:
        return {name: DeviceTensor(upload, name, dtype, tuple(shape), size)
                for name, (dtype, shape, size) in infos.items()}
    import torch

    everything = torch.as_tensor(upload.buffer, device=upload.buffer.device)
    made = {}
    for name, (dtype, shape, size) in infos.items():
        start = upload.places[name]
        element = getattr(torch, TorchMaker.NAMES.get(dtype, ""), None)
        if element is None:
            raise UnsupportedType(f"this torch has no type for {dtype} (tensor {name!r})")
        if dtype == "F4" and shape:
            # Two to a byte, along the last dimension.
            shape = (*shape[:-1], shape[-1] // 2)
        made[name] = everything[start : start + size].view(element).reshape(tuple(shape))
    return made
