"""Careful loading: make room for a file before it is read, no more than it needs, from what is worth least.

The daemon makes room by itself only for what its policy thinks worth more than what is there. Who asks for a file in
so many words knows better: then lower priorities go first, and of the same priority what has been unused for longest.
Nothing goes that is pinned, in use, or of a higher priority than the newcomer.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

from . import calls, wire
from .calls import Call, StrPath

MIB = 1 << 20
# Beyond the file itself: what loading it takes on the way, in eighths of its size and between these bounds.
LEAST_HEADROOM = 256 * MIB
MOST_HEADROOM = 1024 * MIB

_RANK = {"low": 0, "normal": 1, "high": 2}


def headroom(size: int) -> int:
    """Bytes to keep free beside a file of `size` bytes: 12.5 %, at least 256 MiB and at most 1 GiB."""
    return min(max(size // 8, LEAST_HEADROOM), MOST_HEADROOM)


def victims(files: Iterable[wire.FileStatus], newcomer: wire.FileStatus, free: int) -> list[wire.FileStatus]:
    """What to evict for `newcomer` when `free` bytes of the budget are free, in the order in which it should go.

    The list is the shortest of its order that is enough; of what it frees, nothing could be left out.
    """
    missing = newcomer["size_bytes"] - newcomer["resident_bytes"]
    need = missing + headroom(newcomer["size_bytes"]) - free if missing > 0 else 0
    if need <= 0:
        return []
    rank = _RANK[newcomer["priority"]]
    candidates = [
        file
        for file in files
        if file["path"] != newcomer["path"]
        and file["resident_bytes"] > 0
        and not file["pinned_bytes"]
        and not file["in_use"]
        and _RANK[file["priority"]] <= rank
    ]
    # What a GPU holds anyway is the first to go within its priority.
    candidates.sort(key=lambda f: (_RANK[f["priority"]], not f["in_vram"], -(f["unused_seconds"] or 0.0)))
    chosen: list[wire.FileStatus] = []
    for file in candidates:
        if need <= 0:
            break
        chosen.append(file)
        need -= file["resident_bytes"]
    # A large one at the end may have made small ones before it unnecessary.
    for file in reversed(chosen[:-1]):
        if need + file["resident_bytes"] <= 0:
            chosen.remove(file)
            need += file["resident_bytes"]
    return chosen


def make(path: StrPath) -> Generator[Call[Any], Any, list[wire.Outcome]]:
    """The calls that make room for a file: what is there, and an eviction for each victim."""
    status: wire.Status = yield calls.status()
    here: wire.Files = yield calls.files(path, False, None, 1, None)
    if not here["files"]:
        return []
    files: list[wire.FileStatus] = yield from calls.all_files(None, True, "used")
    ram = status["ram"]
    free = ram["high_watermark_bytes"] - ram["resident_bytes"] - ram["client_held_bytes"]
    outcomes: list[wire.Outcome] = []
    for file in victims(files, here["files"][0], free):
        outcomes.append((yield calls.evict(file["path"], None)))
    return outcomes
