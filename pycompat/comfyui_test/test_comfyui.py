"""The real ComfyUI over a mount, with the nodes installed: `make test-comfyui COMFYUI=/path/to/checkout`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mounts
import pytest
import server

import weightfs

COMFYUI = Path(os.environ.get("COMFYUI", ""))
pytestmark = pytest.mark.skipif(not (COMFYUI / "main.py").is_file(), reason="COMFYUI is no checkout of ComfyUI")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for kind in ("checkpoints", "loras", "vae"):
        (folder / kind).mkdir()
    make = Path(__file__).with_name("make_checkpoint.py")
    for seed, name in enumerate(("one", "two")):
        path = folder / f"checkpoints/{name}.safetensors"
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        subprocess.run([sys.executable, make, COMFYUI, path, str(seed)], check=True, cwd=COMFYUI, env=environment)
    return folder


def text_to_image(name: str, seed: int, **more: Any) -> dict[str, Any]:
    """A picture of 64 x 64 in one step; `more` are further nodes."""
    return {
        "load": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": name}},
        "yes": {"class_type": "CLIPTextEncode", "inputs": {"text": "a lighthouse", "clip": ["load", 1]}},
        "no": {"class_type": "CLIPTextEncode", "inputs": {"text": "fog", "clip": ["load", 1]}},
        "empty": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}},
        "sample": {"class_type": "KSampler", "inputs": {
            "model": ["load", 0], "positive": ["yes", 0], "negative": ["no", 0], "latent_image": ["empty", 0],
            "seed": seed, "steps": 1, "cfg": 1.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}},
        "decode": {"class_type": "VAEDecode", "inputs": {"samples": ["sample", 0], "vae": ["load", 2]}},
        "save": {"class_type": "SaveImage", "inputs": {"images": ["decode", 0], "filename_prefix": "x"}},
        **more,
    }  # fmt: skip


NAMES = ("one.safetensors", "two.safetensors")


@pytest.fixture(scope="session")
def plain(library: Path) -> dict[str, str]:
    """The images as they come from the plain folder, without any of this."""
    with server.running(COMFYUI, library, nodes=False) as comfy:
        return {name: comfy.image(comfy.finished(comfy.queue(text_to_image(name, 7)))) for name in NAMES}


@pytest.fixture(scope="module")
def mount(library: Path) -> Iterator[mounts.Mount]:
    with mounts.mounted(library, "--ram", "900MiB", "--reserve", "512MiB") as mount:
        yield mount


@pytest.fixture(scope="module")
def comfy(mount: mounts.Mount) -> Iterator[server.Comfy]:
    with server.running(COMFYUI, mount.path, nodes=True) as comfy:
        yield comfy


def test_the_extension_starts_and_says_what_it_does(comfy: server.Comfy) -> None:
    log = comfy.log()
    assert "weightfs: the queue is looked ahead in" in log
    assert "fast storage" in log or "nothing is changed" in log
    assert "does not work" not in log
    known = comfy.get("/object_info")
    for name in ("PreloadToRAM", "Pin", "EvictFromRAM", "ResidencyReport", "RegistrySnapshot", "ResidencyPolicy"):
        node = known[f"Weightfs{name}"]
        assert node["category"] == "weightfs" and node["description"]
    assert any("weightfs.js" in path for path in comfy.get("/extensions"))


def test_the_images_are_the_same_and_the_hints_arrive(
    comfy: server.Comfy, mount: mounts.Mount, plain: dict[str, str]
) -> None:
    client = weightfs.connect(mount.path, strict=True)
    queued = [(name, comfy.queue(text_to_image(name, 7))) for name in NAMES]
    most = 0
    deadline = time.monotonic() + server.PROMPT_SECONDS
    while comfy.get("/prompt")["exec_info"]["queue_remaining"] and time.monotonic() < deadline:
        most = max(most, client.status()["hints"]["queued"])
        time.sleep(0.02)
    assert most >= 1, "no queue arrived at the daemon"
    for name, prompt in queued:
        assert comfy.image(comfy.finished(prompt)) == plain[name]
    deadline = time.monotonic() + 10
    while client.status()["hints"]["queued"] or client.status()["hints"]["in_use"]:
        assert time.monotonic() < deadline, "what has run is not forgotten"
        time.sleep(0.05)


def test_the_nodes_do_what_they_say(comfy: server.Comfy, mount: mounts.Mount, plain: dict[str, str]) -> None:
    path = str(mount.path / "checkpoints/one.safetensors")
    client = weightfs.connect(mount.path, strict=True)
    things = {"model": ["load", 0], "clip": ["load", 1], "vae": ["load", 2]}

    def run(class_type: str, **inputs: Any) -> tuple[str, dict[str, Any]]:
        node = {"class_type": f"Weightfs{class_type}", "inputs": inputs}
        outputs = comfy.finished(comfy.queue(text_to_image("one.safetensors", 7, ours=node)))
        return outputs["ours"]["text"][0], outputs

    text, _ = run("Pin", action="pin", priority="high", **things)
    assert path in text and "pinned" in text
    pinned = client.files(path)[0]
    assert pinned["pinned_bytes"] > 0 and pinned["priority"] == "high"
    text, _ = run("ResidencyReport", **things)
    assert path in text and "pinned" in text
    text, _ = run("RegistrySnapshot", which="all models")
    assert all(name in text for name in NAMES)
    run("Pin", action="unpin", priority="normal", **things)
    assert client.files(path)[0]["pinned_bytes"] == 0
    text, _ = run("PreloadToRAM", part="what is connected", wait=True, make_room=False, clip=["load", 1])
    assert "text_encoder" in text and "in RAM" in text
    text, _ = run("PreloadToVRAM", **things)
    assert path in text
    text, _ = run("ResidencyPolicy", policy="balanced", model=["load", 0])
    assert "balanced" in text
    text, _ = run("EvictFromVRAM", **things)
    assert path in text
    text, _ = run("EvictFromRAM", model=["load", 0])
    assert "freed" in text


def test_the_sidebar_has_its_data(comfy: server.Comfy, mount: mounts.Mount) -> None:
    data = comfy.get("/weightfs/residency")
    files = {file["path"] for daemon in data["daemons"] for file in daemon["files"]}
    path = str(mount.path / "checkpoints/two.safetensors")
    assert path in files, json.dumps(data)[:1000]
    status, answer = comfy.post("/weightfs/action", {"action": "prefetch", "path": path})
    assert status == 200 and answer["done"]["id"]
    assert comfy.post("/weightfs/action", {"action": "explode", "path": path})[0] == 400
    assert comfy.post("/weightfs/action", {"action": "evict", "path": "/etc/passwd"})[0] == 404


def test_without_a_mount_it_stays_out_of_the_way(library: Path, plain: dict[str, str]) -> None:
    with server.running(COMFYUI, library, nodes=True) as comfy:
        assert comfy.image(comfy.finished(comfy.queue(text_to_image(NAMES[0], 7)))) == plain[NAMES[0]]
        # Other packages may have their own, such as a torchaudio that does not fit torch.
        tracebacks = re.findall(r"^Traceback .*\n((?:[ \t].*\n)+.*)", comfy.log(), re.MULTILINE)
        assert not [text for text in tracebacks if "weightfs" in text]
