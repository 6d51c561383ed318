"""Loads models as programs do. A line of standard input is a JSON object with the name of a loader and a path, and is
answered with one that has the seconds that loading took and the bytes that it brought. Imports, and buffers that a
program would have already, are not part of that time."""

import ctypes
import hashlib
import importlib.metadata
import json
import mmap
import os
import struct
import sys
import time

HASH_PIECE = 8 << 20
PAGE = 4096


def answer(**fields):
    print(json.dumps(fields), flush=True)


class SafetensorsMap:
    """`safetensors.numpy.load_file`: a private map, the tensors in the order of the file."""

    needs = ("safetensors", "numpy")

    def __init__(self):
        from safetensors.numpy import load_file

        self.load_file = load_file

    def load(self, path):
        tensors = self.load_file(path)
        return tensors, sum(tensor.nbytes for tensor in tensors.values())


class SafetensorsPread(SafetensorsMap):
    """The same with the backend that reads instead of mapping."""

    def __init__(self):
        from safetensors import safe_open

        self.safe_open = safe_open

    def load(self, path):
        with self.safe_open(path, framework="numpy", backend="pread") as file:
            tensors = {name: file.get_tensor(name) for name in file.offset_keys()}
        return tensors, sum(tensor.nbytes for tensor in tensors.values())


class Aimdo:
    """The native library of ComfyUI: eight threads that read pieces of up to 2 MiB, each followed by DONTNEED, into
    memory that is there already; the header and small tensors through a private map."""

    needs = ("comfy-aimdo",)
    drops = True
    small = 16384

    def __init__(self):
        from comfy_aimdo import control

        if not control.init("cuda"):
            raise ImportError("comfy-aimdo cannot load its library")
        from comfy_aimdo import model_mmap  # noqa: F401  declares the types of model_mmap_*

        self.native = control.lib
        self.native.xfer_file_init.restype = ctypes.c_bool
        self.native.xfer_file_read.restype = ctypes.c_bool
        whole = ctypes.c_uint64
        self.native.xfer_file_read.argtypes = [whole, whole, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_bool]
        global started
        if not started and not self.native.xfer_file_init():
            raise ImportError("comfy-aimdo cannot start its reader threads")
        started = self.native
        self.buffer = bytearray()

    def prepare(self, path):
        with open(path, "rb") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(length))
        offsets = [entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"]
        largest = max(end - begin for begin, end in offsets)
        if len(self.buffer) < largest:
            # Not zeros: those would be pages that nobody has touched yet.
            self.buffer = bytearray(b"\1") * largest
        self.address = ctypes.addressof((ctypes.c_char * len(self.buffer)).from_buffer(self.buffer))

    def load(self, path):
        native = self.native
        state = native.model_mmap_allocate(os.fsencode(path))
        if not state:
            raise OSError(f"model_mmap_allocate failed for {path}")
        try:
            start = native.model_mmap_get(state)
            descriptor = native.model_mmap_get_file_handle(state)
            length = struct.unpack("<Q", ctypes.string_at(start, 8))[0]
            header = json.loads(ctypes.string_at(start + 8, length))
            total = 0
            for name, entry in header.items():
                if name == "__metadata__":
                    continue
                begin, end = (8 + length + offset for offset in entry["data_offsets"])
                total += end - begin
                if end - begin <= self.small:
                    ctypes.string_at(start + begin, end - begin)
                elif not native.xfer_file_read(descriptor, begin, self.address, end - begin, self.drops):
                    raise OSError(f"xfer_file_read failed for {name} of {path}")
            return None, total
        finally:
            native.model_mmap_deallocate(state)


class AimdoKeep(Aimdo):
    """The same, without the advice to the page cache."""

    drops = False


class Gguf:
    """ComfyUI-GGUF: the reader of the package `gguf` over a shared map, every page touched."""

    needs = ("gguf", "numpy")

    def __init__(self):
        from gguf import GGUFReader

        self.reader = GGUFReader

    def load(self, path):
        tensors = self.reader(path, "r").tensors
        for tensor in tensors:
            touch(tensor.data)
        return tensors, sum(tensor.data.nbytes for tensor in tensors)


class SharedMap:
    """llama.cpp: one shared map with MAP_POPULATE, advised to be needed, and used in place."""

    needs = ("numpy",)

    def __init__(self):
        import numpy  # noqa: F401  see touch()

    def load(self, path):
        import numpy

        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=mmap.PROT_READ)
        mapped.madvise(mmap.MADV_WILLNEED)
        view = numpy.frombuffer(mapped, dtype=numpy.uint8)
        touch(view)
        return view, len(mapped)


