"""Loads weights into GPU memory: from pinned pages of the arena with no copy in between, or from storage by cuFile.

Nothing of CUDA is touched before a device is asked for, and nothing but the NVIDIA driver is needed.
"""

from __future__ import annotations

from . import registration
from .errors import CudaError, CudaUnavailable, GdsUnavailable
from .files import load
from .machine import Device, Probe, probe
from .tensors import DeviceTensor, tensors_of
from .transfer import Report
from .loading import Upload, upload

__all__ = [
    "CudaError", "CudaUnavailable", "Device", "DeviceTensor", "GdsUnavailable", "Probe", "Report", "Upload", "load",
    "probe", "release", "set_registered_limit", "tensors_of", "upload",
]


def release() -> None:
    """Unregisters every page that is kept registered for the next load; the daemon may then evict them."""
    registration.registrations.drop_all()


def set_registered_limit(limit_bytes: int) -> None:
    """The most bytes that stay registered between loads; a quarter of the RAM unless set. Zero turns direct uploads
    off: the ring of pinned buffers is used instead."""
    if limit_bytes < 0:
        raise ValueError("the limit is a number of bytes")
    registration.registrations.limit = limit_bytes
