"""What can go wrong, as exceptions. Their text says what is wrong and what to do about it."""

from __future__ import annotations

from typing import Any

PROBLEM_PREFIX = "urn:weightfs:problem:"


class WeightfsError(Exception):
    """Anything that this package raises of its own accord."""


class NoDaemon(WeightfsError):
    """No daemon is behind a path or a socket: nothing is mounted there, or it has ended."""


class ProtocolError(WeightfsError):
    """The other side does not speak the control protocol as this version knows it."""


class TimedOut(WeightfsError):
    """The daemon did not answer within the time that was given."""


class Problem(WeightfsError):
    """The daemon refused. `str(problem)` is what it says, in the words that the command line prints.

    `kind` is what programs tell refusals apart by, `status` that of HTTP.
    """

    kind = "failed"

    def __init__(self, detail: str, kind: str | None = None, status: int = 500) -> None:
        super().__init__(detail)
        self.detail = detail
        self.kind = kind or type(self).kind
        self.status = status


class BadRequest(Problem):
    """The request is not understood."""

    kind = "bad_request"


class NotPermitted(Problem):
    """For root, the daemon's user, and the owner of the models only."""

    kind = "not_permitted"


class NotMounted(Problem):
    """The path lies in no mount of this daemon."""

    kind = "not_mounted"


class NoFile(Problem):
    """There is no such model file."""

    kind = "no_file"


class NotFound(Problem):
    """The job or hint is not known (any more)."""

    kind = "not_found"


class NoRoom(Problem):
    """The budget does not allow it."""

    kind = "no_room"


class Busy(Problem):
    """Programs have it open or mapped."""

    kind = "busy"


class TooLarge(Problem):
    """The request is larger than the daemon takes."""

    kind = "too_large"


class Overloaded(Problem):
    """The daemon answers as many requests as it will at a time. Try again."""

    kind = "overloaded"


_KINDS: dict[str, type[Problem]] = {
    cls.kind: cls
    for cls in (BadRequest, NotPermitted, NotMounted, NoFile, NotFound, NoRoom, Busy, TooLarge, Overloaded)
}


def problem(status: int, document: Any) -> Problem:
    """The exception for an RFC 9457 problem document; of a newer daemon too, whose kinds are not known here."""
    if not isinstance(document, dict):
        return Problem(f"the daemon answered with HTTP status {status}", status=status)
    kind = str(document.get("type", "")).removeprefix(PROBLEM_PREFIX) or "failed"
    detail = document.get("detail") or document.get("title") or f"the daemon answered with HTTP status {status}"
    return _KINDS.get(kind, Problem)(str(detail), kind, status)
