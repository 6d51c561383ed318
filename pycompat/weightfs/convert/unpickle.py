"""A pickle of tensors without what could do harm.

Whatever a pickle names is looked up here and nowhere else. What puts tensors together is done by functions of this
module, which only note where the bytes are; everything else becomes an `Opaque`, which takes any arguments and does
nothing with them.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

from ..errors import WeightfsError


class CannotConvert(WeightfsError):
    """The checkpoint cannot be converted. The message says why."""


@dataclass(frozen=True)
class DType:
    """A type of element: its name in safetensors, and its size in bytes."""

    name: str
    size: int


_STORAGES = {
    "DoubleStorage": DType("F64", 8), "FloatStorage": DType("F32", 4), "HalfStorage": DType("F16", 2),
    "BFloat16Storage": DType("BF16", 2), "LongStorage": DType("I64", 8), "IntStorage": DType("I32", 4),
    "ShortStorage": DType("I16", 2), "CharStorage": DType("I8", 1), "ByteStorage": DType("U8", 1),
    "BoolStorage": DType("BOOL", 1), "ComplexFloatStorage": DType("C64", 8), "UntypedStorage": DType("U8", 1),
}  # fmt: skip

_DTYPES = {
    "float64": DType("F64", 8), "double": DType("F64", 8), "float32": DType("F32", 4), "float": DType("F32", 4),
    "float16": DType("F16", 2), "half": DType("F16", 2), "bfloat16": DType("BF16", 2), "int64": DType("I64", 8),
    "long": DType("I64", 8), "int32": DType("I32", 4), "int": DType("I32", 4), "int16": DType("I16", 2),
    "short": DType("I16", 2), "int8": DType("I8", 1), "uint8": DType("U8", 1), "uint16": DType("U16", 2),
    "uint32": DType("U32", 4), "uint64": DType("U64", 8), "bool": DType("BOOL", 1), "complex64": DType("C64", 8),
    "float8_e4m3fn": DType("F8_E4M3", 1), "float8_e5m2": DType("F8_E5M2", 1),
    "float8_e4m3fnuz": DType("F8_E4M3FNUZ", 1), "float8_e5m2fnuz": DType("F8_E5M2FNUZ", 1),
    "float8_e8m0fnu": DType("F8_E8M0", 1),
}  # fmt: skip


@dataclass(frozen=True)
class Storage:
    """A run of bytes of the checkpoint. `key` is its name there, `count` its elements of type `dtype`."""

    key: str
    dtype: DType
    count: int

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return self.count * self.dtype.size


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as the checkpoint describes it: `offset` and `stride` count elements of `dtype` in the storage."""

    storage: Storage
    dtype: DType
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def count(self) -> int:
        """Its elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def nbytes(self) -> int:
        """Its size in bytes, once its elements lie side by side."""
        return self.count * self.dtype.size

    @property
    def contiguous(self) -> bool:
        """Whether its elements lie side by side in the storage already."""
        expected = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if extent != 1 and stride != expected:
                return self.count == 0
            expected *= extent
        return True


class Opaque(dict[Any, Any]):
    """Stands for anything that is no tensor. Whatever is done to it has no effect outside of it."""

    called = "?"

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def __setstate__(self, _: Any) -> None:
        pass

    def append(self, _: Any) -> None:
        """As a list that nobody reads."""

    def extend(self, _: Any) -> None:
        """As a list that nobody reads."""

    def add(self, _: Any) -> None:
        """As a set that nobody reads."""


def _opaque(module: str, name: str) -> type[Opaque]:
    return type("Opaque", (Opaque,), {"called": f"{module}.{name}"})


def _integers(values: Any, what: str) -> tuple[int, ...]:
    if not isinstance(values, (tuple, list)) or not all(type(v) is int and v >= 0 for v in values):
        raise CannotConvert(f"a tensor has a {what} that is no list of numbers; the checkpoint is damaged")
    return tuple(values)


def _tensor(storage: Any, dtype: DType, offset: Any, size: Any, stride: Any) -> StoredTensor:
    if not isinstance(storage, Storage):
        raise CannotConvert("a tensor has no storage; the checkpoint is damaged")
    shape, strides = _integers(size, "shape"), _integers(stride, "stride")
    if type(offset) is not int or offset < 0 or len(shape) != len(strides):
        raise CannotConvert("a tensor does not say where it lies; the checkpoint is damaged")
    tensor = StoredTensor(storage, dtype, offset, shape, strides)
    if tensor.count:
        last = offset + sum((extent - 1) * step for extent, step in zip(shape, strides, strict=True))
        if (last + 1) * dtype.size > storage.nbytes:
            raise CannotConvert("a tensor reaches beyond its storage; the checkpoint is damaged")
    return tensor


def _rebuild_tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> StoredTensor:
    return _tensor(storage, getattr(storage, "dtype", _STORAGES["ByteStorage"]), offset, size, stride)


def _rebuild_tensor_v2(
    storage: Any, offset: Any, size: Any, stride: Any, _grad: Any, _hooks: Any, metadata: Any = None
) -> StoredTensor:
    if metadata:
        raise CannotConvert("a tensor is kept conjugated or negated, which safetensors cannot say; resolve that first")
    return _rebuild_tensor(storage, offset, size, stride)


def _rebuild_tensor_v3(
    storage: Any, offset: Any, size: Any, stride: Any, _grad: Any, _hooks: Any, dtype: Any, metadata: Any = None
) -> StoredTensor:
    if metadata or not isinstance(dtype, DType):
        raise CannotConvert("a tensor is of a type that safetensors does not have")
    return _tensor(storage, dtype, offset, size, stride)


def _rebuild_parameter(data: Any, *_: Any) -> Any:
    return data


_FUNCTIONS: dict[tuple[str, str], Callable[..., Any] | type] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("builtins", "dict"): dict,
    ("torch", "Size"): tuple,
    ("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor_v2,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild_tensor_v3,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _rebuild_parameter,
    # A subclass of a tensor: its plain tensor is what its arguments build.
    ("torch._tensor", "_rebuild_from_type_v2"): lambda function, _type, arguments, _state: function(*arguments),
}


class SafeUnpickler(pickle.Unpickler):
    """Follows a pickle of a checkpoint and gives its structure, with a `StoredTensor` for each tensor."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, encoding="utf-8", errors="replace")

    def find_class(self, module: str, name: str) -> Any:
        """The only place where names become something."""
        if known := _FUNCTIONS.get((module, name)):
            return known
        if module in ("torch", "torch.storage", "torch.cuda") and name in _STORAGES:
            return _STORAGES[name]
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        return _opaque(module, name)

    def persistent_load(self, identity: Any) -> Storage:
        """A storage. It is described by ('storage', type, key, location, count, ...)."""
        try:
            kind, dtype, key, _location, count = identity[:5]
        except (TypeError, ValueError):
            kind, dtype, key, count = None, None, None, None
        if kind != "storage" or not isinstance(dtype, DType) or type(count) is not int or count < 0:
            raise CannotConvert("the checkpoint refers to something that is no storage of a known type")
        return Storage(str(key), dtype, count)


def load(file: BinaryIO) -> Any:
    """One pickle from where the file is. Raises `CannotConvert` for what is none."""
    try:
        return SafeUnpickler(file).load()
    except CannotConvert:
        raise
    except Exception as error:
        raise CannotConvert(f"this is no checkpoint, or a damaged one: {type(error).__name__}: {error}") from None
