"""Where the control socket is."""

from __future__ import annotations

import os
import stat

from .errors import NoDaemon

CONTROL_XATTR = "user.weightfs.control"
RESIDENT_XATTR = "user.weightfs.resident"
# Says where the socket is, for programs that are given no path.
SOCKET_VARIABLE = "WEIGHTFS_SOCKET"


def control_socket(target: str | None) -> str:
    """The control socket for a path inside a mount, for a path to a socket, or, for None, of the one daemon that runs.

    Raises `NoDaemon`.
    """
    if target is None:
        return os.environ.get(SOCKET_VARIABLE) or _only_one()
    path = os.path.abspath(target)
    # Of a file that is not there (yet), its folder knows.
    while True:
        try:
            if stat.S_ISSOCK(os.stat(path).st_mode):
                return path
            return os.fsdecode(os.getxattr(path, CONTROL_XATTR))
        except FileNotFoundError:
            parent = os.path.dirname(path)
            if parent == path:
                break
            path = parent
        except OSError:
            break
    raise NoDaemon(f"{target} is in no mount of weightfs; 'weightfs status' shows what is mounted")


def on_mount(path: str) -> bool:
    """Whether a file or folder lies in a mount of weightfs."""
    try:
        return bool(os.getxattr(path, CONTROL_XATTR))
    except OSError:
        return False


def resident(file: str | int) -> tuple[int, int] | None:
    """(resident bytes, size) of a file or an open descriptor; None where it is in no mount of weightfs."""
    try:
        have, _, size = os.getxattr(file, RESIDENT_XATTR).partition(b"/")
        return int(have), int(size)
    except (OSError, ValueError):
        return None


def _only_one() -> str:
    folders = ["/run/weightfs"] if os.geteuid() == 0 else []
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        folders.append(os.path.join(runtime, "weightfs"))
    folders.append(f"/tmp/weightfs-{os.geteuid()}")
    found = []
    for folder in folders:
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        for name in names:
            path = os.path.join(folder, name)
            try:
                if stat.S_ISSOCK(os.stat(path).st_mode):
                    found.append(path)
            except OSError:
                continue
    if not found:
        raise NoDaemon("no daemon of weightfs was found; 'weightfs mount FOLDER' starts one")
    if len(found) > 1:
        raise NoDaemon(f"{len(found)} daemons of weightfs run; say which by a path inside its mount")
    return found[0]
