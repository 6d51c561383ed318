"""The control interface without input or output: what is asked, and what an answer means.

Each function gives a `Call`, which either client carries out. What takes several calls is a generator of calls that is
sent their answers: `prefetch` waits for its job in this way in both clients.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote

from . import wire

T = TypeVar("T")
Progress = Callable[[wire.Job], object]
StrPath = str | os.PathLike[str]

# The daemon holds a question about a job for at most 30 s.
WAIT_MS = 10_000
OWNER_LIMIT = 200


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request. `fallback` is what a hint comes to where there is no daemon; a query has none."""

    method: str
    path: str
    query: dict[str, str] | None = None
    body: Any = None
    fallback: T | None = None
    is_hint: bool = False
    # What the daemon may take to answer beyond the usual, in seconds.
    patience: float = 0.0


def located(path: StrPath) -> str:
    """A path as the daemon knows it: absolute, and through no link on the way to the mount.

    Names with wildcards keep them: only the folders before the first are resolved.
    """
    text = os.path.abspath(os.fspath(path))
    if not glob.has_magic(text) or os.path.lexists(text):
        return os.path.realpath(text)
    parts = text.split("/")
    plain = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    return os.path.join(os.path.realpath("/".join(parts[:plain]) or "/"), *parts[plain:])


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _nothing() -> wire.Outcome:
    return {"files": 0, "bytes": 0, "left_bytes": 0}


def status() -> Call[wire.Status]:
    """How the daemon is."""
    return Call("GET", "/v1/status")


def files(
    path: StrPath | None, resident: bool, sort: wire.Sort | None, limit: int | None, cursor: str | None
) -> Call[wire.Files]:
    """One page of the files beneath a path."""
    query = _given(
        path=None if path is None else located(path),
        resident="true" if resident else None,
        sort=sort,
        limit=None if limit is None else str(limit),
        cursor=cursor,
    )
    return Call("GET", "/v1/files", query)


def all_files(
    path: StrPath | None, resident: bool, sort: wire.Sort | None
) -> Generator[Call[wire.Files], wire.Files, list[wire.FileStatus]]:
    """Every page."""
    found: list[wire.FileStatus] = []
    cursor: str | None = None
    while True:
        page = yield files(path, resident, sort, None, cursor)
        found += page["files"]
        cursor = page.get("next")
        if not cursor:
            return found


def tensors(path: StrPath) -> Call[wire.Tensors]:
    """What a file consists of."""
    return Call("GET", "/v1/tensors", {"path": located(path)})


def explain(path: StrPath) -> Call[wire.Explained]:
    """Why a file is or is not in RAM."""
    return Call("GET", "/v1/explain", {"path": located(path)})


def pin(path: StrPath, tensors: str | None, priority: wire.Priority | None) -> Call[wire.Outcome]:
    """Keep in RAM for good."""
    body = _given(path=located(path), tensors=tensors, priority=priority)
    return Call("POST", "/v1/pin", body=body, fallback=_nothing(), is_hint=True, patience=50.0)


def unpin(path: StrPath) -> Call[wire.Outcome]:
    """Take a pin back."""
    return Call("POST", "/v1/unpin", body={"path": located(path)}, fallback=_nothing(), is_hint=True)


def evict(path: StrPath, tensors: str | None) -> Call[wire.Outcome]:
    """Free what a file takes of the RAM."""
    body = _given(path=located(path), tensors=tensors)
    return Call("POST", "/v1/evict", body=body, fallback=_nothing(), is_hint=True)


def flush() -> Call[wire.Outcome]:
    """Free everything that is neither pinned nor in use."""
    return Call("POST", "/v1/flush", body={}, fallback=_nothing(), is_hint=True)


def start_prefetch(
    paths: StrPath | Iterable[StrPath], tensors: str | None, component: wire.Component | None
) -> Call[wire.Job]:
    """Read files into RAM."""
    several = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    body = _given(paths=[located(path) for path in several], tensors=tensors, component=component)
    return Call("POST", "/v1/prefetch", body=body, fallback=_idle_job(), is_hint=True)


def _idle_job() -> wire.Job:
    return {"id": "", "state": "done", "files": 0, "bytes_done": 0, "bytes_total": 0, "bytes_per_second": 0}


def job(identity: str, wait_ms: int | None = None) -> Call[wire.Job]:
    """How a prefetch is; with `wait_ms`, once something has changed or so much time has passed."""
    query = None if wait_ms is None else {"wait_ms": str(wait_ms)}
    return Call("GET", f"/v1/jobs/{quote(identity, safe='')}", query, patience=(wait_ms or 0) / 1000)


def cancel(identity: str) -> Call[wire.Job]:
    """Stop a prefetch."""
    return Call("DELETE", f"/v1/jobs/{quote(identity, safe='')}", fallback=_idle_job(), is_hint=True)


def prefetch(
    start: Call[wire.Job], wait: bool, progress: Progress | None
) -> Generator[Call[wire.Job], wire.Job, wire.Job]:
    """Start it, and with `wait` follow it to its end."""
    state = yield start
    while wait or progress:
        if progress:
            progress(state)
        if state["state"] != "running":
            break
        state = yield job(state["id"], WAIT_MS)
    return state


def in_use(paths: Sequence[str], seconds: float, owner: str) -> Call[wire.InUse]:
    """These files are used now."""
    fallback: wire.InUse = {"id": "", "expires_seconds": seconds}
    body = {"paths": list(paths), "seconds": seconds, "owner": owner[:OWNER_LIMIT]}
    return Call("POST", "/v1/hints/in-use", body=body, fallback=fallback, is_hint=True)


def no_longer_in_use(identity: str) -> Call[None]:
    """Take a mark back."""
    return Call("DELETE", f"/v1/hints/in-use/{quote(identity, safe='')}", is_hint=True)


def _unheard() -> wire.Hinted:
    return {"files": 0, "unknown": [], "expires_seconds": None}


def priority(path: StrPath, level: wire.Priority) -> Call[wire.Hinted]:
    """How much files matter."""
    body = {"path": located(path), "priority": level}
    return Call("POST", "/v1/hints/priority", body=body, fallback=_unheard(), is_hint=True)


def hint_queue(
    entries: Iterable[wire.QueueEntry | Mapping[str, Any]], owner: str, seconds: float | None
) -> Call[wire.Hinted]:
    """What will be loaded, in this order."""
    sent = [
        {
            "id": str(entry["id"])[:200],
            "paths": [{**item, "path": located(item["path"])} for item in cast(Any, entry)["paths"]][:100],
        }
        for entry in entries
    ]
    body = _given(owner=owner[:OWNER_LIMIT], entries=sent[:1000], seconds=seconds)
    return Call("POST", "/v1/hints/queue", body=body, fallback=_unheard(), is_hint=True)


def hint_vram(
    device: str, paths: Iterable[StrPath], owner: str, seconds: float | None
) -> Call[wire.Hinted]:
    """What is fully held in the memory of a GPU."""
    located_paths = [located(path) for path in paths]
    body = _given(owner=owner[:OWNER_LIMIT], device=device, paths=located_paths, seconds=seconds)
    return Call("POST", "/v1/hints/vram", body=body, fallback=_unheard(), is_hint=True)


def events(kinds: Iterable[str] | None) -> Call[None]:
    """What happens, as it happens."""
    names = ",".join(kinds or ())
    return Call("GET", "/v1/events", {"kinds": names} if names else None)
