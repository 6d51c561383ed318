"""Tensors in device memory: as torch has them where it has CUDA, else as arrays that other libraries take over."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from .loading import Upload

#: safetensors' name → bytes of an element, the type string of the array interface, torch's name.
_DTYPES = {
    "BOOL": (1, "|b1", "bool"), "U8": (1, "|u1", "uint8"), "I8": (1, "|i1", "int8"),
    "F8_E4M3": (1, None, "float8_e4m3fn"), "F8_E5M2": (1, None, "float8_e5m2"),
    "U16": (2, "<u2", "uint16"), "I16": (2, "<i2", "int16"), "F16": (2, "<f2", "float16"), "BF16": (2, None, "bfloat16"),
    "U32": (4, "<u4", "uint32"), "I32": (4, "<i4", "int32"), "F32": (4, "<f4", "float32"),
    "U64": (8, "<u8", "uint64"), "I64": (8, "<i8", "int64"), "F64": (8, "<f8", "float64"), "C64": (8, "<c8", "complex64"),
}


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
        return self.upload.pointer(self.name)

    @property
    def device(self) -> str:
        return self.upload.buffer.device

    @property
    def __cuda_array_interface__(self) -> dict:
        typestr = _DTYPES.get(self.dtype, (0, None, None))[1]
        if typestr is None:
            raise AttributeError(f"the array interface has no {self.dtype}")
        return {"shape": self.shape, "typestr": typestr, "data": (self.pointer, False), "strides": None, "version": 3}

    def to_bytes(self) -> bytes:
        """Copies it back to the host."""
        return self.upload.buffer.read(self.upload.places[self.name], self.size)


def has_torch() -> bool:
    """Whether torch is there, with CUDA. It is not imported for this."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_available()


def tensors_of(upload: Upload, infos: dict[str, tuple[str, tuple[int, ...], int]]) -> dict[str, Any]:
    """The tensors of an upload, which live as long as any of them: name → (dtype, shape, bytes)."""
    if not has_torch() or not upload.buffer.size:
        return {name: DeviceTensor(upload, name, dtype, tuple(shape), size)
                for name, (dtype, shape, size) in infos.items()}
    torch = sys.modules["torch"]
    everything = torch.as_tensor(upload.buffer, device=upload.buffer.device)
    made = {}
    for name, (dtype, shape, size) in infos.items():
        start = upload.places[name]
        element = getattr(torch, _DTYPES[dtype][2])
        made[name] = everything[start:start + size].view(element).reshape(tuple(shape))
    return made
