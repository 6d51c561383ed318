"""Stand-ins for the libraries of NVIDIA, built once, and what tests want to know of them."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("allocations", "host allocations", "registrations", "streams", "events", "opened handles", "contexts")


@functools.cache
def build(*missing: str) -> Path:
    """A folder with the stand-ins, which lack the functions named ``missing``."""
    folder = Path(tempfile.mkdtemp(prefix="weightfs-standins-"))
    subprocess.run([str(ROOT / "tests/standins/build.sh"), str(folder), *missing], check=True)
    return folder


class StandIn:
    """The driver of one test. ``script`` is what tests/standins/standin.h describes."""

    def __init__(self, folder: Path, monkeypatch, script: str = "", missing: tuple[str, ...] = ()) -> None:
        self.library_path = build(*missing) / "libcuda.so.1"
        self.log_file = folder / "standin.log"
        self._monkeypatch = monkeypatch
        root = folder / "root"
        (root / "dev").mkdir(parents=True)
        (root / "dev/nvidiactl").touch()
        self._root = root
        monkeypatch.setenv("WEIGHTFS_LIBCUFILE", str(self.library_path.with_name("libcufile.so.0")))
        monkeypatch.setenv("WEIGHTFS_GPU_ROOT", str(root))
        monkeypatch.setenv("WEIGHTFS_LIBCUDA", str(self.library_path))
        self.script(script)
        self.library = ctypes.CDLL(str(self.library_path))
        self.library.standin_live.restype = ctypes.c_long
        self.library.standin_forget_things()
        self.library.standin_forget_calls()

    def add_cufile(self) -> None:
        """As where the module nvidia-fs is loaded."""
        (self._root / "proc/driver/nvidia-fs").mkdir(parents=True)

    def script(self, words: str) -> None:
        """From here on."""
        self._monkeypatch.setenv("STANDIN", f"log={self.log_file} {words}")
        if hasattr(self, "library"):
            self.library.standin_forget_calls()

    def calls(self) -> list[str]:
        """What this process has called so far."""
        lines = self.log_file.read_text().splitlines() if self.log_file.exists() else []
        own = f"{os.getpid()} "
        return [line.removeprefix(own) for line in lines if line.startswith(own)]

    def live(self) -> dict[str, int]:
        """What is there and not given back."""
        gc.collect()
        found = {kind: self.library.standin_live(number) for number, kind in enumerate(KINDS)}
        return {kind: count for kind, count in found.items() if count}