class Hash:
    """A tool that tells models apart: SHA-256 over reads of 8 MiB."""

    needs = ()

    def load(self, path):
        digest, total = hashlib.sha256(), 0
        with open(path, "rb", buffering=0) as file:
            while piece := file.read(HASH_PIECE):
                digest.update(piece)
                total += len(piece)
        return None, total


class TorchSafetensors(SafetensorsMap):
    """`safetensors.torch.load_file`, whose tensors lie in a private map: every page of them touched."""

    needs = ("torch", "safetensors")

    def __init__(self):
        import torch
        from safetensors.torch import load_file

        self.load_file, self.as_bytes = load_file, torch.uint8

    def load(self, path):
        tensors = self.load_file(path)
        for tensor in tensors.values():
            touch(tensor.view(self.as_bytes).numpy())
        return tensors, sum(tensor.nbytes for tensor in tensors.values())


class TorchZip:
    """`torch.load` of a checkpoint."""

    needs = ("torch",)

    def __init__(self):
        import torch

        self.torch = torch

    def load(self, path):
        tensors = self.torch.load(path, map_location="cpu", weights_only=True)
        return tensors, sum(tensor.nbytes for tensor in tensors.values())


class FastSafetensors:
    """fastsafetensors on the CPU, without GPUDirect Storage."""

    needs = ("fastsafetensors", "torch")

    def __init__(self):
        from fastsafetensors import fastsafe_open

        self.open = fastsafe_open

    def load(self, path):
        with self.open(filenames=[path], nogds=True, device="cpu") as file:
            # They lie in the memory that it has read the file into.
            tensors = {name: file.get_tensor(name) for name in file.keys()}
            return tensors, sum(tensor.nbytes for tensor in tensors.values())


class RunaiStreamer:
    """The Run:ai model streamer: threads of its own that read ahead into a buffer, out of which tensors are copied."""

    needs = ("runai-model-streamer", "torch")

    def __init__(self):
        from runai_model_streamer import SafetensorsStreamer

        self.streamer = SafetensorsStreamer

    def load(self, path):
        with self.streamer() as streamer:
            streamer.stream_file(path)
            tensors = {name: tensor.clone().detach() for name, tensor in streamer.get_tensors()}
        return tensors, sum(tensor.nbytes for tensor in tensors.values())


LOADERS = {
    "safetensors": SafetensorsMap,
    "safetensors_pread": SafetensorsPread,
    "aimdo": Aimdo,
    "aimdo_keep": AimdoKeep,
    "gguf": Gguf,
    "shared_map": SharedMap,
    "hash": Hash,
    "torch_safetensors": TorchSafetensors,
    "torch_zip": TorchZip,
    "fast_safetensors": FastSafetensors,
    "runai_streamer": RunaiStreamer,
}

# The native library whose reader threads run. They must end before the process does.
started = None


def touch(array):
    """Reads a byte of every page."""
    array.reshape(-1).view("uint8")[::PAGE].sum()


def versions(needs):
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in needs)


def main():
    loaders, known = {}, {}
    for line in sys.stdin:
        try:
            request = json.loads(line)
            name = request["loader"]
            if name not in loaders:
                try:
                    loaders[name] = LOADERS[name]()
                    known[name] = versions(LOADERS[name].needs)
                except Exception as error:
                    loaders[name] = None
                    known[name] = f"{type(error).__name__}: {error}"
            loader = loaders[name]
            if "path" not in request:
                answer(available=loader is not None, words=known[name])
                continue
            if loader is None:
                raise RuntimeError(known[name])
            if hasattr(loader, "prepare"):
                loader.prepare(request["path"])
            start = time.perf_counter()
            loaded, size = loader.load(request["path"])
            seconds = time.perf_counter() - start
            del loaded
            answer(seconds=seconds, bytes=size)
        except Exception as error:
            answer(error=f"{type(error).__name__}: {error}")
    if started:
        started.xfer_file_cleanup()


main()
