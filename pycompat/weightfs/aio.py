"""The client for asyncio: as `weightfs.client`, whose methods say more, with `await`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Generator, Iterable, Mapping
from typing import Any, TypeVar

from . import calls, room, wire
from ._http import EventStream, Response, document, request
from ._session import IN_USE_SECONDS, Session, event
from .calls import Call, Progress, StrPath
from .errors import NoDaemon, ProtocolError, WeightfsError, problem

T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R")


class AsyncClient:
    """Talks to the daemon behind a path, without blocking. The rules are those of `Client`."""

    def __init__(
        self, target: StrPath | None = None, *, timeout: float = 10.0, strict: bool = False, owner: str | None = None
    ) -> None:
        self._session = Session(target, timeout, strict, owner)

    @property
    def owner(self) -> str:
        """The name under which hints are given."""
        return self._session.owner

    async def status(self) -> wire.Status:
        """How the daemon is."""
        return await self._do(calls.status())

    async def files(
        self, path: StrPath | None = None, *, resident: bool = False, sort: wire.Sort | None = None
    ) -> list[wire.FileStatus]:
        """The model files beneath a folder."""
        return await self._run(calls.all_files(path, resident, sort))

    async def tensors(self, path: StrPath) -> wire.Tensors:
        """What a file consists of."""
        return await self._do(calls.tensors(path))

    async def explain(self, path: StrPath) -> wire.Explained:
        """Why a file is or is not in RAM."""
        return await self._do(calls.explain(path))

    async def pin(
        self, path: StrPath, *, tensors: str | None = None, priority: wire.Priority | None = None
    ) -> wire.Outcome:
        """Keep files in RAM for good."""
        return await self._do(calls.pin(path, tensors, priority))

    async def unpin(self, path: StrPath) -> wire.Outcome:
        """Take a pin back."""
        return await self._do(calls.unpin(path))

    async def prefetch(
        self,
        paths: StrPath | Iterable[StrPath],
        *,
        tensors: str | None = None,
        component: wire.Component | None = None,
        wait: bool = False,
        progress: Progress | None = None,
    ) -> wire.Job:
        """Read files, or a part of them, into RAM."""
        return await self._run(calls.prefetch(calls.start_prefetch(paths, tensors, component), wait, progress))

    async def job(self, identity: str) -> wire.Job:
        """How a prefetch is."""
        return await self._do(calls.job(identity))

    async def cancel(self, identity: str) -> wire.Job:
        """Stop a prefetch."""
        return await self._do(calls.cancel(identity))

    async def evict(self, path: StrPath, *, tensors: str | None = None) -> wire.Outcome:
        """Free what a file takes of the RAM."""
        return await self._do(calls.evict(path, tensors))

    async def flush(self) -> wire.Outcome:
        """Free everything that is neither pinned nor in use."""
        return await self._do(calls.flush())

    async def priority(self, path: StrPath, level: wire.Priority) -> wire.Hinted:
        """How much files matter."""
        return await self._do(calls.priority(path, level))

    async def make_room(self, path: StrPath) -> list[wire.Outcome]:
        """Frees as much RAM as `path` needs and a headroom."""
        try:
            self._session.socket()
        except NoDaemon as error:
            self._session.absent(error)
            return []
        return await self._run(room.make(path))

    async def hint_queue(
        self, entries: Iterable[wire.QueueEntry | Mapping[str, Any]], *, seconds: float | None = None
    ) -> wire.Hinted:
        """What will be loaded, in this order."""
        return await self._do(calls.hint_queue(entries, self.owner, seconds))

    async def hint_vram(self, device: str, paths: Iterable[StrPath], *, seconds: float | None = None) -> wire.Hinted:
        """What is fully held in the memory of a GPU."""
        return await self._do(calls.hint_vram(device, paths, self.owner, seconds))

    async def mark(self, paths: StrPath | Iterable[StrPath], seconds: float) -> wire.InUse:
        """Says that files are used for the next `seconds`."""
        return await self._do(self._session.mark(paths, seconds))

    async def unmark(self, identity: str) -> None:
        """Takes a mark back."""
        if identity:
            await self._do(calls.no_longer_in_use(identity))

    @contextlib.asynccontextmanager
    async def in_use(self, paths: StrPath | Iterable[StrPath]) -> AsyncIterator[None]:
        """Marks files as in use within an `async with` block."""
        mark = self._session.mark(paths, IN_USE_SECONDS)
        identity = (await self._do(mark))["id"]

        async def renew() -> None:
            while True:
                await asyncio.sleep(IN_USE_SECONDS / 3)
                with contextlib.suppress(WeightfsError):
                    await self._do(mark)

        renewal = asyncio.ensure_future(renew())
        try:
            yield
        finally:
            renewal.cancel()
            with contextlib.suppress(WeightfsError):
                await self.unmark(identity)

    async def events(self, kinds: Iterable[str] | None = None) -> AsyncIterator[wire.Event]:
        """What happens, as it happens."""
        call = calls.events(kinds)
        response, stream = Response(), EventStream()
        async with self._connected(self._session.socket()) as (reader, writer):
            writer.write(request(call.method, call.path, call.query))
            refused = b""
            while not response.complete:
                received = await self._within(reader.read(1 << 18), max(self._session.timeout, 60.0))
                body = response.feed(received)
                if response.status and response.status != 200:
                    refused += body
                    continue
                for name, data in stream.feed(body):
                    yield event(name, data)
            if response.status != 200:
                raise problem(response.status, document(refused))

    async def _run(self, steps: Generator[Call[A], A, R]) -> R:
        try:
            call = next(steps)
            while True:
                call = steps.send(await self._do(call))
        except StopIteration as end:
            result: R = end.value
            return result

    async def _do(self, call: Call[T]) -> T:
        try:
            answer: T = await self._within(self._send(call), self._session.timeout + call.patience)
            return answer
        except NoDaemon as error:
            return self._session.without_daemon(call, error)

    async def _send(self, call: Call[T]) -> T:
        response, body = Response(), bytearray()
        async with self._connected(self._session.socket()) as (reader, writer):
            try:
                writer.write(request(call.method, call.path, call.query, call.body))
                await writer.drain()
                while not response.complete:
                    body += response.feed(await reader.read(1 << 18))
            except (BrokenPipeError, ConnectionResetError):
                raise ProtocolError("the daemon ended the connection before it had answered; try again") from None
        answer: T = self._session.answer(response.status, document(bytes(body)))
        return answer

    async def _within(self, work: Any, seconds: float) -> Any:
        try:
            return await asyncio.wait_for(work, seconds)
        except asyncio.TimeoutError:
            raise self._session.too_late() from None

    @contextlib.asynccontextmanager
    async def _connected(self, path: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        try:
            reader, writer = await asyncio.open_unix_connection(path)
        except OSError as error:
            raise self._session.unreachable(path, error) from None
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def connect(
    target: StrPath | None = None, *, timeout: float = 10.0, strict: bool = False, owner: str | None = None
) -> AsyncClient:
    """As `weightfs.connect`, for asyncio."""
    return AsyncClient(target, timeout=timeout, strict=strict, owner=owner)
