"""Says on what machine figures were measured."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any


def output(*command: str) -> str:
    """What a program prints; nothing where it fails or is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def ask(weightfs: Path, half: str) -> dict[str, Any]:
    """What `weightfs gds driver` or `cufile` says of it."""
    text = output(str(weightfs), "gds", half)
    return json.loads(text) if text else {"reason": "asking it failed"}


def describe(weightfs: Path, folder: Path) -> dict[str, Any]:
    """Processor, memory, kernel, GPUs and the storage of the model."""
    cpu = next((line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")), platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gib": round(memory / (1 << 30), 1),
        "kernel": platform.release(),
        "gpus": output("nvidia-smi", "--query-gpu=name,driver_version,pcie.link.gen.max,pcie.link.width.max,"
                       "memory.total", "--format=csv,noheader").splitlines(),
        "filesystem": output("stat", "-f", "-c", "%T", str(folder)),
        "storage": output("findmnt", "-no", "SOURCE", "-T", str(folder)),
        "driver": ask(weightfs, "driver"),
        "cufile": ask(weightfs, "cufile"),
        "weightfs": output(str(weightfs), "--version"),
    }
