"""Loads whole safetensors files into the memory of a device."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from .. import calls
from .._find import on_mount
from ..client import Client
from ..errors import WeightfsError
from ..header import BITS
from ..mapping import MappedFile
from .errors import CudaError, CudaUnavailable, GdsUnavailable
from .gds import Request
from .loading import upload
from .tensors import has_torch, tensors_of
from .transfer import Report

LOG = logging.getLogger("weightfs")
OnReport = Callable[[Report], object]


def load(
    path: str | os.PathLike[str],
    device: str | int = "cuda",
    *,
    gds: bool | str = False,
    on_report: OnReport | None = None,
    ordinary: Callable[[], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """All tensors of a safetensors file by name: torch's where torch has CUDA, else `DeviceTensor`s.

    A file that is whole in the RAM of weightfs is copied from its pages with nothing in between. `gds`: see `upload`.
    `on_report` is called with how it went; the log has it too. Where weightfs cannot upload, `ordinary` is called, and
    without it `CudaUnavailable` or `CudaError` raised.
    """
    with MappedFile(path) as file:
        header, resident = file.header, file.resident()
    ranges = {name: (tensor.start, tensor.nbytes) for name, tensor in header.tensors.items()}
    alignments = {name: max(16, BITS[tensor.dtype] // 8) for name, tensor in header.tensors.items()}
    try:
        done = upload(
            path, ranges, device, alignments=alignments, direct=resident, gds=gds, request=_request(os.fspath(path))
        )
        tensors = tensors_of(done, {t.name: (t.dtype, t.shape, t.nbytes) for t in header.tensors.values()})
    except GdsUnavailable:
        raise
    except (CudaUnavailable, CudaError) as error:
        if ordinary is None or not has_torch():
            raise
        LOG.warning("%s is loaded in the ordinary way: %s", os.fspath(path), error)
        return ordinary()
    LOG.info("%s to %s: %s", os.fspath(path), device, done.report)
    if on_report:
        on_report(done.report)
    return tensors


def _request(path: str) -> Request | None:
    """What asks the daemon of the mount that a file is in to read it; None where it is in none."""
    if not on_mount(path):
        return None

    def request(body: dict[str, Any]) -> dict[str, Any]:
        body = {**body, "paths": [calls.located(name) for name in body["paths"]]}
        try:
            return dict(Client(path, strict=True).prefetch_body(body))
        except WeightfsError as error:
            raise GdsUnavailable(str(error)) from error

    return request
