"""The nodes. What they are given they hand on, so that they can stand anywhere in a workflow."""

from __future__ import annotations

from typing import Any, ClassVar

from weightfs import Client, WeightfsError, wire

from . import host, report
from .files_of_inputs import behind, component_bytes, component_of, patcher
from .parts import parts

CATEGORY = "weightfs"
INPUTS = {
    "model": ("MODEL", {"tooltip": "A model. Its files are found through the workflow, LoRAs included."}),
    "clip": ("CLIP", {"tooltip": "A text encoder."}),
    "vae": ("VAE", {"tooltip": "A VAE."}),
}
PASSED = ("MODEL", "CLIP", "VAE")


class _Node:
    """What all have in common. Each takes any of MODEL, CLIP and VAE and hands them on."""

    CATEGORY = CATEGORY
    FUNCTION = "run"
    OUTPUT_NODE = True
    RETURN_TYPES: tuple[str, ...] = (*PASSED, "STRING")
    RETURN_NAMES: tuple[str, ...] = ("model", "clip", "vae", "report")
    WIDGETS: ClassVar[dict[str, Any]] = {}
    DESCRIPTION = ""

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """As ComfyUI asks for it."""
        hidden = {"prompt": "PROMPT", "node": "UNIQUE_ID"}
        return {"required": dict(cls.WIDGETS), "optional": dict(INPUTS), "hidden": hidden}

    @classmethod
    def IS_CHANGED(cls, **_: Any) -> float:
        """What is in RAM changes by itself: these nodes run every time."""
        return float("nan")

    def run(self, prompt: Any = None, node: Any = None, **given: Any) -> dict[str, Any]:
        """Does it for every file behind the inputs. A daemon that refuses is reported, and stops nothing."""
        values = {name: given.pop(name, None) for name in ("model", "clip", "vae")}
        files = behind(values, prompt or {}, str(node), parts().registry, parts().origins)
        lines: list[str] = []
        done: set[tuple[str, str]] = set()
        for name, paths in files.items():
            if not paths:
                lines.append(f"{name}: no model file is known that this came from")
            for path in paths:
                client = parts().daemons.of(path)
                if client is None:
                    lines.append(f"{path}: in no mount of weightfs")
                    continue
                try:
                    line = self.file(client, path, name, **given)
                except WeightfsError as error:
                    line = str(error)
                if (path, line) not in done:
                    done.add((path, line))
                    lines.append(f"{path}: {line}")
        lines += self.values([value for value in values.values() if value is not None])
        text = "\n".join(lines) or "nothing is connected"
        return {"ui": {"text": [text]}, "result": (*values.values(), text)}

    def file(self, client: Client, path: str, name: str, **given: Any) -> str:
        """What is done to one file behind the input `name`; gives what came of it."""
        raise NotImplementedError

    def values(self, given: list[Any]) -> list[str]:
        """What is done to the things themselves."""
        return []


class PreloadToRAM(_Node):
    """Reads what is connected into RAM."""

    DESCRIPTION = "Reads the files behind a model, text encoder or VAE into RAM before they are needed."
    WIDGETS: ClassVar[dict[str, Any]] = {
        "part": (["what is connected", "whole file"], {"tooltip": "Of a checkpoint: the connected part, or all."}),
        "wait": ("BOOLEAN", {"default": True, "tooltip": "Go on when all is read. Otherwise it is read meanwhile."}),
        "make_room": (
            "BOOLEAN",
            {"default": False, "tooltip": "First evict what is of lower priority or unused for longer, as needed."},
        ),
    }

    def file(self, client: Client, path: str, name: str, **given: Any) -> str:
        """A prefetch."""
        component = component_of(client, path, name) if given["part"] == "what is connected" else None
        if given["make_room"]:
            client.make_room(path)
        job = client.prefetch(path, component=component, wait=given["wait"])
        what = f"{component} of " if component else ""
        if not given["wait"]:
            return f"reading {what}{report.size(component_bytes(client, path, component))}"
        left = f", {job['detail']}" if job.get("detail") else ""
        return f"{what}{report.size(job['bytes_done'])} of {report.size(job['bytes_total'])} in RAM{left}"


class PreloadToVRAM(_Node):
    """Loads what is connected onto the GPU."""

    DESCRIPTION = "Loads a model, text encoder or VAE onto the GPU now, wholly if there is room."

    def file(self, client: Client, path: str, name: str, **given: Any) -> str:
        """Nothing but the device's memory changes."""
        return "loaded onto its device"

    def values(self, given: list[Any]) -> list[str]:
        """As ComfyUI loads before it samples."""
        if given:
            host.load_to_device([patcher(value) for value in given])
        return []


class Pin(_Node):
    """Keeps what is connected in RAM."""

    DESCRIPTION = "Pins files in RAM: they are read in, and stay until they are unpinned. Also sets priorities."
    WIDGETS: ClassVar[dict[str, Any]] = {
        "action": (["pin", "unpin"], {"tooltip": "A pin lasts until it is taken back, also when ComfyUI restarts."}),
        "priority": (
            ["unchanged", "low", "normal", "high"],
            {"tooltip": "When room is needed, files of lower priority go first. Pinned files do not go at all."},
        ),
    }

    def file(self, client: Client, path: str, name: str, **given: Any) -> str:
        """A pin, or its end."""
        level: wire.Priority | None = None if given["priority"] == "unchanged" else given["priority"]
        if given["action"] == "pin":
            outcome = client.pin(path, priority=level)
            return f"pinned, {report.size(outcome['bytes'])}"
        if level:
            client.priority(path, level)
        client.unpin(path)
        return "not pinned"


