"""What goes when room is made."""

from __future__ import annotations

from typing import Any

import pytest

from weightfs import room, wire

GIB = 1 << 30
MIB = 1 << 20


def file(name: str, resident: int, **more: Any) -> wire.FileStatus:
    known: Any = {
        "path": name, "size_bytes": resident, "resident_bytes": resident, "pinned_bytes": 0, "in_use": False,
        "priority": "normal", "in_vram": [], "unused_seconds": 10.0, **more,
    }  # fmt: skip
    return known


def newcomer(size: int, **more: Any) -> wire.FileStatus:
    return file("new", 0, **{"size_bytes": size, **more})


def chosen(files: list[wire.FileStatus], new: wire.FileStatus, free: int) -> list[str]:
    return [victim["path"] for victim in room.victims(files, new, free)]


@pytest.mark.parametrize(
    ("size", "expected"), [(0, 256 * MIB), (2 * GIB, 256 * MIB), (4 * GIB, 512 * MIB), (8 * GIB, GIB), (80 * GIB, GIB)]
)
def test_headroom(size: int, expected: int) -> None:
    assert room.headroom(size) == expected


def test_nothing_goes_where_there_is_room() -> None:
    files = [file("a", 4 * GIB)]
    assert chosen(files, newcomer(2 * GIB), 2 * GIB + 256 * MIB) == []
    assert chosen(files, newcomer(2 * GIB), 2 * GIB + 256 * MIB - 1) == ["a"]
    assert chosen(files, file("new", 4 * GIB), 0) == []


def test_the_order_and_what_never_goes() -> None:
    files = [
        file("fresh", GIB, unused_seconds=1.0), file("stale", GIB, unused_seconds=99.0),
        file("low", GIB, priority="low", unused_seconds=0.0), file("vram", GIB, in_vram=["cuda:0"], unused_seconds=5.0),
        file("pinned", GIB, pinned_bytes=1), file("used", GIB, in_use=True), file("high", GIB, priority="high"),
        file("absent", 0),
    ]  # fmt: skip
    everything = ["low", "vram", "stale", "fresh"]
    for count in range(1, 5):
        free = 8 * GIB + GIB - count * GIB
        assert chosen(files, newcomer(8 * GIB), free) == everything[:count]
    # More cannot be had without touching what may not go.
    assert chosen(files, newcomer(80 * GIB), 0) == everything
    assert chosen(files, newcomer(80 * GIB, priority="high"), 0) == [*everything, "high"]
    assert chosen(files, newcomer(80 * GIB, priority="low"), 0) == ["low"]


def test_no_more_goes_than_is_needed() -> None:
    files = [file("small", 64 * MIB, unused_seconds=99.0), file("large", 4 * GIB, unused_seconds=50.0)]
    assert chosen(files, newcomer(2 * GIB), 0) == ["large"]
    assert chosen(files, newcomer(2 * GIB), 2 * GIB + 200 * MIB) == ["small"]
