"""The ways in which programs load models, each as a function from a path to the tensors that it saw.

As a program: `readers.py --reader NAME PATH` prints a JSON object with the SHA-256 of every tensor.
"""

import argparse
import ctypes
import hashlib
import json
import mmap
import os
import struct
import sys
from collections.abc import Callable

Tensors = dict[str, memoryview]


def safetensors_numpy(path: str) -> Tensors:
    """`safetensors.numpy.load_file`: maps the file, tensors in the order of their offsets."""
    from safetensors.numpy import load_file

    return {name: _bytes_of(array) for name, array in load_file(path).items()}


def safetensors_lazy(path: str) -> Tensors:
    """`safe_open`, as diffusers and others do: one tensor after the other, by name."""
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        return {name: _bytes_of(file.get_tensor(name)) for name in file.keys()}


def safetensors_bytes(path: str) -> Tensors:
    """`open().read()` and `safetensors.numpy.load`, as web UIs offer for slow disks."""
    from safetensors.numpy import load

    with open(path, "rb") as file:
        return {name: _bytes_of(array) for name, array in load(file.read()).items()}


def aimdo(path: str) -> Tensors:
    """ComfyUI's native reader: the header through a private map, then eight threads that `pread` pieces of at most
    2 MiB, tensor by tensor, each followed by POSIX_FADV_DONTNEED. Small tensors come out of the map."""
    native = _aimdo()
    state = native.model_mmap_allocate(os.fsencode(path))
    if not state:
        raise OSError(f"model_mmap_allocate failed for {path}")
    try:
        start = native.model_mmap_get(state)
        descriptor = native.model_mmap_get_file_handle(state)
        size = os.fstat(descriptor).st_size
        length = struct.unpack("<Q", ctypes.string_at(start, 8))[0]
        if length > size - 8:
            raise ValueError(f"{path} has a header of {length} bytes in a file of {size}")
        header = json.loads(ctypes.string_at(start + 8, length))
        tensors = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            if end - begin <= 16384:
                tensors[name] = memoryview(ctypes.string_at(start + begin, end - begin))
                continue
            buffer = (ctypes.c_char * (end - begin))()
            if not native.xfer_file_read(descriptor, begin, ctypes.addressof(buffer), end - begin, True):
                raise OSError(f"xfer_file_read failed for {name} of {path}")
            tensors[name] = memoryview(buffer).cast("B")
        return tensors
    finally:
        native.model_mmap_deallocate(state)


def gguf_shared(path: str) -> Tensors:
    """ComfyUI-GGUF: the reader of the package `gguf` over a shared map."""
    from gguf import GGUFReader

    return {tensor.name: _bytes_of(tensor.data) for tensor in GGUFReader(path, "r").tensors}


def whole_file(path: str) -> Tensors:
    """A hasher: 8 MiB reads, front to back."""
    content = bytearray()
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(8 << 20):
            content += piece
    return {"": memoryview(content)}


def shared_map(path: str) -> Tensors:
    """llama.cpp: one shared map, with MAP_POPULATE and the advice that all of it will be needed."""
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=mmap.PROT_READ)
    with mapped:
        mapped.madvise(mmap.MADV_WILLNEED)
        return {"": memoryview(bytes(mapped))}


READERS: dict[str, Callable[[str], Tensors]] = {
    "safetensors": safetensors_numpy,
    "safetensors-lazy": safetensors_lazy,
    "safetensors-bytes": safetensors_bytes,
    "aimdo": aimdo,
    "gguf": gguf_shared,
    "read": whole_file,
    "map": shared_map,
}


def hashes(tensors: Tensors) -> dict[str, str]:
    """The SHA-256 of every tensor, by name."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in sorted(tensors.items())}


def _bytes_of(array) -> memoryview:
    """The memory of a numpy array, whatever its type."""
    import numpy

    return memoryview(numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8))


_native: ctypes.CDLL | None = None


def _aimdo() -> ctypes.CDLL:
    """The library of comfy-aimdo with its reader threads started. They must end before the process does."""
    global _native
    if _native is not None:
        return _native
    import atexit

    from comfy_aimdo import control

    if not control.init("cuda"):
        raise RuntimeError("comfy-aimdo cannot load its library")
    from comfy_aimdo import model_mmap  # noqa: F401  declares the types of model_mmap_*

    native = control.lib
    native.xfer_file_init.restype = ctypes.c_bool
    native.xfer_file_read.restype = ctypes.c_bool
    native.xfer_file_read.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_bool]
    if not native.xfer_file_init():
        raise RuntimeError("comfy-aimdo cannot start its reader threads")
    atexit.register(native.xfer_file_cleanup)
    _native = native
    return native


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reader", choices=READERS, required=True)
    parser.add_argument("path")
    arguments = parser.parse_args()
    json.dump(hashes(READERS[arguments.reader](arguments.path)), sys.stdout)


if __name__ == "__main__":
    main()
