"""Loads tensors of a file into the memory of a device."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

from . import gds as gds_reads
from . import registration, transfer
from .device import Context, DeviceBuffer, context_of
from .errors import CudaError, CudaUnavailable, GdsUnavailable
from .layout import Layout, cut, plan
from .machine import parse
from .transfer import Report

#: Files below this are no models to the daemon.
SMALL = 1 << 20


@dataclass(frozen=True)
class Upload:
    """The tensors of a file in device memory: tensor ``name`` begins at ``places[name]`` of ``buffer``."""

    buffer: DeviceBuffer
    places: dict[str, int]
    report: Report

    def pointer(self, name: str) -> int:
        """Where a tensor is on the device."""
        return self.buffer.pointer + self.places[name]


def upload(
    path: str | os.PathLike[str],
    tensors: Mapping[str, tuple[int, int]],
    device: str | int = "cuda",
    *,
    alignments: Mapping[str, int] | None = None,
    direct: bool = False,
    gds: bool | str = False,
    request: gds_reads.Request | None = None,
) -> Upload:
    """Loads ``tensors``, name → (offset in the file, bytes), into new memory of ``device``.

    ``direct``: the file is resident in a weightfs mount (or else may be held in the page cache), and its pages may be
    registered with the driver. What cannot be goes through a ring of pinned buffers, and what cannot go there through
    ordinary memory; ``report`` of the result says what happened.

    ``gds``: True reads from storage to the device through cuFile and raises GdsUnavailable where that is impossible;
    "auto" goes the other ways then, and says so once. ``request`` speaks to the daemon, see :mod:`.gds`.

    Raises CudaUnavailable where there is no such device, CudaError where its memory is full or every way failed,
    ValueError for tensors outside of the file, and OSError where the file cannot be read.
    """
    if gds not in (True, False, "auto"):
        raise ValueError(f"gds={gds!r} is none of True, False and 'auto'")
    context = context_of(parse(device))
    path = os.fspath(path)
    before = os.stat(path)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        layout = plan(tensors, found.st_size, alignments)
        report = Report()
        start = time.perf_counter()
        with context.current():
            buffer = DeviceBuffer(context, layout.size)
            try:
                # A file that was replaced between the two looks is not known to be either of them.
                same = registration.generation_of(before) == registration.generation_of(found)
                _transfer(context, path, fd, found, layout, buffer, report, direct and same, gds, request)
            except BaseException:
                buffer.free()
                raise
        report.seconds = time.perf_counter() - start
        return Upload(buffer, layout.places, report)
    finally:
        os.close(fd)


def _transfer(context: Context, path: str, fd: int, found: os.stat_result, layout: Layout, buffer: DeviceBuffer,
              report: Report, direct: bool, gds: bool | str, request: gds_reads.Request | None) -> None:
    if not layout.spans:
        return
    # The daemon leaves small files to the page cache, and nobody needs to hear of that.
    if gds is True or (gds == "auto" and found.st_size >= SMALL):
        try:
            report.gds_bytes += gds_reads.read(path, layout.spans, buffer, request)
            return
        except (GdsUnavailable, CudaError, CudaUnavailable) as error:
            if gds is True:
                raise gds_reads.impossible(error) from error
            gds_reads.say_once(error)
            report.note(f"not by cuFile: {error}")
    left = list(layout.spans)
    if direct:
        generation = registration.generation_of(found)
        pieces = cut(layout.spans, registration.PIECE)
        left = transfer.direct(context, registration.registrations, generation, fd, pieces, buffer, report)
    if left:
        left = transfer.ring(context, fd, left, buffer, report)
    if left:
        transfer.pageable(context, fd, left, buffer, report)
    wanted = sum(span.size for span in layout.spans)
    if report.bytes != wanted:
        raise CudaError("upload", -1, "incomplete", f"{report.bytes} of {wanted} bytes reached the device")
