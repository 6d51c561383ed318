"""What both clients know and decide in the same way."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable
from typing import Any, TypeVar, cast

from . import calls, wire
from ._find import control_socket
from .calls import Call, StrPath
from .errors import NoDaemon, NotPermitted, ProtocolError, TimedOut, WeightfsError, problem

T = TypeVar("T")

LOG = logging.getLogger("weightfs")
# A mark is good for so long, and renewed three times in it.
IN_USE_SECONDS = 60.0


class Session:
    """Which daemon, how long to wait for it, and what its answers mean."""

    def __init__(self, target: StrPath | None, timeout: float, strict: bool, owner: str | None) -> None:
        self.target = None if target is None else os.fspath(target)
        self.timeout = timeout
        self.strict = strict
        program = os.path.basename(sys.argv[0] if sys.argv and sys.argv[0] else "python")
        self.owner = owner or f"{program}-{os.getpid()}"
        self._warned = False
        self._marks = 0

    def socket(self) -> str:
        """The path of the control socket, asked for anew each time: mounts come and go. Raises `NoDaemon`."""
        return control_socket(self.target)

    def mark(self, paths: StrPath | Iterable[StrPath], seconds: float) -> Call[wire.InUse]:
        """A mark of its own for each block: the daemon replaces marks of the same owner."""
        several = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        self._marks += 1
        located = [calls.located(path) for path in several]
        return calls.in_use(located, seconds, f"{self.owner}.{self._marks}")

    def without_daemon(self, call: Call[T], error: NoDaemon) -> T:
        """What a call comes to where nobody answers."""
        if not call.is_hint:
            raise error
        self.absent(error)
        return cast(T, call.fallback)

    def absent(self, error: NoDaemon) -> None:
        """Says once that hints do nothing; raises with `strict`."""
        if self.strict:
            raise error
        if not self._warned:
            self._warned = True
            LOG.warning("hints do nothing: %s", error)

    def unreachable(self, path: str, error: OSError) -> WeightfsError:
        """Why a socket could not be connected to."""
        if isinstance(error, PermissionError):
            return NotPermitted(f"the control socket {path} is not for this user", status=403)
        return NoDaemon(f"no daemon answers on {path}: {error.strerror or error}; 'weightfs status' shows what runs")

    def too_late(self) -> TimedOut:
        """Nothing came in time."""
        return TimedOut(f"the daemon did not answer within {self.timeout:g} s; 'weightfs status' shows whether it runs")

    @staticmethod
    def answer(status: int, document: Any) -> Any:
        """The answer, or the refusal as an exception."""
        if 200 <= status < 300:
            return document
        raise problem(status, document)


def event(name: str, data: str) -> wire.Event:
    """One event of a stream."""
    try:
        fields = json.loads(data)
    except ValueError as error:
        raise ProtocolError(f"an event that is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ProtocolError(f"an event that is no object: {data[:80]!r}")
    return cast(wire.Event, {**fields, "kind": name})
