"""Where tensors go: every byte at its place, aligned, whatever lies how in the file."""

from __future__ import annotations

import random

import pytest

from weightfs.cuda.layout import Span, cut, plan


@pytest.mark.parametrize("seed", range(60))
def test_every_tensor_has_its_bytes_and_its_alignment(seed: int) -> None:
    pick = random.Random(seed)
    data = pick.randbytes(pick.choice([1, 5_000, 300_000]))
    tensors = {}
    for number in range(pick.randrange(12)):
        start = pick.randrange(len(data) + 1)
        tensors[f"t{number}"] = (start, pick.choice([0, 1, 7, pick.randrange(len(data) - start + 1)]))
    tensors = {name: (start, min(size, len(data) - start)) for name, (start, size) in tensors.items()}
    laid = plan(tensors, len(data))
    device = bytearray(laid.size)
    taken: list[tuple[int, int]] = []
    for span in laid.spans:
        assert span.at % 256 == 0 and all(span.at >= end or span.at + span.size <= start for start, end in taken)
        taken.append((span.at, span.at + span.size))
    pieces = cut(laid.spans, pick.choice([512, 4096, 1 << 20]))
    assert sum(piece.size for piece in pieces) == sum(span.size for span in laid.spans)
    for piece in pieces:
        device[piece.at : piece.at + piece.size] = data[piece.start : piece.start + piece.size]
    for name, (start, size) in tensors.items():
        at = laid.places[name]
        assert device[at : at + size] == data[start : start + size], name
        assert size == 0 or at % 16 == 0


def test_neighbours_are_one_copy_and_pieces_end_at_borders() -> None:
    laid = plan({"a": (96, 32), "b": (128, 64), "far": (1_000_000, 10)}, 2_000_000)
    assert laid.spans == (Span(96, 96, 0), Span(1_000_000, 10, 256))
    assert cut((Span(3, 10, 100),), 4) == [Span(3, 1, 100), Span(4, 4, 101), Span(8, 4, 105), Span(12, 1, 109)]
