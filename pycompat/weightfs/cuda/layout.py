"""Where the tensors of a file go in device memory (pure).

Tensors that lie side by side in the file are copied as one span: few large copies instead of thousands of small ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: As the allocators of the frameworks align.
SPAN_ALIGNMENT = 256
#: What every tensor is aligned to, or the size of its elements where that is less: vector loads need it.
TENSOR_ALIGNMENT = 16
#: Bytes between two tensors that are copied rather than left out.
LARGEST_GAP = 64 << 10


@dataclass(frozen=True)
class Span:
    """``size`` bytes of the file from ``start`` go to ``at`` of the device memory."""

    start: int
    size: int
    at: int


@dataclass(frozen=True)
class Layout:
    spans: tuple[Span, ...]
    places: dict[str, int]
    """Where each tensor begins in the device memory."""
    size: int
    """Bytes of device memory."""


def plan(tensors: Mapping[str, tuple[int, int]], file_size: int, alignments: Mapping[str, int] | None = None) -> Layout:
    """Lays out ``tensors``: name → (offset in the file, bytes). They may overlap. Raises ValueError where one of them
    does not lie in a file of ``file_size`` bytes."""
    alignments = alignments or {}
    for name, (offset, size) in tensors.items():
        if offset < 0 or size < 0 or offset + size > file_size:
            raise ValueError(f"tensor {name!r} does not lie in the file: {offset} + {size} of {file_size} bytes")
    spans: list[list[int]] = []
    inside: dict[str, tuple[int, int]] = {}
    order = sorted(tensors.items(), key=lambda item: (item[1][0], -item[1][1], item[0]))
    for name, (offset, size) in order:
        if size == 0:
            continue
        alignment = alignments.get(name, TENSOR_ALIGNMENT)
        if not spans or offset > spans[-1][1] + LARGEST_GAP or (offset - spans[-1][0]) % alignment:
            spans.append([offset, offset])
        span = spans[-1]
        inside[name] = (len(spans) - 1, offset - span[0])
        span[1] = max(span[1], offset + size)
    laid: list[Span] = []
    end = 0
    for start, stop in spans:
        at = -(-end // SPAN_ALIGNMENT) * SPAN_ALIGNMENT
        laid.append(Span(start, stop - start, at))
        end = at + stop - start
    places = {name: 0 for name in tensors}
    places.update({name: laid[index].at + distance for name, (index, distance) in inside.items()})
    return Layout(tuple(laid), places, end)


def cut(spans: tuple[Span, ...], piece: int) -> list[Span]:
    """The same bytes in pieces that do not cross a multiple of ``piece`` in the file."""
    pieces = []
    for span in spans:
        start, stop = span.start, span.start + span.size
        while start < stop:
            end = min(stop, (start // piece + 1) * piece)
            pieces.append(Span(start, end - start, span.at + start - span.start))
            start = end
    return pieces
