"""A stand-in for the parts of ComfyUI that the extension touches: the queue, node types, folders, and execution.

Written from how ComfyUI is documented to behave. Models are files; running a loader node reads the file.
"""

from __future__ import annotations

import heapq
import os
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

from weightfs_comfyui import graph
from weightfs_comfyui.registry import Registry


class Queue:
    """Items are (number, prompt id, prompt, extra, outputs)."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.mutex = threading.RLock()
        self.queue: list[Any] = []
        self.running: dict[int, Any] = {}
        self.history: list[str] = []

    def put(self, item: Any) -> None:
        with self.mutex:
            heapq.heappush(self.queue, item)
        self.server.send_sync("status", {})

    def get(self) -> Any:
        with self.mutex:
            item = heapq.heappop(self.queue)
            self.running[item[0]] = item
        self.server.send_sync("status", {})
        return item

    def task_done(self, item: Any) -> None:
        with self.mutex:
            del self.running[item[0]]
            self.history.append(item[1])
        self.server.send_sync("status", {})

    def get_current_queue_volatile(self) -> tuple[list[Any], list[Any]]:
        with self.mutex:
            return list(self.running.values()), list(self.queue)


class Server:
    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.prompt_queue = Queue(self)

    def send_sync(self, event: str, data: Any, sid: Any = None) -> None:
        self.messages.append((event, data))


class CurrentNodeContext:
    now: ClassVar[Any] = None

    def __init__(self, prompt_id: str, node_id: str) -> None:
        self.context = SimpleNamespace(prompt_id=prompt_id, node_id=node_id)

    def __enter__(self) -> CurrentNodeContext:
        CurrentNodeContext.now = self.context
        return self

    def __exit__(self, *_: object) -> None:
        CurrentNodeContext.now = None


class Host:
    """Folders of model files, and node types with the file names that they offer."""

    def __init__(self, folders: dict[str, list[str]]) -> None:
        self._folders = folders
        self.classes: dict[str, Any] = {
            "CheckpointLoaderSimple": self.loader("ckpt_name", "checkpoints", "MODEL", "CLIP", "VAE"),
            "UnetLoaderGGUF": self.loader("unet_name", "unet_gguf", "MODEL"),
            "VAELoader": self.loader("vae_name", "vae", "VAE", also=["taesd"]),
            "NewLoader": self.loader("file", "checkpoints", "MODEL", schema="new"),
            "LoraLoader": self.loader("lora_name", "loras", "MODEL", "CLIP"),
            "CLIPTextEncode": self.node(["CONDITIONING"]),
            "KSampler": self.node(["LATENT"]),
            "VAEDecode": self.node(["IMAGE"]),
            "SaveImage": self.node([], output=True),
        }

    def loader(self, name: str, folder: str, *types: str, also: list[str] | None = None, schema: str = "old") -> Any:
        host = self

        class Loader:
            RETURN_TYPES = types

            @classmethod
            def INPUT_TYPES(cls) -> Any:
                options = host.files(folder) + (also or [])
                spec = ("COMBO", {"options": options}) if schema == "new" else (options,)
                return {"required": {name: spec}}

        return Loader

    @staticmethod
    def node(types: list[str], output: bool = False) -> Any:
        return type("Node", (), {"RETURN_TYPES": tuple(types), "OUTPUT_NODE": output})

    def node_class(self, class_type: str) -> Any:
        return self.classes.get(class_type)

    def folders(self) -> list[str]:
        return list(self._folders)

    def files(self, folder: str) -> list[str]:
        names = []
        for place in self._folders[folder]:
            names += sorted(os.listdir(place)) if os.path.isdir(place) else []
        return names

    def path(self, folder: str, name: str) -> str | None:
        for place in self._folders[folder]:
            if os.path.isfile(os.path.join(place, name)):
                return os.path.join(place, name)
        return None


def text_to_image(**loaders: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """A text-to-image prompt as ComfyUI's default workflow, with loaders for `model`, `clip` and `vae` by name."""
    prompt: dict[str, Any] = {}
    for name, (class_type, inputs) in loaders.items():
        prompt[name] = {"class_type": class_type, "inputs": inputs}
    model, clip, vae = (name if name in loaders else "model" for name in ("model", "clip", "vae"))
    index = {"clip": 1 if clip == "model" else 0, "vae": 2 if vae == "model" else 0}
    encode = {"class_type": "CLIPTextEncode", "inputs": {"text": "fog", "clip": [clip, index["clip"]]}}
    prompt |= {
        "positive": encode, "negative": encode,
        "sample": {"class_type": "KSampler", "inputs": {
            "model": [model, 0], "positive": ["positive", 0], "negative": ["negative", 0]}},
        "decode": {"class_type": "VAEDecode", "inputs": {"samples": ["sample", 0], "vae": [vae, index["vae"]]}},
        "save": {"class_type": "SaveImage", "inputs": {"images": ["decode", 0]}},
    }  # fmt: skip
    return prompt


def execute(queue: Queue, registry: Registry, load: Callable[[str], None], context: Any = CurrentNodeContext) -> str:
    """Takes the next prompt and runs its nodes: a loader's files are loaded."""
    item = queue.get()
    _, identity, prompt, _, outputs = item
    for node in graph.order(prompt, outputs, registry):
        with context(identity, node):
            for path in registry.files_of(prompt, node):
                load(path)
    queue.task_done(item)
    return str(identity)
