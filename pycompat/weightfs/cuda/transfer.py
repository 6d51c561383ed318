"""The three ways in which bytes of a file get into device memory, and what each of them did."""

from __future__ import annotations

import ctypes
import os
import queue
import threading
from ctypes import c_uint64, c_void_p
from dataclasses import dataclass, field

from .device import Context, DeviceBuffer, Event, Pinned, Streams
from .errors import CudaError, CudaUnavailable
from .layout import Span, cut
from .registration import PIECE, Generation, Piece, Registrations

STREAMS = 4
RING_THREADS = 8
RING_PIECE = 2 << 20
#: Of each thread: one is read into while the other is copied from.
RING_SLOTS = 2


@dataclass
class Report:
    """How a load went. ``notes`` say why it did not go another way."""

    direct_bytes: int = 0
    """From registered pages of the arena, with no copy in between."""
    ring_bytes: int = 0
    """Through pinned buffers, filled by pread."""
    pageable_bytes: int = 0
    """Through ordinary memory."""
    gds_bytes: int = 0
    """From storage, without passing through RAM, or as cuFile's compatibility mode does it."""
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return self.direct_bytes + self.ring_bytes + self.pageable_bytes + self.gds_bytes

    @property
    def path(self) -> str:
        """The way that most bytes took: direct, ring, pageable, gds, or none."""
        ways = {"direct": self.direct_bytes, "ring": self.ring_bytes, "pageable": self.pageable_bytes,
                "gds": self.gds_bytes}
        return max(ways, key=ways.__getitem__) if self.bytes else "none"

    @property
    def gb_per_s(self) -> float:
        return self.bytes / self.seconds / 1e9 if self.seconds else 0.0

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def __str__(self) -> str:
        text = f"{self.bytes / 1e9:.2f} GB in {self.seconds:.3f} s by {self.path}, {self.gb_per_s:.2f} GB/s"
        return "; ".join([text, *self.notes])


def read_full(fd: int, view: memoryview, offset: int) -> None:
    """Fills ``view``. A file that ends earlier was cut short while it was read."""
    done = 0
    while done < len(view):
        got = os.preadv(fd, [view[done:]], offset + done)
        if got == 0:
            raise OSError(f"the file ends at {offset + done}: it was cut short while it was loaded")
        done += got


