"""Which files are behind a MODEL, CLIP or VAE that a node of ours is given, and which part of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weightfs import Client, WeightfsError, wire

from . import graph
from .graph import Prompt
from .registry import Registry
from .vram import Origins

COMPONENTS: dict[str, wire.Component] = {"model": "diffusion_model", "clip": "text_encoder", "vae": "vae"}


def patcher(value: Any) -> Any:
    """The patcher of a MODEL (itself), a CLIP or a VAE."""
    return getattr(value, "patcher", value)


def behind(
    given: Mapping[str, Any], prompt: Prompt, node: str, registry: Registry, origins: Origins
) -> dict[str, list[str]]:
    """By input (`model`, `clip`, `vae`), the files that it was made from: by the graph, else by where it came from."""
    found: dict[str, list[str]] = {}
    for name, value in given.items():
        if name not in COMPONENTS or value is None:
            continue
        paths: dict[str, None] = {}
        for source in graph.upstream(prompt, node, name, registry):
            paths.update(dict.fromkeys(registry.files_of(prompt, source)))
        if not paths:
            paths.update(dict.fromkeys(origins.of(getattr(patcher(value), "model", None))))
        found[name] = list(paths)
    return found


def component_of(client: Client, path: str, name: str) -> wire.Component | None:
    """The part of a file that an input stands for, where the file has several; None for the whole file."""
    try:
        parts = {part["name"]: part for part in client.tensors(path)["components"]}
    except WeightfsError:
        return None
    wanted = COMPONENTS[name]
    return wanted if wanted in parts and len(parts) > 1 else None


def component_bytes(client: Client, path: str, component: wire.Component | None) -> int:
    """What a file, or a part of it, takes of the RAM, in bytes, by its header."""
    found = client.tensors(path)
    if component is None:
        return found["size_bytes"]
    return sum(part["size_bytes"] for part in found["components"] if part["name"] == component)
