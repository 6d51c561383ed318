"""A mount of the program under test that goes away again, whatever happens to the test."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 20.0


def binary() -> Path | None:
    """The built program: `WEIGHTFS_BIN`, or what `cargo build -p weightfs-cli` makes."""
    given = os.environ.get("WEIGHTFS_BIN")
    path = Path(given) if given else ROOT / "target/debug/weightfs"
    return path if path.is_file() else None


def why_not() -> str | None:
    """What mounted tests lack here."""
    if binary() is None:
        return "the program is not built: cargo build -p weightfs-cli"
    if not os.path.exists("/dev/fuse"):
        return "there is no /dev/fuse"
    if os.geteuid() != 0:
        return "not root"
    return None


def settle() -> None:
    """Waits until what has just been written is old enough to be kept."""
    time.sleep(2.3)


@dataclass
class Mount:
    source: Path
    path: Path

    def resident(self, name: str) -> int:
        return int(os.getxattr(self.path / name, "user.weightfs.resident").split(b"/")[0])

    def fill(self, name: str) -> None:
        """Reads a file until all of it is resident, as a program that loads it over and over."""
        deadline = time.monotonic() + PATIENCE
        size = (self.path / name).stat().st_size
        while self.resident(name) < size:
            assert time.monotonic() < deadline, f"{name} does not come to be resident"
            with open(self.path / name, "rb", buffering=0) as file:
                while file.read(4 << 20):
                    pass
            time.sleep(0.05)


@contextlib.contextmanager
def mounted(source: Path, *options: str) -> Iterator[Mount]:
    """Mounts `source` on a new folder."""
    program = binary()
    assert program is not None
    private = Path(tempfile.mkdtemp(prefix="weightfs-py-"))
    point = private / "mnt"
    for name in ("mnt", "run", "state"):
        (private / name).mkdir()
    environment = dict(os.environ, XDG_RUNTIME_DIR=str(private / "run"), XDG_STATE_HOME=str(private / "state"))
    with open(private / "log", "wb") as log:
        daemon = subprocess.Popen(
            [str(program), "mount", "--foreground", *options, str(source), str(point)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + PATIENCE
        while not os.path.ismount(point):
            assert daemon.poll() is None, (private / "log").read_text()
            assert time.monotonic() < deadline, (private / "log").read_text()
            time.sleep(0.02)
        yield Mount(source, point)
    finally:
        daemon.terminate()
        try:
            daemon.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        if os.path.ismount(point):
            subprocess.run(["umount", "-l", str(point)], check=False)
        shutil.rmtree(private, ignore_errors=True)
