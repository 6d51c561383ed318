"""The single measurements of run.py. Each gives GB/s or says why not."""

from __future__ import annotations

import ctypes
import hashlib
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from weightfs import cuda
from weightfs.cuda import registration, transfer
from weightfs.cuda.device import Context, DeviceBuffer, Pinned, Streams
from weightfs.cuda.layout import Span, cut

GIB = 1 << 30
HASHED_AT_ONCE = 64 << 20


def rate(size: int, seconds: list[float]) -> dict[str, Any]:
    """The median and the range of several runs."""
    speeds = sorted(size / each / 1e9 for each in seconds)
    return {"gb_per_s": round(statistics.median(speeds), 2), "lowest": round(speeds[0], 2),
            "highest": round(speeds[-1], 2), "bytes": size, "runs": len(speeds)}


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def peak(context: Context, runs: int, size: int) -> dict[str, Any]:
    """What the bus gives: one large copy after the other from pinned memory, on two streams."""
    with context.current():
        target, source, streams = DeviceBuffer(context, size), Pinned(context, size), Streams(context, 2)
        half = size // 2

        def copy() -> None:
            for number, stream in enumerate(streams.handles):
                context.driver.call("cuMemcpyHtoDAsync_v2", target.pointer + number * half,
                                    ctypes.c_void_p(source.address.value + number * half), half, stream)
            streams.wait()

        copy()
        seconds = [timed(copy) for _ in range(runs)]
        streams.close()
        source.close()
        target.free()
    return rate(2 * half, seconds)


def hash_of(buffer: DeviceBuffer) -> str:
    """Of what is on the device, copied back."""
    found = hashlib.sha256()
    for start in range(0, buffer.size, HASHED_AT_ONCE):
        found.update(buffer.read(start, min(HASHED_AT_ONCE, buffer.size - start)))
    return found.hexdigest()


def upload(path: Path, device: str, runs: int, expected: str, **options: Any) -> dict[str, Any]:
    """A whole file by weightfs.cuda.upload, whose report says which way it went."""
    size = path.stat().st_size
    seconds, ways, notes, hashes = [], set(), set(), set()
    for _ in range(runs):
        loaded = cuda.upload(path, {"file": (0, size)}, device, **options)
        seconds.append(loaded.report.seconds)
        ways.add(loaded.report.path)
        notes.update(loaded.report.notes)
        hashes.add(hash_of(loaded.buffer))
        loaded.buffer.free()
    return {**rate(size, seconds), "first_gb_per_s": round(size / seconds[0] / 1e9, 2), "path": sorted(ways),
            "notes": sorted(notes), "hash_equals_source": hashes == {expected}}


def pageable(context: Context, path: Path, runs: int, expected: str) -> dict[str, Any]:
    """As a program that knows nothing of pinned memory."""
    size = path.stat().st_size
    pieces = cut((Span(0, size, 0),), registration.PIECE)
    seconds, hashes = [], set()
    for _ in range(runs):
        fd = os.open(path, os.O_RDONLY)
        with context.current():
            target = DeviceBuffer(context, size)
        seconds.append(timed(lambda: transfer.pageable(context, fd, pieces, target, transfer.Report())))
        hashes.add(hash_of(target))
        target.free()
        os.close(fd)
    return {**rate(size, seconds), "path": ["pageable"], "notes": [], "hash_equals_source": hashes == {expected}}


def register(context: Context, path: Path) -> dict[str, Any]:
    """Registers the mapping of a resident file, read-only, piece by piece; and gives it back."""
    found = os.stat(path)
    pieces = registration.Registrations(1 << 60)
    generation = registration.generation_of(found)
    fd = os.open(path, os.O_RDONLY)
    try:
        mapping = pieces.mapping(generation, fd)
        held = []
        start = time.perf_counter()
        for at in range(0, found.st_size, registration.PIECE):
            held.append(pieces.acquire(context, generation, mapping, at))
        registered = time.perf_counter() - start
    except cuda.CudaError as error:
        return {"works": False, "reason": str(error)}
    finally:
        os.close(fd)
    for piece in held:
        pieces.release(piece)
    released = timed(pieces.drop_all)
    return {"works": True, "read_only": context.device.registers_read_only, "bytes": found.st_size,
            "seconds_per_gib": round(registered / found.st_size * GIB, 4),
            "seconds_per_gib_to_unregister": round(released / found.st_size * GIB, 4)}
