"""From prompts to queues, against the stand-in for ComfyUI."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import comfy
import fake_daemon
import pytest

from weightfs_comfyui import config, graph, hooks, storage, vram
from weightfs_comfyui.daemons import Daemons
from weightfs_comfyui.lookahead import Running, entries, plan
from weightfs_comfyui.registry import Registry
from weightfs_comfyui.service import Service


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, list[str]]:
    names = {
        "checkpoints": ["a.safetensors", "b.safetensors", "same.safetensors"],
        "vae": ["v.safetensors", "same.safetensors"],
        "unet_gguf": ["u.gguf"], "loras": ["l.safetensors"], "custom_nodes": ["a.py"],
    }  # fmt: skip
    for folder, files in names.items():
        (tmp_path / folder).mkdir()
        for name in files:
            (tmp_path / folder / name).write_bytes(b"x")
    return {name: [str(tmp_path / name)] for name in names}


@pytest.fixture
def registry(folders: dict[str, list[str]]) -> Registry:
    return Registry(comfy.Host(folders))


def checkpoint(name: str) -> tuple[str, dict[str, Any]]:
    return "CheckpointLoaderSimple", {"ckpt_name": name}


def names(paths: list[str]) -> list[str]:
    return ["/".join(path.split("/")[-2:]) for path in paths]


def test_files_are_found_from_node_definitions(registry: Registry, folders: dict[str, list[str]]) -> None:
    def found(class_type: str, **inputs: Any) -> list[str]:
        return names(registry.files_of({"n": {"class_type": class_type, "inputs": inputs}}, "n"))

    assert found("CheckpointLoaderSimple", ckpt_name="a.safetensors") == ["checkpoints/a.safetensors"]
    assert found("UnetLoaderGGUF", unet_name="u.gguf") == ["unet_gguf/u.gguf"]
    assert found("NewLoader", file={"__value__": "b.safetensors"}) == ["checkpoints/b.safetensors"]
    assert found("VAELoader", vae_name="taesd") == []
    assert found("Unknown", anything="l.safetensors", link=["x", 0], number=3) == ["loras/l.safetensors"]
    assert found("KSampler", text="a.py") == []
    # The same name in two folders: what the input offers says which.
    assert found("VAELoader", vae_name="same.safetensors") == ["vae/same.safetensors"]
    assert found("NewLoader", file="same.safetensors") == ["checkpoints/same.safetensors"]
    plain = folders["loras"][0] + "/l.safetensors"
    assert found("ByPath", path=plain, other="/etc/passwd") == ["loras/l.safetensors"]


def test_the_order_of_execution(registry: Registry) -> None:
    prompt = comfy.text_to_image(model=checkpoint("a.safetensors"), vae=("VAELoader", {"vae_name": "v.safetensors"}))
    order = graph.order(prompt, ["save"], registry)
    assert sorted(order) == sorted(prompt) and order[-2:] == ["decode", "save"]
    for node in order:
        for _, (source, _) in graph.links(prompt[node]):
            assert order.index(source) < order.index(node)
    circle = {name: {"class_type": "KSampler", "inputs": {"x": [other, 0]}} for name, other in ("ab", "ba")}
    assert graph.order(circle, ["a"], registry) == []
    assert graph.order({}, ["gone"], registry) == []


def test_a_file_is_needed_until_its_last_user_has_run(registry: Registry) -> None:
    prompt = comfy.text_to_image(
        base=checkpoint("a.safetensors"),
        model=("LoraLoader", {"lora_name": "l.safetensors", "model": ["base", 0], "clip": ["base", 1]}),
        vae=("VAELoader", {"vae_name": "v.safetensors"}),
    )
    made = plan("p", prompt, ["save"], registry)
    state = Running(made)
    whole = ["checkpoints/a.safetensors", "loras/l.safetensors", "vae/v.safetensors"]
    assert sorted(names(state.remaining())) == sorted(whole)
    for node in ("base", "model", "positive", "negative", "sample"):
        state.begins(node)
        for paths in (state.remaining(), state.in_use()):
            assert "checkpoints/a.safetensors" in names(paths)
    state.begins("vae")
    state.begins("decode")
    assert names(state.remaining()) == ["vae/v.safetensors"] == names(state.in_use())
    assert graph.upstream(prompt, "sample", "model", registry) == ["model", "base"]
    assert entries([state], [made])[1]["paths"] == [{"path": use.path} for use in made.uses]




@pytest.fixture
def hinted(daemon: fake_daemon.FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> fake_daemon.FakeDaemon:
    daemon.answer("POST", "/v1/hints/queue", (200, {"files": 1, "unknown": [], "expires_seconds": 9.0}))
    daemon.answer("POST", "/v1/hints/in-use", (200, {"id": "h1", "expires_seconds": 9.0}))
    daemon.answer("DELETE", "/v1/hints/in-use/h1", (204, None))
    daemon.answer("POST", "/v1/hints/vram", (204, None))
    daemon.answer("POST", "/v1/hints/priority", (204, None))
    daemon.answer("POST", "/v1/pin", (200, {"files": 1, "bytes": 1, "left_bytes": 0}))
    monkeypatch.setattr("weightfs_comfyui.daemons.control_socket", lambda _: daemon.socket)
    return daemon


def test_the_queue_is_told_as_it_changes(registry: Registry, hinted: fake_daemon.FakeDaemon) -> None:
    server = comfy.Server()
    service = Service(server.prompt_queue, registry, Daemons("test"))
    context = type("Context", (comfy.CurrentNodeContext,), {"__enter__": comfy.CurrentNodeContext.__enter__})
    hooks.listen_to_queue(server, service)
    hooks.listen_to_nodes(context, service)
    queue = server.prompt_queue
    for number, name in enumerate(["b.safetensors", "a.safetensors"]):
        queue.put((-number, name[0], comfy.text_to_image(model=checkpoint(name)), {}, ["save"]))
    seen: list[str] = []

    def load(path: str) -> None:
        service.step()
        seen.append(path)

    service.step()
    comfy.execute(queue, registry, load, context)
    service.step()
    assert names(seen) == ["checkpoints/a.safetensors"]
    told = [[entry["id"] for entry in body["entries"]] for body in hinted.bodies("/v1/hints/queue")]
    assert told == [["a", "b"], ["b"]]
    assert names(hinted.bodies("/v1/hints/in-use")[0]["paths"]) == ["checkpoints/a.safetensors"]
    assert hinted.asked[-1].method == "DELETE"
    assert ("status", {}) in server.messages
    before = len(hinted.asked)
    service.step()
    assert len(hinted.asked) == before
    # A prompt that is taken back is forgotten.
    queue.queue.clear()
    service.step()
    assert hinted.bodies("/v1/hints/queue")[-1]["entries"] == []


def test_policies(registry: Registry, hinted: fake_daemon.FakeDaemon) -> None:
    server = comfy.Server()
    service = Service(server.prompt_queue, registry, Daemons("test"), "legacy")
    server.prompt_queue.put((1, "p", comfy.text_to_image(model=checkpoint("a.safetensors")), {}, ["save"]))
    service.loaded(["/m/a"])
    service.step()
    assert hinted.asked == []
    service.policy = "sticky"
    for _ in range(3):
        service.loaded(["/m/a"])
        service.step()
    assert hinted.bodies("/v1/pin") == [{"path": "/m/a", "priority": "high"}]


def test_a_prompt_that_cannot_be_followed_hides_no_other(registry: Registry, hinted: fake_daemon.FakeDaemon) -> None:
    server = comfy.Server()
    service = Service(server.prompt_queue, registry, Daemons("test"))
    server.prompt_queue.put((1, "bad", {"a": None}, {}, ["a"]))
    server.prompt_queue.put((2, "good", comfy.text_to_image(model=checkpoint("a.safetensors")), {}, ["save"]))
    service.step()
    assert [entry["id"] for entry in hinted.bodies("/v1/hints/queue")[0]["entries"]] == ["good"]


def test_a_failing_daemon_is_one_line_and_no_error(
    registry: Registry,
    daemon: fake_daemon.FakeDaemon,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("weightfs_comfyui.daemons.control_socket", lambda _: daemon.socket)
    daemon.answer("POST", "/v1/hints/queue", (503, fake_daemon.problem("overloaded", "Later.", 503)))
    server = comfy.Server()
    service = Service(server.prompt_queue, registry, Daemons("test"))
    server.prompt_queue.put((1, "p", comfy.text_to_image(model=checkpoint("a.safetensors")), {}, ["save"]))
    for _ in range(3):
        service.step()
    assert len(daemon.bodies("/v1/hints/queue")) == 3
    assert [record.getMessage() for record in caplog.records] == ["weightfs: hints are not taken: Later."]


def test_the_thread_follows_the_queue(registry: Registry, hinted: fake_daemon.FakeDaemon) -> None:
    server = comfy.Server()
    service = Service(server.prompt_queue, registry, Daemons("test"))
    hooks.listen_to_queue(server, service)
    service.start()
    try:
        server.prompt_queue.put((1, "p", comfy.text_to_image(model=checkpoint("a.safetensors")), {}, ["save"]))
        deadline = time.monotonic() + 10
        while not hinted.bodies("/v1/hints/queue"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        service.stop()


def test_mounts_count_as_fast_storage_and_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "on_mount", lambda path: path.startswith("/mnt/models/"))
    module = SimpleNamespace(fast_storage=lambda path: False, model_fast_disk=lambda paths: None)
    theirs = module.fast_storage
    assert "fast storage" in storage.tell(module)
    assert module.fast_storage("/mnt/models/a") is True and module.fast_storage("/home/a") is False
    assert "already" in storage.tell(module)
    storage.undo(module)
    assert module.fast_storage is theirs
    changed = SimpleNamespace(fast_storage=lambda path, device: False, model_fast_disk=lambda paths: None)
    for unknown in (None, SimpleNamespace(), changed):
        with pytest.raises(LookupError):
            storage.tell(unknown)


class Module:
    pass


class Patcher:
    def __init__(self, model: Any, held: int = 10) -> None:
        self.model = model
        self.held = held


def loaded(patcher: Patcher, device: str = "cuda") -> Any:
    return SimpleNamespace(
        model=patcher, device=type("Device", (), {"type": device, "__str__": lambda _: f"{device}:0"})(),
        model_loaded_memory=lambda: patcher.held, model_memory=lambda: 10,
    )  # fmt: skip


def test_what_is_fully_in_vram_is_told_and_what_leaves_too(hinted: fake_daemon.FakeDaemon) -> None:
    origins, files, news = vram.Origins(), ["/m/checkpoint"], []
    kind = type("Kind", (Patcher,), {})
    vram.watch_patchers(kind, lambda: files, origins, news.append)
    unet, text = kind(Module()), kind(Module())
    files = ["/m/lora"]
    clone = kind(unet.model)
    files = []
    other = kind(Module())
    assert origins.of(clone.model) == ("/m/checkpoint",) and origins.of(other.model) == ()
    assert news == [["/m/checkpoint"], ["/m/checkpoint"]]
    held = [loaded(unet), loaded(other)]
    feedback = vram.Feedback(lambda: held, origins, Daemons("test"))
    feedback.step()
    assert hinted.asked == []
    held.append(loaded(text))
    feedback.step()
    feedback.step()
    text.held = 4
    feedback.step()
    bodies = hinted.bodies("/v1/hints/vram")
    assert [(body["device"], body["paths"]) for body in bodies] == [("cuda:0", ["/m/checkpoint"]), ("cuda:0", [])]
    text.held = 10
    held[:] = [loaded(unet, "cpu"), loaded(text, "cpu"), SimpleNamespace(model=None, device=None)]
    feedback.step()
    assert len(hinted.bodies("/v1/hints/vram")) == 2


def test_switches() -> None:
    assert config.read({}) == config.Config()
    assert config.read({"WEIGHTFS_COMFYUI": "off"}) == config.Config(False, False, False)
    mixed = config.read({"WEIGHTFS_COMFYUI_VRAM": "0", "WEIGHTFS_COMFYUI_POLICY": "sticky"})
    assert mixed == config.Config(vram=False, policy="sticky")
    assert config.read({"WEIGHTFS_COMFYUI_POLICY": "nonsense"}).policy == "balanced"