class EvictFromRAM(_Node):
    """Frees the RAM that files take."""

    DESCRIPTION = "Frees the RAM of weightfs that the files take. What ComfyUI has mapped goes when it lets go of it."

    def file(self, client: Client, path: str, name: str, **given: Any) -> str:
        """An eviction."""
        outcome = client.evict(path)
        left = f", {report.size(outcome['left_bytes'])} in use" if outcome["left_bytes"] else ""
        return f"{report.size(outcome['bytes'])} freed{left}"


class EvictFromVRAM(_Node):
    """Takes what is connected off the GPU."""

    DESCRIPTION = "Takes a model, text encoder or VAE off the GPU. It is loaded again when it is needed."

    def file(self, client: Client, path: str, name: str, **given: Any) -> str:
        """Nothing but the device's memory changes."""
        return "taken off its device"

    def values(self, given: list[Any]) -> list[str]:
        """Unloads them, whoever shares their weights."""
        host.unload_from_device([patcher(value) for value in given])
        return []


class ResidencyReport(_Node):
    """Says where what is connected is."""

    DESCRIPTION = "Says for the files behind what is connected how much of each is in RAM and in VRAM, and why."
    RETURN_TYPES = (*PASSED, "STRING", "STRING")
    RETURN_NAMES = ("model", "clip", "vae", "json", "text")

    def run(self, prompt: Any = None, node: Any = None, **given: Any) -> dict[str, Any]:
        """A table, and the same as JSON."""
        values = {name: given.get(name) for name in ("model", "clip", "vae")}
        files = behind(values, prompt or {}, str(node), parts().registry, parts().origins)
        paths = list(dict.fromkeys(path for several in files.values() for path in several))
        found, why = _statuses(paths)
        text = "\n".join([report.as_text(found), *why.values()])
        return {"ui": {"text": [text]}, "result": (*values.values(), report.as_json(found, why=why), text)}


class RegistrySnapshot:
    """All models at a glance."""

    CATEGORY = CATEGORY
    FUNCTION = "run"
    OUTPUT_NODE = True
    RETURN_TYPES = ("STRING", "STRING")
    RETURN_NAMES = ("json", "text")
    DESCRIPTION = "Lists the models in mounts of weightfs: size, in RAM, pins, priorities, VRAM, last loading."

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """As ComfyUI asks for it."""
        choice = (["all models", "only those in RAM"], {"tooltip": "Which models to list."})
        return {"required": {"which": choice}}

    @classmethod
    def IS_CHANGED(cls, **_: Any) -> float:
        """What is in RAM changes by itself."""
        return float("nan")

    def run(self, which: str) -> dict[str, Any]:
        """Asks every daemon that serves a folder of ComfyUI."""
        found: list[wire.FileStatus] = []
        failed: list[str] = []
        for client in parts().daemons.all(parts().registry.all_files()):
            try:
                found += client.files(resident=which != "all models")
            except WeightfsError as error:
                failed.append(str(error))
        text = "\n".join([report.as_text(found), *failed])
        return {"ui": {"text": [text]}, "result": (report.as_json(found), text)}


class ResidencyPolicy(_Node):
    """Says how eager the automatic part is."""

    DESCRIPTION = "Sets what weightfs does for models that ComfyUI loads, from now on: see the choices."
    WIDGETS: ClassVar[dict[str, Any]] = {
        "policy": (
            ["balanced", "prefer", "sticky", "legacy"],
            {
                "tooltip": "balanced: the queue is told, and the cache decides. prefer: what is loaded is read in "
                "whole and kept with high priority. sticky: what is loaded is pinned. legacy: nothing is told."
            },
        ),
    }

    def run(self, prompt: Any = None, node: Any = None, **given: Any) -> dict[str, Any]:
        """For what is connected now, and for what is loaded later."""
        if parts().service is not None:
            parts().service.policy = given["policy"]
        return super().run(prompt, node, **given)

    def file(self, client: Client, path: str, name: str, **given: Any) -> str:
        """As the service does it for what is loaded."""
        if given["policy"] == "sticky":
            return f"pinned, {report.size(client.pin(path, priority='high')['bytes'])}"
        if given["policy"] == "prefer":
            client.make_room(path)
            client.priority(path, "high")
            client.prefetch(path)
            return "kept with high priority"
        return str(given["policy"])


def _statuses(paths: list[str]) -> tuple[list[wire.FileStatus], dict[str, str]]:
    found: list[wire.FileStatus] = []
    why: dict[str, str] = {}
    for path in paths:
        client = parts().daemons.of(path)
        if client is None:
            why[path] = f"{path}: in no mount of weightfs"
            continue
        try:
            found += client.files(path)
            why[path] = f"{path}: {client.explain(path)['why']}"
        except WeightfsError as error:
            why[path] = f"{path}: {error}"
    return found, why


NODES: dict[str, tuple[str, Any]] = {
    "WeightfsPreloadToRAM": ("Preload to RAM", PreloadToRAM),
    "WeightfsPreloadToVRAM": ("Preload to VRAM", PreloadToVRAM),
    "WeightfsPin": ("Pin / Unpin", Pin),
    "WeightfsEvictFromRAM": ("Evict from RAM", EvictFromRAM),
    "WeightfsEvictFromVRAM": ("Evict from VRAM", EvictFromVRAM),
    "WeightfsResidencyReport": ("Residency Report", ResidencyReport),
    "WeightfsRegistrySnapshot": ("Registry Snapshot", RegistrySnapshot),
    "WeightfsResidencyPolicy": ("Residency Policy", ResidencyPolicy),
}
