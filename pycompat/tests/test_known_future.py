"""The queue as the cache's knowledge of the future: what is in RAM when it is loaded, against the most that can be.

A loop of models that are twice the budget goes through the stand-in for ComfyUI, once with the extension's hints and
once without. Hit bytes are those that are resident when their load begins. The bound is that of a cache that knows the
future but reads nothing ahead; the queue may do better than that.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import comfy
import mounts
import pytest
import samples

import weightfs
from weightfs_comfyui import hooks
from weightfs_comfyui.daemons import Daemons
from weightfs_comfyui.registry import Registry
from weightfs_comfyui.service import Service

numpy = pytest.importorskip("numpy")
pytestmark = pytest.mark.mounted
MIB = 1 << 20
EXTENT = 2 * MIB
MODELS, EACH, ROUNDS = 4, 96, 4
BUDGET = MODELS * EACH // 2


def optimum(order: list[int], extents: int, capacity: int, counted: int) -> int:
    """The most extents that any cache of `capacity` extents finds from load `counted` on (Belady, with bypass)."""
    loads = [(model, extent) for model in order for extent in range(extents)]
    following: list[float] = [float("inf")] * len(loads)
    last: dict[tuple[int, int], int] = {}
    for at in reversed(range(len(loads))):
        following[at] = last.get(loads[at], float("inf"))
        last[loads[at]] = at
    held: dict[tuple[int, int], float] = {}
    hits = 0
    for at, what in enumerate(loads):
        if what in held:
            hits += at >= counted * extents
            held[what] = following[at]
        elif len(held) < capacity:
            held[what] = following[at]
        else:
            farthest = max(held, key=held.__getitem__)
            if held[farthest] > following[at]:
                del held[farthest]
                held[what] = following[at]
    return hits


def test_the_optimum_of_a_loop() -> None:
    assert optimum([0, 1] * 4, 1, 1, 2) == 3
    assert optimum([0, 0, 0], 2, 2, 1) == 4
    assert optimum([0, 1, 2, 3], 3, 6, 0) == 0


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("models")
    (folder / "checkpoints").mkdir()
    block = samples.noise(1, EACH * MIB // 8)
    for index in range(MODELS):
        content = bytes([index]) + block[1:]
        tensors = {f"block.{i}.weight": ("U8", [len(content)], content) for i in range(8)}
        samples.write(folder / f"checkpoints/{index}.safetensors", tensors)
        with open(folder / f"checkpoints/{index}.safetensors", "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    mounts.settle()
    yield folder
    for path in (folder / "checkpoints").iterdir():
        path.unlink()


def hit_bytes(library: Path, hinted: bool) -> tuple[int, int]:
    """Loads the loop; gives hit bytes from the second round on, and the bytes of the budget that models may take."""
    with mounts.mounted(library, "--ram", f"{BUDGET}MiB", "--reserve", "64MiB") as mount:
        client = weightfs.connect(mount.path, strict=True)
        server = comfy.Server()
        registry = Registry(comfy.Host({"checkpoints": [str(mount.path / "checkpoints")]}))
        service = Service(server.prompt_queue, registry, Daemons("stand-in"))
        context = type("Context", (comfy.CurrentNodeContext,), {})
        if hinted:
            hooks.listen_to_queue(server, service)
            hooks.listen_to_nodes(context, service)
            service.start()
        for number in range(ROUNDS * MODELS):
            loader = ("CheckpointLoaderSimple", {"ckpt_name": f"{number % MODELS}.safetensors"})
            server.prompt_queue.put((number, str(number), comfy.text_to_image(model=loader), {}, ["save"]))
        hits: list[int] = []

        def load(path: str) -> None:
            hits.append(mount.resident(os.path.relpath(path, mount.path)))
            for array in weightfs.load(path, framework="np").values():
                array[::4096].max()

        for _ in range(ROUNDS * MODELS):
            comfy.execute(server.prompt_queue, registry, load, context)
            sample(client)
        watermark = client.status()["ram"]["high_watermark_bytes"]
        if hinted:
            service.stop()
        return sum(hits[MODELS:]), watermark


def sample(client: weightfs.Client) -> None:
    """A sampler, which runs for longer than the next model takes to be read."""
    deadline = time.monotonic() + mounts.PATIENCE
    read = -1
    while time.monotonic() < deadline:
        now = client.status()["io"]["source_read_bytes"]
        if now == read:
            break
        read = now
        time.sleep(0.1)


def test_with_the_queue_known_hits_come_to_what_is_possible(library: Path) -> None:
    order = [number % MODELS for number in range(ROUNDS * MODELS)]
    with_hints, budget = hit_bytes(library, hinted=True)
    without, _ = hit_bytes(library, hinted=False)
    most = optimum(order, EACH * MIB // EXTENT, budget // EXTENT, MODELS) * EXTENT
    loaded = (ROUNDS - 1) * MODELS * EACH
    print(f"of {loaded} MiB: {with_hints // MIB} with hints, {without // MIB} without, {most // MIB} at most")
    assert with_hints >= 0.97 * most
    assert with_hints >= without
