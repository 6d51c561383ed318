"""The nodes and the sidebar's routes, without ComfyUI."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import comfy
import pytest
from fake_daemon import FakeDaemon, problem

import weightfs_comfyui
from weightfs_comfyui import nodes, parts, routes
from weightfs_comfyui.daemons import Daemons
from weightfs_comfyui.registry import Registry
from weightfs_comfyui.vram import Origins

OUTCOME = {"files": 1, "bytes": 3 << 20, "left_bytes": 1 << 20}
COMPONENTS = [{"name": "diffusion_model", "size_bytes": 5 << 20}, {"name": "vae", "size_bytes": 1 << 20}]


def file(path: str) -> dict[str, Any]:
    return {
        "path": path, "size_bytes": 8 << 20, "resident_bytes": 4 << 20, "pinned_bytes": 0, "priority": "high",
        "in_vram": ["cuda:0"], "last_load": "map", "state": "partial", "in_use": False,
    }  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/a.safetensors").write_bytes(b"x")
    return str(tmp_path / "checkpoints/a.safetensors")


@pytest.fixture
def made(daemon: FakeDaemon, path: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[parts.Parts]:
    monkeypatch.setattr("weightfs_comfyui.daemons.control_socket", lambda _: daemon.socket)
    for name in ("pin", "unpin", "evict"):
        daemon.answer("POST", f"/v1/{name}", (200, OUTCOME))
    daemon.answer("POST", "/v1/hints/priority", (200, {"files": 1, "unknown": [], "expires_seconds": None}))
    daemon.answer("GET", "/v1/files", (200, {"files": [file(path)], "next": None, "totals": {}}))
    daemon.answer("GET", "/v1/tensors", (200, {"components": COMPONENTS, "size_bytes": 8 << 20}))
    daemon.answer("GET", "/v1/explain", (200, {"why": "because"}))
    size = {"bytes_done": 5 << 20, "bytes_total": 5 << 20, "bytes_per_second": 1}
    ended = {"id": "j", "state": "done", "files": 1, **size}
    daemon.answer("POST", "/v1/prefetch", (202, ended))
    full = {"high_watermark_bytes": 0, "resident_bytes": 0, "client_held_bytes": 0}
    daemon.answer("GET", "/v1/status", (200, {"ram": full}))
    registry = Registry(comfy.Host({"checkpoints": [str(Path(path).parent)], "loras": []}))
    made = parts.Parts(registry, Daemons("test"), Origins(), SimpleNamespace(policy="balanced"))
    parts.install(made)
    yield made
    parts.install(None)


def run(node: Any, **given: Any) -> dict[str, Any]:
    prompt = comfy.text_to_image(model=("CheckpointLoaderSimple", {"ckpt_name": "a.safetensors"}))
    prompt["ours"] = {"class_type": "Ours", "inputs": {"model": ["model", 0], "vae": ["model", 2]}}
    result: dict[str, Any] = node().run(prompt=prompt, node="ours", **given)
    return result


def text(result: dict[str, Any]) -> str:
    return str(result["ui"]["text"][0])


def test_each_node_is_described() -> None:
    assert set(weightfs_comfyui.NODE_CLASS_MAPPINGS) == set(weightfs_comfyui.NODE_DISPLAY_NAME_MAPPINGS)
    for node in weightfs_comfyui.NODE_CLASS_MAPPINGS.values():
        types = node.INPUT_TYPES()
        assert node.CATEGORY == "weightfs" and node.DESCRIPTION and len(node.RETURN_TYPES) == len(node.RETURN_NAMES)
        for group in ("required", "optional"):
            for name, spec in types.get(group, {}).items():
                assert spec[1]["tooltip"], name
        # Runs every time.
        assert node.IS_CHANGED() != node.IS_CHANGED()
    assert (Path(weightfs_comfyui.WEB_DIRECTORY) / "weightfs.js").is_file()


def test_preloading_takes_the_part_that_is_connected(made: parts.Parts, daemon: FakeDaemon, path: str) -> None:
    model = object()
    result = run(nodes.PreloadToRAM, model=model, part="what is connected", wait=True, make_room=True)
    assert daemon.bodies("/v1/prefetch") == [{"paths": [path], "component": "diffusion_model"}]
    assert result["result"][0] is model and result["result"][1:3] == (None, None)
    assert f"{path}: diffusion_model of 5.0 MiB of 5.0 MiB in RAM" in text(result)
    result = run(nodes.PreloadToRAM, vae=object(), part="whole file", wait=False, make_room=False)
    assert daemon.bodies("/v1/prefetch")[-1] == {"paths": [path]} and "reading 8.0 MiB" in text(result)


def test_pinning_and_evicting(made: parts.Parts, daemon: FakeDaemon, path: str) -> None:
    assert "pinned, 3.0 MiB" in text(run(nodes.Pin, model=object(), action="pin", priority="high"))
    assert daemon.bodies("/v1/pin") == [{"path": path, "priority": "high"}]
    assert "not pinned" in text(run(nodes.Pin, model=object(), action="unpin", priority="low"))
    assert daemon.bodies("/v1/hints/priority") == [{"path": path, "priority": "low"}]
    assert "3.0 MiB freed, 1.0 MiB in use" in text(run(nodes.EvictFromRAM, model=object(), vae=object()))


def test_reports(made: parts.Parts, daemon: FakeDaemon, path: str) -> None:
    result = run(nodes.ResidencyReport, model=object())
    assert json.loads(result["result"][3])["files"] == [file(path)] and "because" in text(result)
    snapshot = nodes.RegistrySnapshot().run("all models")
    row = text(snapshot).splitlines()[1].split()
    assert row == [path, "8.0", "MiB", "50", "%", "high", "cuda:0", "map"]
    assert json.loads(snapshot["result"][0])["files"][0]["path"] == path


def test_policies_apply_to_what_is_connected_and_to_what_comes(
    made: parts.Parts, daemon: FakeDaemon, path: str
) -> None:
    run(nodes.ResidencyPolicy, model=object(), policy="prefer")
    assert made.service.policy == "prefer"
    assert daemon.bodies("/v1/prefetch") == [{"paths": [path]}]
    run(nodes.ResidencyPolicy, model=object(), policy="sticky")
    assert daemon.bodies("/v1/pin") == [{"path": path, "priority": "high"}]
    run(nodes.ResidencyPolicy, policy="legacy")
    assert made.service.policy == "legacy"


def test_models_on_and_off_the_gpu(made: parts.Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []
    monkeypatch.setattr("weightfs_comfyui.host.load_to_device", loaded.extend)
    monkeypatch.setattr("weightfs_comfyui.host.unload_from_device", lambda all_: [loaded.remove(each) for each in all_])
    vae = SimpleNamespace(patcher="the patcher of the VAE")
    run(nodes.PreloadToVRAM, model="a patcher", vae=vae)
    assert loaded == ["a patcher", "the patcher of the VAE"]
    run(nodes.EvictFromVRAM, vae=vae)
    assert loaded == ["a patcher"]


def test_what_goes_wrong_is_told_and_stops_nothing(
    made: parts.Parts, daemon: FakeDaemon, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.answer("POST", "/v1/pin", (409, problem("no_room", "Take less.", 409)))
    assert f"{path}: Take less." in text(run(nodes.Pin, model=object(), action="pin", priority="unchanged"))
    assert text(nodes.EvictFromRAM().run(prompt={}, node="x")) == "nothing is connected"
    stranger = SimpleNamespace(model=made)
    assert "no model file is known" in text(nodes.EvictFromRAM().run(prompt={}, node="x", model=stranger))
    monkeypatch.setattr(made.daemons, "of", lambda _: None)
    assert "in no mount" in text(run(nodes.EvictFromRAM, model=object()))


def test_the_routes_of_the_sidebar(made: parts.Parts, daemon: FakeDaemon, path: str) -> None:
    data = routes.residency_now()
    assert data["daemons"][0]["files"] == [file(path)] and data["policy"] == "balanced"
    assert routes.act({"action": "evict", "path": path}) == (200, {"done": OUTCOME})
    for wrong in (None, [], {}, {"action": "unmount", "path": path}, {"action": "pin", "path": 3}):
        assert routes.act(wrong)[0] == 400
    daemon.answer("POST", "/v1/pin", (403, problem("not_permitted", "Ask root.", 403)))
    assert routes.act({"action": "pin", "path": path}) == (409, {"error": "Ask root."})
    daemon.answer("GET", "/v1/status", (503, problem("overloaded", "Later.", 503)))
    assert routes.residency_now()["daemons"] == [{"error": "Later."}]


def test_nodes_outside_of_comfyui_say_what_they_need() -> None:
    with pytest.raises(RuntimeError, match="custom_nodes"):
        parts.parts()
