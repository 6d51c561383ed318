#!/usr/bin/env python3
"""Measures loading into GPU memory on a machine that has one, in at most ten minutes, and leaves a report.

    cargo build --release -p weightfs-cli
    sudo python3 benches/gpu/run.py                     report in benches/reports
    python3 benches/gpu/run.py --stand-in --out /tmp/x  the same without a GPU: shows that the script works

It needs root or FUSE passthrough is not to be had, and nothing of Python but the standard library.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import hashlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "pycompat"), str(Path(__file__).parent)]

import machine  # noqa: E402
import measure  # noqa: E402
import report  # noqa: E402

from weightfs import connect, cuda  # noqa: E402
from weightfs._find import resident  # noqa: E402
from weightfs.cuda.device import context_of  # noqa: E402
from weightfs.cuda.files import _request as request_of  # noqa: E402
from weightfs.cuda.machine import parse  # noqa: E402

PATIENCE = 120.0
#: After this nothing new is begun: the report says what was left out.
LONGEST = 540.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weightfs", type=Path, default=ROOT / "target/release/weightfs", help="the program")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--megabytes", type=int, default=4096, help="of the model that is made and loaded")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the model is made: on the storage that is to be measured")
    parser.add_argument("--out", type=Path, default=ROOT / "benches/reports")
    parser.add_argument("--stand-in", action="store_true", help="without a GPU")
    given = parser.parse_args()
    if given.stand_in and given.out.resolve() == (ROOT / "benches/reports").resolve():
        parser.error("a report of the stand-in is no figure of a GPU: say with --out where it goes instead")
    if not given.weightfs.is_file():
        parser.error(f"{given.weightfs} is not there: cargo build --release -p weightfs-cli")
    return given


def stand_in(folder: Path) -> None:
    """A machine with a GPU that is host memory."""
    subprocess.run([str(ROOT / "tests/standins/build.sh"), str(folder / "lib")], check=True)
    (folder / "root/dev").mkdir(parents=True)
    (folder / "root/dev/nvidiactl").touch()
    (folder / "root/proc/driver/nvidia-fs").mkdir(parents=True)
    os.environ.update(WEIGHTFS_GPU_ROOT=str(folder / "root"), WEIGHTFS_LIBCUDA=str(folder / "lib/libcuda.so.1"),
                      WEIGHTFS_LIBCUFILE=str(folder / "lib/libcufile.so.0"), STANDIN=f"vram={8 << 30}")


def make_model(path: Path, megabytes: int) -> str:
    """A file of noise that has settled; its hash."""
    block = random.Random(7).randbytes(1 << 20)
    found = hashlib.sha256()
    with open(path, "wb") as file:
        for number in range(megabytes):
            piece = number.to_bytes(8, "little") + block[8:]
            file.write(piece)
            found.update(piece)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    # What has just been written is not kept yet.
    time.sleep(3)
    return found.hexdigest()


@contextlib.contextmanager
def mounted(program: Path, source: Path, private: Path, ram: int) -> Iterator[Path]:
    """A mount of its own, whose socket and state nobody else sees."""
    point = private / "mnt"
    for name in ("mnt", "run", "state"):
        (private / name).mkdir()
    environment = dict(os.environ, XDG_RUNTIME_DIR=str(private / "run"), XDG_STATE_HOME=str(private / "state"))
    with open(private / "log", "wb") as log:
        daemon = subprocess.Popen([str(program), "mount", "--foreground", "--ram", str(ram), str(source), str(point)],
                                  stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
    try:
        deadline = time.monotonic() + PATIENCE
        while not os.path.ismount(point):
            if daemon.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the mount does not come up:\n{(private / 'log').read_text()}")
            time.sleep(0.05)
        yield point
    finally:
        daemon.terminate()
        try:
            daemon.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            daemon.kill()


def fill(path: Path) -> bool:
    """Has the file read into RAM; whether all of it came to be there."""
    connect(path, timeout=PATIENCE).prefetch(path, wait=True)
    have, size = resident(str(path)) or (0, 1)
    return have == size


def gds(path: Path, given: argparse.Namespace, expected: str) -> dict[str, Any]:
    """From storage by cuFile, or why not."""
    try:
        return measure.upload(path, given.device, given.runs, expected, gds=True, request=request_of(str(path)))
    except cuda.GdsUnavailable as error:
        return {"reason": str(error)}


def results(path: Path, given: argparse.Namespace, expected: str, began: float) -> dict[str, Any]:
    """All measurements, as far as the time goes."""
    context = context_of(parse(given.device))
    size = path.stat().st_size
    found: dict[str, Any] = {"model": {"bytes": size, "runs": given.runs}}
    steps = {
        "peak": lambda: measure.peak(context, 2 * given.runs, min(size, 1 << 30)),
        # Before anything is in RAM: the source is read.
        "gds": lambda: gds(path, given, expected),
        "resident": lambda: fill(path),
        "registration": lambda: measure.register(context, path),
        "direct": lambda: measure.upload(path, given.device, given.runs, expected, direct=True),
        "ring": lambda: measure.upload(path, given.device, given.runs, expected),
        "pageable": lambda: measure.pageable(context, path, given.runs, expected),
    }
    for name, step in steps.items():
        if time.monotonic() - began > LONGEST:
            found[name] = {"works": False, "reason": "no time was left"}
            continue
        print(f"{time.monotonic() - began:6.1f} s  {name}", flush=True)
        found[name] = step()
    cuda.release()
    return found


def main() -> int:
    """Whether every byte was right."""
    began = time.monotonic()
    given = arguments()
    with contextlib.ExitStack() as stack:
        private = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weightfs-gpu-")))
        models = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weightfs-model-", dir=given.folder)))
        if given.stand_in:
            stand_in(private)
        looked = cuda.probe()
        if looked.reason:
            print(f"there is no GPU to measure: {looked.reason}", file=sys.stderr)
            return 6
        expected = make_model(models / "model.safetensors", given.megabytes)
        described = machine.describe(given.weightfs, models)
        ram = int(given.megabytes * 1.5 + 256) << 20
        path = stack.enter_context(mounted(given.weightfs, models, private, ram)) / "model.safetensors"
        found = results(path, given, expected, began)
    written = report.write({"date": datetime.date.today().isoformat(), "stand_in": given.stand_in,
                            "machine": described, "results": found}, given.out)
    print(written.read_text())
    wrong = [name for name, row in found.items() if isinstance(row, dict) and row.get("hash_equals_source") is False]
    if wrong:
        print(f"WRONG BYTES on the device: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong or not found["resident"] else 0


if __name__ == "__main__":
    sys.exit(main())
