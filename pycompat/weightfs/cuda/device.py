"""Contexts, streams, events and memory, each given back exactly once."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Iterator
from ctypes import byref, c_size_t, c_uint64, c_void_p

from .driver import (
    EVENT_DISABLE_TIMING,
    HOST_ALLOC_PORTABLE,
    OUT_OF_MEMORY,
    STREAM_NON_BLOCKING,
    Driver,
    IpcHandle,
)
from .errors import CudaError
from .machine import Device, driver_of


class Context:
    """The primary context of a device, the one that the frameworks use too."""

    def __init__(self, driver: Driver, index: int, device: Device) -> None:
        self.driver = driver
        self.index = index
        self.device = device
        self._handle = c_void_p()
        driver.call("cuDevicePrimaryCtxRetain", byref(self._handle), index)

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Makes it this thread's, and what was it before again afterwards."""
        self.driver.call("cuCtxPushCurrent_v2", self._handle)
        try:
            yield
        finally:
            # What was done is done: that this thread keeps the context harms nobody.
            with contextlib.suppress(CudaError):
                self.driver.call("cuCtxPopCurrent_v2", byref(c_void_p()))

    def quietly(self, function: str, *arguments: object) -> None:
        """Calls what gives something back: it may not hide the error that led there, and late calls find the driver
        gone already."""
        with contextlib.suppress(CudaError), self.current():
            self.driver.call(function, *arguments)

    def free_bytes(self) -> int:
        unused, total = c_size_t(), c_size_t()
        self.driver.call("cuMemGetInfo_v2", byref(unused), byref(total))
        return unused.value

    def close(self) -> None:
        with contextlib.suppress(CudaError):
            self.driver.call("cuDevicePrimaryCtxRelease_v2", self.index)


class Streams:
    """Some streams, for one thread at a time each. Their end waits for what is in flight."""

    def __init__(self, context: Context, number: int) -> None:
        self.context = context
        self.handles: list[c_void_p] = []
        try:
            for _ in range(number):
                handle = c_void_p()
                context.driver.call("cuStreamCreate", byref(handle), STREAM_NON_BLOCKING)
                self.handles.append(handle)
        except CudaError:
            self.close()
            raise

    def wait(self) -> None:
        for handle in self.handles:
            self.context.driver.call("cuStreamSynchronize", handle)

    def close(self) -> None:
        for handle in self.handles:
            self.context.quietly("cuStreamSynchronize", handle)
            self.context.quietly("cuStreamDestroy_v2", handle)
        self.handles = []


class Event:
    """A point in a stream that can be waited for."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._handle = c_void_p()
        context.driver.call("cuEventCreate", byref(self._handle), EVENT_DISABLE_TIMING)

    def record(self, stream: c_void_p) -> None:
        self.context.driver.call("cuEventRecord", self._handle, stream)

    def wait(self) -> None:
        self.context.driver.call("cuEventSynchronize", self._handle)

    def close(self) -> None:
        if self._handle:
            self.context.quietly("cuEventDestroy_v2", self._handle)
            self._handle = c_void_p()


class Pinned:
    """Host memory that the device reads by itself."""

    def __init__(self, context: Context, size: int) -> None:
        self.context = context
        self.address = c_void_p()
        context.driver.call("cuMemHostAlloc", byref(self.address), size, HOST_ALLOC_PORTABLE)
        self.view = memoryview((ctypes.c_char * size).from_address(self.address.value)).cast("B")

    def close(self) -> None:
        if self.address:
            self.context.quietly("cuMemFreeHost", self.address)
            self.address = c_void_p()


class DeviceBuffer:
    """Memory of a device, freed with its last reference. Frameworks take it over without a copy by
    ``__cuda_array_interface__`` (an array of bytes)."""

    def __init__(self, context: Context, size: int) -> None:
        self.context = context
        self.size = size
        self.pointer = 0
        self._finalizer = None
        if size == 0:
            return
        pointer = c_uint64()
        try:
            context.driver.call("cuMemAlloc_v2", byref(pointer), size)
        except CudaError as error:
            if error.code != OUT_OF_MEMORY:
                raise
            unused = context.free_bytes()
            hint = f"cuda:{context.index} has {unused} bytes free of the {size} that are needed; free some, or load less"
            raise CudaError(error.function, error.code, "CUDA_ERROR_OUT_OF_MEMORY", hint) from error
        self.pointer = pointer.value
        self._finalizer = weakref.finalize(self, _free, context, self.pointer, os.getpid())

    @property
    def device(self) -> str:
        return f"cuda:{self.context.index}"

    @property
    def __cuda_array_interface__(self) -> dict:
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.pointer, False), "strides": None, "version": 3}

    def handle(self) -> IpcHandle:
        """What another process opens this memory by, for as long as it is not freed."""
        handle = IpcHandle()
        with self.context.current():
            self.context.driver.call("cuIpcGetMemHandle", byref(handle), self.pointer)
        return handle

    def read(self, start: int, size: int) -> bytes:
        """Copies bytes back to the host."""
        if start < 0 or size < 0 or start + size > self.size:
            raise ValueError(f"{start} + {size} is not in a buffer of {self.size} bytes")
        target = ctypes.create_string_buffer(size)
        if size:
            with self.context.current():
                self.context.driver.call("cuMemcpyDtoH_v2", target, self.pointer + start, size)
        return target.raw

    def free(self) -> None:
        """Frees it now. What still refers to it must not be used any more."""
        if self._finalizer is not None:
            self._finalizer()
        self.pointer = 0


def _free(context: Context, pointer: int, pid: int) -> None:
    # A forked child has no CUDA, and its copy of this memory is its parent's.
    if os.getpid() == pid:
        context.quietly("cuMemFree_v2", c_uint64(pointer))


_lock = threading.Lock()
_contexts: dict[int, Context] = {}


def context_of(index: int) -> Context:
    """The context of a device, kept for the life of the process. Raises CudaUnavailable where there is none."""
    with _lock:
        if index not in _contexts:
            driver, device = driver_of(index)
            _contexts[index] = Context(driver, index, device)
        return _contexts[index]


def close_contexts() -> None:
    with _lock:
        for context in _contexts.values():
            context.close()
        _contexts.clear()


def _forget() -> None:
    global _lock
    _lock = threading.Lock()
    _contexts.clear()


os.register_at_fork(after_in_child=_forget)
atexit.register(close_contexts)
