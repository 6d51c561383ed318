"""Reads from storage straight to device memory, by the daemon's cuFile process.

Only the daemon can open the files beneath a mount, and cuFile is not let into the process that loads: opening its
driver where a part of it is missing has been seen to damage a process. So the memory is shared with the daemon by its
handle, and the daemon is asked to fill it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from .device import DeviceBuffer
from .errors import GdsUnavailable
from .layout import Span

#: Takes the body of a prefetch, and returns its job when that has ended.
Request = Callable[[dict[str, Any]], dict[str, Any]]

_said = False


def read(path: str, spans: tuple[Span, ...], buffer: DeviceBuffer, request: Request | None) -> int:
    """Fills ``buffer``; gives the bytes. Raises GdsUnavailable with the daemon's words where it refuses."""
    if request is None:
        raise GdsUnavailable(f"{path} is not in a weightfs mount, whose daemon would read it")
    body = {
        "paths": [path],
        "to": buffer.device,
        "into": {
            "handle": buffer.handle().hex(),
            "size_bytes": buffer.size,
            "spans": [[span.start, span.size, span.at] for span in spans],
        },
    }
    job = request(body)
    wanted = sum(span.size for span in spans)
    if job.get("state") != "done" or job.get("bytes_done") != wanted:
        reason = job.get("detail") or f"{job.get('bytes_done')} of {wanted} bytes were read"
        raise GdsUnavailable(str(reason))
    return wanted


def impossible(error: Exception) -> GdsUnavailable:
    """What is raised where it was asked for by gds=True."""
    return GdsUnavailable(f"cuFile cannot load this file: {error}; load with gds=False, or gds='auto' to use it where "
                          "it works")


def say_once(error: Exception) -> None:
    """Warns that gds="auto" does without."""
    global _said
    if not _said:
        _said = True
        warnings.warn(f"weightfs loads through RAM, cuFile cannot be used: {error}", stacklevel=5)
