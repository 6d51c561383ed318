"""The client for programs that block."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from . import calls, room, wire
from ._http import EventStream, Response, document, request
from ._session import IN_USE_SECONDS, Session, event
from .calls import Call, Progress, StrPath
from .errors import NoDaemon, ProtocolError, WeightfsError, problem

T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R")


class Client:
    """Talks to the daemon behind a path. Made by `weightfs.connect`; may be used by several threads.

    What only makes things faster (pin, unpin, prefetch, evict, flush, `in_use`, the hints) does nothing where there is
    no daemon, and says so once in the log. What asks for something raises `NoDaemon` there. With `strict`, all raise.
    Refusals of a daemon are `Problem`s, answers that do not come in `timeout` seconds `TimedOut`.
    """

    def __init__(
        self, target: StrPath | None = None, *, timeout: float = 10.0, strict: bool = False, owner: str | None = None
    ) -> None:
        self._session = Session(target, timeout, strict, owner)

    @property
    def owner(self) -> str:
        """The name under which hints are given: those of one owner replace its former ones."""
        return self._session.owner

    def available(self) -> bool:
        """Whether a daemon answers."""
        try:
            self._send(calls.status())
        except WeightfsError:
            return False
        return True

    def status(self) -> wire.Status:
        """How the daemon is: mounts, RAM, what was read."""
        return self._do(calls.status())

    def files(
        self, path: StrPath | None = None, *, resident: bool = False, sort: wire.Sort | None = None
    ) -> list[wire.FileStatus]:
        """The model files beneath a folder, or in all mounts; with `resident`, only those with something in RAM."""
        return self._run(calls.all_files(path, resident, sort))

    def tensors(self, path: StrPath) -> wire.Tensors:
        """What a file consists of: its tensors, groups and components, and what of them is in RAM."""
        return self._do(calls.tensors(path))

    def explain(self, path: StrPath) -> wire.Explained:
        """Why a file is or is not in RAM."""
        return self._do(calls.explain(path))

    def pin(
        self, path: StrPath, *, tensors: str | None = None, priority: wire.Priority | None = None
    ) -> wire.Outcome:
        """Keep files in RAM for good; `tensors` is a glob of tensor names. Wildcards in `path` pin later files too."""
        return self._do(calls.pin(path, tensors, priority))

    def unpin(self, path: StrPath) -> wire.Outcome:
        """Take a pin back."""
        return self._do(calls.unpin(path))

    def prefetch(
        self,
        paths: StrPath | Iterable[StrPath],
        *,
        tensors: str | None = None,
        component: wire.Component | None = None,
        wait: bool = False,
        progress: Progress | None = None,
    ) -> wire.Job:
        """Read files, or a part of them, into RAM, as far as the policy keeps them.

        With `wait`, returns when that has ended. `progress` (which waits too) is called with the job at each change.
        """
        return self._run(calls.prefetch(calls.start_prefetch(paths, tensors, component), wait, progress))

    def prefetch_body(self, body: Mapping[str, Any]) -> wire.Job:
        """Carries out a prefetch as the interface describes it, such as one to the memory of a GPU, to its end."""
        start: Call[wire.Job] = Call("POST", "/v1/prefetch", body=dict(body))
        return self._run(calls.prefetch(start, True, None))

    def job(self, identity: str) -> wire.Job:
        """How a prefetch is."""
        return self._do(calls.job(identity))

    def cancel(self, identity: str) -> wire.Job:
        """Stop a prefetch."""
        return self._do(calls.cancel(identity))

    def evict(self, path: StrPath, *, tensors: str | None = None) -> wire.Outcome:
        """Free what a file takes of the RAM. What is mapped stays, and is counted in `left_bytes`."""
        return self._do(calls.evict(path, tensors))

    def flush(self) -> wire.Outcome:
        """Free everything that is neither pinned nor in use."""
        return self._do(calls.flush())

    def priority(self, path: StrPath, level: wire.Priority) -> wire.Hinted:
        """How much files matter: lower ones make room for higher ones."""
        return self._do(calls.priority(path, level))

    def make_room(self, path: StrPath) -> list[wire.Outcome]:
        """Frees as much RAM as `path` needs and a headroom, from what is worth less: see `weightfs.room`."""
        return self._run(room.make(path)) if self._present() else []

    def hint_queue(
        self, entries: Iterable[wire.QueueEntry | Mapping[str, Any]], *, seconds: float | None = None
    ) -> wire.Hinted:
        """What will be loaded, in this order. Replaces what was said before, and is forgotten after `seconds` (600)."""
        return self._do(calls.hint_queue(entries, self.owner, seconds))

    def hint_vram(self, device: str, paths: Iterable[StrPath], *, seconds: float | None = None) -> wire.Hinted:
        """What is fully held in the memory of a GPU such as `cuda:0`. Replaces what was said of it before, and is
        forgotten after `seconds` (600)."""
        return self._do(calls.hint_vram(device, paths, self.owner, seconds))

    def mark(self, paths: StrPath | Iterable[StrPath], seconds: float) -> wire.InUse:
        """Says that files are used for the next `seconds`, unless that is taken back with `unmark`."""
        return self._do(self._session.mark(paths, seconds))

    def unmark(self, identity: str) -> None:
        """Takes a mark back."""
        if identity:
            self._do(calls.no_longer_in_use(identity))

    @contextlib.contextmanager
    def in_use(self, paths: StrPath | Iterable[StrPath]) -> Iterator[None]:
        """Marks files as in use within a `with` block, and renews the mark as long as that lasts."""
        mark = self._session.mark(paths, IN_USE_SECONDS)
        identity = self._do(mark)["id"]
        over = threading.Event()

        def renew() -> None:
            while not over.wait(IN_USE_SECONDS / 3):
                with contextlib.suppress(WeightfsError):
                    self._do(mark)

        thread = threading.Thread(target=renew, name="weightfs-in-use", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            with contextlib.suppress(WeightfsError):
                self.unmark(identity)

    def events(self, kinds: Iterable[str] | None = None) -> Iterator[wire.Event]:
        """What happens, as it happens, until the daemon or the caller ends it.

        Kinds: opened, filled, evicted, budget, pinned, unpinned, prefetch, worker. A slow reader is told `lost`.
        """
        call = calls.events(kinds)
        response, stream = Response(), EventStream()
        with self._connected(self._session.socket()) as connection:
            connection.sendall(request(call.method, call.path, call.query))
            refused = b""
            # Something comes every 15 s, if only a sign of life.
            connection.settimeout(max(self._session.timeout, 60.0))
            while not response.complete:
                try:
                    received = _received(connection)
                except TimeoutError:
                    raise self._session.too_late() from None
                body = response.feed(received)
                if response.status and response.status != 200:
                    refused += body
                    continue
                for name, data in stream.feed(body):
                    yield event(name, data)
            if response.status != 200:
                raise problem(response.status, document(refused))

    def _present(self) -> bool:
        try:
            self._session.socket()
        except NoDaemon as error:
            self._session.absent(error)
            return False
        return True

    def _run(self, steps: Generator[Call[A], A, R]) -> R:
        """Carries out what takes several calls."""
        try:
            call = next(steps)
            while True:
                call = steps.send(self._do(call))
        except StopIteration as end:
            result: R = end.value
            return result

    def _do(self, call: Call[T]) -> T:
        try:
            return self._send(call)
        except NoDaemon as error:
            return self._session.without_daemon(call, error)

    def _send(self, call: Call[T]) -> T:
        session = self._session
        deadline = time.monotonic() + session.timeout + call.patience
        response, body = Response(), bytearray()
        with self._connected(session.socket()) as connection:
            try:
                connection.sendall(request(call.method, call.path, call.query, call.body))
                while not response.complete:
                    connection.settimeout(max(deadline - time.monotonic(), 0.001))
                    body += response.feed(_received(connection))
            except TimeoutError:
                raise session.too_late() from None
            except (BrokenPipeError, ConnectionResetError):
                raise ProtocolError("the daemon ended the connection before it had answered; try again") from None
        answer: T = session.answer(response.status, document(bytes(body)))
        return answer

    @contextlib.contextmanager
    def _connected(self, path: str) -> Iterator[socket.socket]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(self._session.timeout)
            try:
                connection.connect(path)
            except TimeoutError:
                raise self._session.too_late() from None
            except OSError as error:
                raise self._session.unreachable(path, error) from None
            yield connection


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1 << 18)
    except ConnectionResetError:
        return b""


def connect(
    target: StrPath | None = None, *, timeout: float = 10.0, strict: bool = False, owner: str | None = None
) -> Client:
    """A client for the daemon behind a path inside a mount or behind a control socket; for None, the one that runs.

    Nothing is sent yet, and nothing fails: see `Client` for what happens where there is no daemon.
    """
    return Client(target, timeout=timeout, strict=strict, owner=owner)
