"""The CUDA driver API through ctypes: looked at before it is used, every error an exception.

Nothing here runs before somebody asks for a device, and no other library of CUDA is needed.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_void_p

from .errors import CudaError, CudaUnavailable

#: Another file than the one that the loader finds.
LIBRARY_VARIABLE = "WEIGHTFS_LIBCUDA"
LIBRARY = "libcuda.so.1"
#: CUDA 11.1: the first that registers read-only memory.
OLDEST = 11010

OUT_OF_MEMORY = 2
REGISTER_PORTABLE = 0x01
REGISTER_READ_ONLY = 0x08
HOST_ALLOC_PORTABLE = 0x01
STREAM_NON_BLOCKING = 0x01
EVENT_DISABLE_TIMING = 0x02
ATTRIBUTE_READ_ONLY_REGISTER = 113
ATTRIBUTE_HOST_REGISTER = 99

#: CUdeviceptr is a 64-bit number, handles are pointers.
_pointer = ctypes.c_uint64


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle: what another process opens the same device memory by."""

    _fields_ = [("reserved", c_char * 64)]

    def hex(self) -> str:
        return bytes(self).hex()


_FUNCTIONS = {
    "cuInit": [c_uint],
    "cuDriverGetVersion": [POINTER(c_int)],
    "cuDeviceGetCount": [POINTER(c_int)],
    "cuDeviceGet": [POINTER(c_int), c_int],
    "cuDeviceGetName": [c_char_p, c_int, c_int],
    "cuDeviceTotalMem_v2": [POINTER(c_size_t), c_int],
    "cuDeviceGetAttribute": [POINTER(c_int), c_int, c_int],
    "cuDevicePrimaryCtxRetain": [POINTER(c_void_p), c_int],
    "cuDevicePrimaryCtxRelease_v2": [c_int],
    "cuCtxPushCurrent_v2": [c_void_p],
    "cuCtxPopCurrent_v2": [POINTER(c_void_p)],
    "cuMemGetInfo_v2": [POINTER(c_size_t), POINTER(c_size_t)],
    "cuMemAlloc_v2": [POINTER(_pointer), c_size_t],
    "cuMemFree_v2": [_pointer],
    "cuMemcpyHtoD_v2": [_pointer, c_void_p, c_size_t],
    "cuMemcpyDtoH_v2": [c_void_p, _pointer, c_size_t],
    "cuMemcpyHtoDAsync_v2": [_pointer, c_void_p, c_size_t, c_void_p],
    "cuStreamCreate": [POINTER(c_void_p), c_uint],
    "cuStreamDestroy_v2": [c_void_p],
    "cuStreamSynchronize": [c_void_p],
    "cuEventCreate": [POINTER(c_void_p), c_uint],
    "cuEventDestroy_v2": [c_void_p],
    "cuEventRecord": [c_void_p, c_void_p],
    "cuEventSynchronize": [c_void_p],
}
#: What a fallback stands ready for.
_OPTIONAL = {
    "cuGetErrorName": [c_int, POINTER(c_char_p)],
    "cuMemHostAlloc": [POINTER(c_void_p), c_size_t, c_uint],
    "cuMemFreeHost": [c_void_p],
    "cuMemHostRegister_v2": [c_void_p, c_size_t, c_uint],
    "cuMemHostUnregister": [c_void_p],
    "cuIpcGetMemHandle": [POINTER(IpcHandle), _pointer],
}


class Driver:
    """The functions of the driver's library. Raises CudaUnavailable where it is missing, incomplete or too old."""

    def __init__(self) -> None:
        name = os.environ.get(LIBRARY_VARIABLE) or LIBRARY
        try:
            library = ctypes.CDLL(name)
        except OSError as error:
            raise CudaUnavailable(f"{name} cannot be loaded ({error}); install the NVIDIA driver") from error
        self._functions = {}
        for function, arguments in {**_FUNCTIONS, **_OPTIONAL}.items():
            found = getattr(library, function, None)
            if found is None:
                if function in _OPTIONAL:
                    continue
                raise CudaUnavailable(f"{name} has no {function}; update the NVIDIA driver")
            found.argtypes = arguments
            found.restype = c_int
            self._functions[function] = found
        version = c_int()
        self.call("cuDriverGetVersion", byref(version))
        self.version = version.value
        if self.version < OLDEST:
            raise CudaUnavailable(
                f"the NVIDIA driver is for CUDA {shown(self.version)}; update it to one for {shown(OLDEST)} or later"
            )

    def has(self, *functions: str) -> bool:
        """Whether the library has all of these."""
        return all(function in self._functions for function in functions)

    def call(self, function: str, *arguments: object) -> None:
        """Calls it. Raises CudaError where it does not succeed."""
        found = self._functions.get(function)
        if found is None:
            raise CudaUnavailable(f"the NVIDIA driver has no {function}; update it")
        code = found(*arguments)
        if code != 0:
            raise CudaError(function, code, self._name(code))

    def _name(self, code: int) -> str | None:
        name = c_char_p()
        names = self._functions.get("cuGetErrorName")
        if names is None or names(code, byref(name)) != 0 or name.value is None:
            return None
        return name.value.decode(errors="replace")


def shown(version: int) -> str:
    """12080 as 12.8."""
    return f"{version // 1000}.{version % 1000 // 10}"
