"""`python -m weightfs COMMAND`: the basics of the command line, where only this package is at hand."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from . import __version__, wire
from .client import Client
from .errors import NoDaemon, NotPermitted, WeightfsError

# As the program weightfs ends.
FAILED, NO_DAEMON, NOT_PERMITTED = 1, 3, 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Gives the exit code."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.command is None:
        parser.print_help()
        return 2
    try:
        paths = getattr(given, "path", None)
        first = paths[0] if isinstance(paths, list) else paths
        client = Client(first or given.at, strict=True, timeout=given.timeout)
        _COMMANDS[given.command](client, given)
    except NoDaemon as error:
        return _failed(error, NO_DAEMON)
    except NotPermitted as error:
        return _failed(error, NOT_PERMITTED)
    except (WeightfsError, OSError) as error:
        return _failed(error, FAILED)
    except KeyboardInterrupt:
        return 130
    return 0


def _failed(error: Exception, code: int) -> int:
    print(f"weightfs: {error}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m weightfs", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("--at", metavar="PATH", help="a path in the mount, or the control socket")
    parser.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS", help="for each answer (default: 10)")
    parser.add_argument("--json", action="store_true", help="print what the daemon says as JSON")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    def command(name: str, words: str, path: str | None = None) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=words, description=words)
        if path:
            made.add_argument("path", nargs=None if path == "1" else path, help="a file or folder in the mount")
        return made

    command("status", "how the daemon is", "?")
    files = command("files", "model files, and what of them is in RAM", "?")
    files.add_argument("--resident", action="store_true", help="only those with something in RAM")
    command("tensors", "what a file consists of", "1")
    command("explain", "why a file is or is not in RAM", "1")
    pin = command("pin", "keep in RAM for good", "1")
    pin.add_argument("--tensors", metavar="GLOB", help="only tensors of such names")
    pin.add_argument("--priority", choices=("low", "normal", "high"))
    command("unpin", "take a pin back", "1")
    prefetch = command("prefetch", "read into RAM", "+")
    prefetch.add_argument("--tensors", metavar="GLOB", help="only tensors of such names")
    prefetch.add_argument("--component", choices=("diffusion_model", "text_encoder", "vae", "other"))
    prefetch.add_argument("--no-wait", action="store_true", help="return at once")
    prefetch.add_argument("--make-room", action="store_true", help="evict what is worth less first")
    evict = command("evict", "free what a file takes of the RAM", "1")
    evict.add_argument("--tensors", metavar="GLOB", help="only tensors of such names")
    command("flush", "free everything that is neither pinned nor in use")
    priority = command("priority", "say how much files matter", "1")
    priority.add_argument("level", choices=("low", "normal", "high"))
    events = command("events", "show what happens, until interrupted", "?")
    events.add_argument("--kinds", help="only these, separated by commas")
    return parser


def _status(client: Client, given: argparse.Namespace) -> None:
    status = client.status()
    ram = status["ram"]
    mounts = ", ".join(mount["mountpoint"] for mount in status["mounts"])
    text = (
        f"{mounts}: {_size(ram['resident_bytes'])} of {_size(ram['budget_bytes'])} in use, "
        f"{_size(ram['pinned_bytes'])} pinned; version {status['version']}"
    )
    _print(given, status, "\n".join([text, *status["notes"]]))


def _files(client: Client, given: argparse.Namespace) -> None:
    files = client.files(given.path, resident=given.resident)
    _print(given, files, "\n".join(_row(file) for file in files) or "no model files")


def _row(file: wire.FileStatus) -> str:
    marks = [name for name, on in (("pinned", file["pinned_bytes"]), ("in use", file["in_use"])) if on]
    marks += file["in_vram"]
    extra = f"  ({', '.join(marks)})" if marks else ""
    return f"{_size(file['resident_bytes']):>10} of {_size(file['size_bytes']):>10}  {file['path']}{extra}"


def _tensors(client: Client, given: argparse.Namespace) -> None:
    found = client.tensors(given.path)
    rows = [f"{c['name']}: {_size(c['resident_bytes'])} of {_size(c['size_bytes'])}" for c in found["components"]]
    rows += [f"{t['name']}  {t['dtype']} {t['shape']}  {_size(t['size_bytes'])}" for t in found["tensors"]]
    _print(given, found, "\n".join(rows))


def _explain(client: Client, given: argparse.Namespace) -> None:
    found = client.explain(given.path)
    _print(given, found, found["why"])


def _prefetch(client: Client, given: argparse.Namespace) -> None:
    if given.make_room:
        for path in given.path:
            client.make_room(path)
    show = sys.stderr.isatty() and not given.no_wait
    job = client.prefetch(
        given.path,
        tensors=given.tensors,
        component=given.component,
        wait=not given.no_wait,
        progress=_progress if show else None,
    )
    text = f"{_size(job['bytes_done'])} of {_size(job['bytes_total'])} in RAM"
    _print(given, job, text + (f": {job['detail']}" if job.get("detail") else ""))
    if job["state"] == "failed":
        raise WeightfsError(job.get("detail", "the prefetch failed"))


def _progress(job: wire.Job) -> None:
    print(f"\r{_size(job['bytes_done'])} of {_size(job['bytes_total'])}   ", end="", file=sys.stderr, flush=True)
    if job["state"] != "running":
        print(file=sys.stderr)


def _outcome(given: argparse.Namespace, done: str, outcome: wire.Outcome) -> None:
    left = f", {_size(outcome['left_bytes'])} left" if outcome["left_bytes"] else ""
    _print(given, outcome, f"{done} {_size(outcome['bytes'])} of {outcome['files']} files{left}")


def _events(client: Client, given: argparse.Namespace) -> None:
    for event in client.events(given.kinds.split(",") if given.kinds else None):
        line = f"{event['kind']:9} {event.get('path', '')} {event.get('reason', '')}".rstrip()
        _print(given, event, line)
        sys.stdout.flush()


def _print(given: argparse.Namespace, found: Any, text: str) -> None:
    print(json.dumps(found) if given.json else text)


def _size(count: int) -> str:
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return f"{size:.0f} B" if units[0] == "B" else f"{size:.1f} {units[0]}"


def _priority(client: Client, given: argparse.Namespace) -> None:
    client.priority(given.path, given.level)
    _print(given, {}, f"the priority is {given.level}")


_COMMANDS: dict[str, Callable[[Client, argparse.Namespace], None]] = {
    "status": _status,
    "files": _files,
    "tensors": _tensors,
    "explain": _explain,
    "pin": lambda c, g: _outcome(g, "pinned", c.pin(g.path, tensors=g.tensors, priority=g.priority)),
    "unpin": lambda c, g: _outcome(g, "unpinned", c.unpin(g.path)),
    "prefetch": _prefetch,
    "evict": lambda c, g: _outcome(g, "freed", c.evict(g.path, tensors=g.tensors)),
    "flush": lambda c, g: _outcome(g, "freed", c.flush()),
    "priority": _priority,
    "events": _events,
}

if __name__ == "__main__":
    sys.exit(main())