def direct(context: Context, registrations: Registrations, generation: Generation, fd: int, spans: list[Span],
           target: DeviceBuffer, report: Report) -> list[Span]:
    """Copies from the registered pages of a mapping. Gives back what has to go another way."""
    if not context.device.registers:
        report.note("this device cannot register host memory")
        return spans
    try:
        mapping = registrations.mapping(generation, fd)
        streams = Streams(context, STREAMS)
    except (CudaError, OSError) as error:
        report.note(str(error))
        return spans
    left: list[Span] = []
    in_flight: list[tuple[Piece, list[Span]]] = []
    broken = False
    try:
        for number, start in enumerate(sorted({span.start // PIECE * PIECE for span in spans})):
            wanted = [span for span in spans if span.start // PIECE * PIECE == start]
            piece = None
            try:
                if not broken:
                    piece = registrations.acquire(context, generation, mapping, start)
                if piece is None and in_flight:
                    # The room is taken by what is being copied.
                    again = _settled(streams, registrations, in_flight, report)
                    broken = bool(again)
                    left += again
                    if not broken:
                        piece = registrations.acquire(context, generation, mapping, start)
            except CudaError as error:
                report.note(f"a part of the file could not be registered: {error}")
            if piece is None:
                left += wanted
                continue
            in_flight.append((piece, wanted))
            left += _enqueue(context, piece, wanted, target, streams.handles[number % STREAMS], report)
        left += _settled(streams, registrations, in_flight, report)
    finally:
        # No page may be given up while the device reads it.
        streams.close()
        for piece, _ in in_flight:
            registrations.release(piece)
    return left


def _enqueue(context: Context, piece: Piece, wanted: list[Span], target: DeviceBuffer, stream: c_void_p,
             report: Report) -> list[Span]:
    """Starts the copies of a piece; what cannot be started leaves ``wanted`` and comes back."""
    refused = []
    for span in list(wanted):
        try:
            context.driver.call("cuMemcpyHtoDAsync_v2", target.pointer + span.at,
                                c_void_p(piece.mapping.address + span.start), span.size, stream)
        except CudaError as error:
            report.note(f"a copy from registered memory failed: {error}")
            wanted.remove(span)
            refused.append(span)
    return refused


def _settled(streams: Streams, registrations: Registrations, in_flight: list[tuple[Piece, list[Span]]],
             report: Report) -> list[Span]:
    """Waits for the copies, gives the pieces back, and says what must be copied again: after that, by other streams."""
    again: list[Span] = []
    try:
        streams.wait()
        report.direct_bytes += sum(span.size for _, spans in in_flight for span in spans)
    except CudaError as error:
        report.note(f"copies from registered memory failed: {error}")
        again = [span for _, spans in in_flight for span in spans]
        # Whatever else is in flight must have ended before a page is given up.
        streams.close()
    for piece, _ in in_flight:
        registrations.release(piece)
    in_flight.clear()
    return again


class _Slot:
    """A pinned buffer, and the event that says that it may be filled again."""

    def __init__(self, context: Context) -> None:
        self.memory = Pinned(context, RING_PIECE)
        try:
            self.event = Event(context)
        except CudaError:
            self.memory.close()
            raise
        self.busy: Span | None = None

    def close(self) -> None:
        self.event.close()
        self.memory.close()


class _Worker:
    """One thread of the ring: reads into one of its buffers while the device copies from the other."""

    def __init__(self, context: Context, fd: int, target: DeviceBuffer) -> None:
        self.context, self.fd, self.target = context, fd, target
        self.done = 0
        self.left: list[Span] = []
        self.error: CudaError | None = None
        self.streams = Streams(context, 1)
        self.slots: list[_Slot] = []
        try:
            for _ in range(RING_SLOTS):
                self.slots.append(_Slot(context))
        except (CudaError, CudaUnavailable):
            self.close()
            raise

    def run(self, todo: queue.SimpleQueue[Span], stop: threading.Event) -> None:
        with self.context.current():
            turn = 0
            while not stop.is_set() and self.error is None:
                try:
                    span = todo.get_nowait()
                except queue.Empty:
                    break
                slot = self.slots[turn % RING_SLOTS]
                turn += 1
                self._settle(slot)
                self._fill(slot, span)
            for slot in self.slots:
                self._settle(slot)

    def _fill(self, slot: _Slot, span: Span) -> None:
        read_full(self.fd, slot.memory.view[:span.size], span.start)
        slot.busy = span
        try:
            self.context.driver.call("cuMemcpyHtoDAsync_v2", self.target.pointer + span.at, slot.memory.address,
                                     span.size, self.streams.handles[0])
            slot.event.record(self.streams.handles[0])
        except CudaError as error:
            # It may have been started: the buffer is left alone until the end.
            self._failed(slot, error)

    def _settle(self, slot: _Slot) -> None:
        if slot.busy is None:
            return
        try:
            slot.event.wait()
            self.done += slot.busy.size
            slot.busy = None
        except CudaError as error:
            self._failed(slot, error)

    def _failed(self, slot: _Slot, error: CudaError) -> None:
        self.error = error
        if slot.busy is not None:
            self.left.append(slot.busy)
        slot.busy = None

    def close(self) -> None:
        self.streams.close()
        for slot in self.slots:
            slot.close()
        self.slots = []


def ring(context: Context, fd: int, spans: list[Span], target: DeviceBuffer, report: Report) -> list[Span]:
    """Reads by several threads into pinned buffers and copies from them. Gives back what has to go another way."""
    pieces = cut(tuple(spans), RING_PIECE)
    if not pieces:
        return []
    todo: queue.SimpleQueue[Span] = queue.SimpleQueue()
    for piece in pieces:
        todo.put(piece)
    workers: list[_Worker] = []
    stop = threading.Event()
    failures: list[BaseException] = []

    def work(worker: _Worker) -> None:
        try:
            worker.run(todo, stop)
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            failures.append(error)
            stop.set()

    try:
        for _ in range(min(RING_THREADS, len(pieces))):
            try:
                workers.append(_Worker(context, fd, target))
            except (CudaError, CudaUnavailable) as error:
                # Fewer threads do as well.
                report.note(f"no (more) pinned memory: {error}")
                break
        threads = [threading.Thread(target=work, args=(worker,), name="weightfs-upload") for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for worker in workers:
            worker.close()
    errors = [error for error in failures if not isinstance(error, CudaError)]
    if errors:
        raise errors[0]
    left = []
    for worker in workers:
        report.ring_bytes += worker.done
        left += worker.left
        if worker.error is not None:
            report.note(f"a copy from pinned memory failed: {worker.error}")
    for failure in failures:
        report.note(f"a thread of the ring failed: {failure}")
    while not todo.empty():
        left.append(todo.get_nowait())
    return left


def pageable(context: Context, fd: int, spans: list[Span], target: DeviceBuffer, report: Report) -> None:
    """The ordinary way, one piece after the other. Raises CudaError where that fails too."""
    pieces = cut(tuple(spans), RING_PIECE)
    if not pieces:
        return
    memory = (ctypes.c_char * RING_PIECE)()
    view = memoryview(memory).cast("B")
    with context.current():
        for span in pieces:
            read_full(fd, view[:span.size], span.start)
            context.driver.call("cuMemcpyHtoD_v2", c_uint64(target.pointer + span.at), memory, span.size)
            report.pageable_bytes += span.size
