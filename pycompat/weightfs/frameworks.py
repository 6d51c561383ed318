"""How numpy and torch make tensors out of mapped bytes. Neither is imported before it is asked for."""

from __future__ import annotations

import mmap
from typing import Any, Literal, Protocol

from .errors import WeightfsError
from .header import BITS, Tensor
from .mapping import MappedFile

Framework = Literal["pt", "np"]


class UnsupportedType(WeightfsError, TypeError):
    """The framework has no such type."""


class Maker(Protocol):
    """Makes the tensors of one framework."""

    def map(self, file: MappedFile) -> mmap.mmap:
        """Maps a file so that nothing can go wrong with views of it."""

    def view(self, memory: mmap.mmap, tensor: Tensor) -> Any:
        """A view of a tensor's bytes, or where that is not possible a copy."""

    def copied(self, view: Any) -> Any:
        """The same in memory of its own."""


def maker(framework: str, device: Any, writable: bool, raw: bool) -> Maker:
    """The maker for a framework by the names that safetensors uses for it."""
    if framework in ("pt", "torch", "pytorch"):
        return TorchMaker(device)
    if framework in ("np", "numpy"):
        if device not in (None, "cpu"):
            raise ValueError(f"numpy arrays are on the CPU, not on {device!r}")
        return NumpyMaker(writable, raw)
    raise ValueError(f"the framework {framework!r} is not known: 'pt' and 'np' are")


class NumpyMaker:
    """Arrays. Without `writable` numpy refuses to write to them."""

    NAMES = {
        "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "F16": "float16", "U32": "uint32",
        "I32": "int32", "F32": "float32", "U64": "uint64", "I64": "int64", "F64": "float64", "C64": "complex64",
    }  # fmt: skip
    # Types that numpy has only with the package ml_dtypes.
    EXTRA = {
        "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
        "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
    }  # fmt: skip

    def __init__(self, writable: bool, raw: bool) -> None:
        import numpy

        self._numpy = numpy
        self._writable = writable
        self._raw = raw

    def map(self, file: MappedFile) -> mmap.mmap:
        """Shared, or private for arrays that may be written to."""
        return file.private() if self._writable else file.shared()

    def view(self, memory: mmap.mmap, tensor: Tensor) -> Any:
        """An array over the mapping, which it keeps alive."""
        dtype = self._dtype(tensor)
        if tensor.nbytes == 0:
            return self._numpy.empty(tensor.shape, dtype)
        array = self._numpy.frombuffer(memory, "uint8", tensor.nbytes, tensor.start)
        # Elements that are no whole bytes stay as the bytes that they are packed into.
        return array if BITS[tensor.dtype] < 8 else array.view(dtype).reshape(tensor.shape)

    def copied(self, view: Any) -> Any:
        """A copy."""
        return view.copy()

    def _dtype(self, tensor: Tensor) -> Any:
        if name := self.NAMES.get(tensor.dtype):
            return self._numpy.dtype(name)
        if self._raw:
            return self._numpy.dtype("uint16" if tensor.dtype == "BF16" else "uint8")
        try:
            import ml_dtypes

            return self._numpy.dtype(getattr(ml_dtypes, self.EXTRA[tensor.dtype]))
        except (ImportError, KeyError, AttributeError):
            raise UnsupportedType(
                f"numpy has no type for {tensor.dtype} (tensor {tensor.name!r}): install ml_dtypes, or ask for "
                f"the bits as unsigned numbers with raw=True"
            ) from None


class TorchMaker:
    """Tensors on a device. On the CPU they are views, and what is written to one is copied page by page."""

    NAMES = {
        "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "F16": "float16",
        "BF16": "bfloat16", "U32": "uint32", "I32": "int32", "F32": "float32", "U64": "uint64", "I64": "int64",
        "F64": "float64", "C64": "complex64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
        "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
        "F4": "float4_e2m1fn_x2",
    }  # fmt: skip

    def __init__(self, device: Any) -> None:
        import torch

        self._torch = torch
        # Numbers mean GPUs to safetensors.
        self._device = torch.device(f"cuda:{device}" if isinstance(device, int) else device or "cpu")

    def map(self, file: MappedFile) -> mmap.mmap:
        """Private: torch would write into a read-only mapping, and be killed for it."""
        return file.private()

    def view(self, memory: mmap.mmap, tensor: Tensor) -> Any:
        """A tensor over the mapping, which it keeps alive; or on the device."""
        torch = self._torch
        dtype = getattr(torch, self.NAMES.get(tensor.dtype, ""), None)
        if dtype is None:
            raise UnsupportedType(f"this torch has no type for {tensor.dtype} (tensor {tensor.name!r})")
        shape = tensor.shape
        if tensor.dtype == "F4" and shape:
            # Two to a byte, along the last dimension.
            shape = (*shape[:-1], shape[-1] // 2)
        if tensor.nbytes == 0:
            return torch.empty(shape, dtype=dtype, device=self._device)
        if tensor.start % dtype.itemsize:
            # Nobody promises that torch's kernels read what lies across.
            own = bytearray(memory[tensor.start : tensor.end])
            flat = torch.frombuffer(own, dtype=dtype)
        else:
            flat = torch.frombuffer(memory, dtype=dtype, count=tensor.nbytes // dtype.itemsize, offset=tensor.start)
        return flat.reshape(shape).to(self._device)

    def copied(self, view: Any) -> Any:
        """A copy, unless it has been copied to a device already."""
        return view.clone() if view.device.type == "cpu" else view
