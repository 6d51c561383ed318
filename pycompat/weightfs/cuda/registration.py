"""Mappings of resident files that the device reads by itself, kept from one load to the next.

Registering pins pages and costs time, so that what was registered is kept, up to a limit in bytes. It is kept by the
generation of the file: another content of the same name is another generation, and drops what the old one had.
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import os
import threading
from collections import OrderedDict
from dataclasses import dataclass

from .device import Context
from .driver import REGISTER_PORTABLE, REGISTER_READ_ONLY

#: Bytes of one registration. A multiple of the 2 MiB pages of the arena; small enough that one which fails costs little.
PIECE = 64 << 20

#: Device, inode, size, mtime and ctime: one content of one file.
Generation = tuple[int, int, int, int, int]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value


def generation_of(found: os.stat_result) -> Generation:
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class SharedMapping:
    """A file mapped shared and read-only: of a resident file, these are the pages of the arena themselves."""

    def __init__(self, fd: int, size: int) -> None:
        self.size = size
        self.address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if self.address == _FAILED:
            self.address = None
            raise OSError(ctypes.get_errno(), "the file cannot be mapped shared")

    def __del__(self) -> None:
        if getattr(self, "address", None):
            _libc.munmap(self.address, self.size)
            self.address = None


@dataclass(eq=False)
class Piece:
    """A registered part of a mapping, from ``start`` of the file."""

    generation: Generation
    mapping: SharedMapping
    context: Context
    start: int
    size: int
    users: int = 0
    dropped: bool = False

    @property
    def address(self) -> int:
        return self.mapping.address + self.start

    def unregister(self) -> None:
        # The mapping goes with its last piece, after this.
        self.context.quietly("cuMemHostUnregister", ctypes.c_void_p(self.address))


class Registrations:
    """Registered pieces, at most ``limit`` bytes of them.

    To make room, pieces of other files go first, the least recently used before the others. Then those of the file
    that is being loaded go, the *most* recently used first: a file that does not fit keeps a part that the next load
    finds, where the least recently used order would keep none."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._pieces: OrderedDict[tuple[Generation, int], Piece] = OrderedDict()
        self._bytes = 0
        self.registered = 0
        """How often the driver was asked for one."""
        self.reused = 0

    @property
    def bytes(self) -> int:
        return self._bytes

    def mapping(self, generation: Generation, fd: int) -> SharedMapping:
        """The mapping that pieces of this generation have, or one of ``fd``. What other generations of the file have
        is dropped."""
        with self._lock:
            found = None
            for piece in list(self._pieces.values()):
                if piece.generation == generation:
                    found = piece.mapping
                elif piece.generation[:2] == generation[:2]:
                    self._drop(piece)
        return found if found is not None else SharedMapping(fd, generation[2])

    def acquire(self, context: Context, generation: Generation, mapping: SharedMapping, start: int) -> Piece | None:
        """The piece of a file that begins at ``start``, registered, and in use until it is released. None where the
        limit has no room while others are in use. Raises CudaError where the driver refuses."""
        size = min(PIECE, mapping.size - start)
        with self._lock:
            piece = self._pieces.get((generation, start))
            if piece is not None and piece.mapping is mapping:
                self._pieces.move_to_end((generation, start))
                piece.users += 1
                self.reused += 1
                return piece
            if piece is not None or not self._make_room(size, generation):
                return None
            piece = Piece(generation, mapping, context, start, size, users=1)
            _register(context, piece)
            self.registered += 1
            self._pieces[(generation, start)] = piece
            self._bytes += size
            return piece

    def release(self, piece: Piece) -> None:
        """The device has read what it was to read there."""
        with self._lock:
            piece.users -= 1
            if piece.dropped and piece.users == 0:
                self._let_go(piece)

    def drop_all(self) -> None:
        """Unregisters everything that is not in use, and the rest as soon as it is not."""
        with self._lock:
            for piece in list(self._pieces.values()):
                self._drop(piece)

    def _make_room(self, size: int, generation: Generation) -> bool:
        while self._bytes + size > self.limit:
            idle = [piece for piece in self._pieces.values() if piece.users == 0]
            others = [piece for piece in idle if piece.generation != generation]
            in_use = sum(piece.size for piece in self._pieces.values() if piece.users > 0)
            # One half is for what is being copied; the other is what the next load finds.
            if not idle or (not others and in_use > 0 and in_use + size > self.limit // 2):
                return False
            self._drop(others[0] if others else idle[-1])
        return True

    def _drop(self, piece: Piece) -> None:
        del self._pieces[(piece.generation, piece.start)]
        piece.dropped = True
        if piece.users == 0:
            self._let_go(piece)

    def _let_go(self, piece: Piece) -> None:
        piece.unregister()
        self._bytes -= piece.size


def _register(context: Context, piece: Piece) -> None:
    # Whole pages; the mapping has them beyond the end of the file too.
    size = -(-piece.size // mmap.PAGESIZE) * mmap.PAGESIZE
    flags = REGISTER_PORTABLE | (REGISTER_READ_ONLY if context.device.registers_read_only else 0)
    with context.current():
        context.driver.call("cuMemHostRegister_v2", ctypes.c_void_p(piece.address), size, flags)


def _default_limit() -> int:
    """A quarter of the RAM: what is registered cannot leave the arena."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4


registrations = Registrations(_default_limit())


def _forget() -> None:
    global registrations
    # They belong to the parent, whose mappings this process has copies of.
    registrations = Registrations(registrations.limit)


os.register_at_fork(after_in_child=_forget)
atexit.register(lambda: registrations.drop_all())
