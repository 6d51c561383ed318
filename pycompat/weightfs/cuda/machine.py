"""What this machine has for CUDA, found out without risk to the process that asks."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
from ctypes import byref, c_int, c_size_t
from dataclasses import dataclass, field
from pathlib import Path

from .driver import ATTRIBUTE_HOST_REGISTER, ATTRIBUTE_READ_ONLY_REGISTER, Driver
from .errors import CudaUnavailable

#: Where device files are looked for instead of /, for containers that have them elsewhere.
ROOT_VARIABLE = "WEIGHTFS_GPU_ROOT"
#: Starting the driver of a machine with many GPUs and no persistence daemon takes long.
PATIENCE = 60.0
_DEVICE_FILES = ("dev/nvidiactl", "dev/dxg")


@dataclass(frozen=True)
class Device:
    name: str
    memory_bytes: int
    registers: bool
    """Whether host memory can be registered at all."""
    registers_read_only: bool
    """Whether memory that may only be read can be."""


@dataclass(frozen=True)
class Probe:
    """The driver and its devices, or why there are none."""

    version: int = 0
    devices: tuple[Device, ...] = field(default_factory=tuple)
    reason: str = ""
    """Why there is no device; empty where there is one."""


_lock = threading.Lock()
_known: Probe | None = None


def probe(again: bool = False, patience: float = PATIENCE) -> Probe:
    """Looks at the machine: device files, then the library, then a process of its own that starts the driver.

    The answer is kept for the life of this process unless ``again`` is true. Takes at most ``patience`` seconds.
    """
    global _known
    with _lock:
        if _known is None or again:
            _known = _look(patience)
        return _known


def look() -> dict:
    """Starts the driver in this process and lists its devices."""
    driver = Driver()
    driver.call("cuInit", 0)
    count = c_int()
    driver.call("cuDeviceGetCount", byref(count))
    devices = []
    for index in range(count.value):
        device, memory, read_only, registers = c_int(), c_size_t(), c_int(), c_int()
        name = ctypes.create_string_buffer(256)
        driver.call("cuDeviceGet", byref(device), index)
        driver.call("cuDeviceGetName", name, len(name), device)
        driver.call("cuDeviceTotalMem_v2", byref(memory), device)
        driver.call("cuDeviceGetAttribute", byref(read_only), ATTRIBUTE_READ_ONLY_REGISTER, device)
        driver.call("cuDeviceGetAttribute", byref(registers), ATTRIBUTE_HOST_REGISTER, device)
        devices.append({
            "name": name.value.decode(errors="replace"),
            "memory_bytes": memory.value,
            "registers": bool(registers.value) and driver.has("cuMemHostRegister_v2", "cuMemHostUnregister"),
            "registers_read_only": bool(read_only.value),
        })
    return {"version": driver.version, "devices": devices}


def _is_started() -> bool:
    """Whether a framework has started the driver in this process, and so shown that it can be."""
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized()


def _look(patience: float) -> Probe:
    if _is_started():
        return _understood(look())
    root = Path(os.environ.get(ROOT_VARIABLE) or "/")
    if not any((root / name).exists() for name in _DEVICE_FILES):
        return Probe(reason="there is no /dev/nvidiactl: no NVIDIA GPU, its kernel module is not loaded ('modprobe "
                            "nvidia'), or the container was started without '--gpus all'")
    if not sys.executable:
        return Probe(reason="there is no Python program that could try the driver out")
    program = [sys.executable, "-I", "-S", str(Path(__file__).with_name("child.py"))]
    try:
        done = subprocess.run(program, stdin=subprocess.DEVNULL, capture_output=True, timeout=patience, check=False)
    except subprocess.TimeoutExpired:
        return Probe(reason=f"the NVIDIA driver does not answer within {patience:.0f} s; 'nvidia-smi' may say why")
    except OSError as error:
        return Probe(reason=f"the NVIDIA driver cannot be tried out: {error}")
    if done.returncode != 0:
        return Probe(reason=f"starting the NVIDIA driver ends the process ({_end(done.returncode)}); reinstall it, in "
                            "the version of its kernel module")
    try:
        return _understood(json.loads(done.stdout))
    except (ValueError, TypeError, KeyError) as error:
        return Probe(reason=f"what was found out about the NVIDIA driver is not understood: {error}")


def _understood(answer: dict) -> Probe:
    if "error" in answer:
        return Probe(reason=answer["error"])
    devices = tuple(Device(**device) for device in answer["devices"])
    if not devices:
        return Probe(version=answer["version"], reason="the NVIDIA driver has no device; 'nvidia-smi -L' lists them")
    return Probe(version=answer["version"], devices=devices)


def _end(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"code {code}"


def parse(device: str | int) -> int:
    """The number of ``cuda``, ``cuda:1`` or ``1``."""
    text = str(device)
    number = "0" if text == "cuda" else text.removeprefix("cuda:")
    if not number.isdecimal():
        raise ValueError(f"{text!r} is no CUDA device; say 'cuda' or 'cuda:N'")
    return int(number)


_driver: Driver | None = None


def driver_of(index: int) -> tuple[Driver, Device]:
    """The started driver and the device of that number. Raises CudaUnavailable where they are not to be had."""
    global _driver
    found = probe()
    if found.reason:
        raise CudaUnavailable(found.reason)
    if index >= len(found.devices):
        names = ", ".join(f"cuda:{number} {device.name}" for number, device in enumerate(found.devices))
        raise CudaUnavailable(f"there is no cuda:{index}; this machine has {names}")
    with _lock:
        if _driver is None:
            driver = Driver()
            driver.call("cuInit", 0)
            _driver = driver
        return _driver, found.devices[index]


def forget() -> None:
    """Looks at the machine anew the next time."""
    global _known, _driver
    with _lock:
        _known = None
        _driver = None
