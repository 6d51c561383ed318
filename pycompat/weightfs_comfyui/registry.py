"""Which model files a node loads, found from the definitions of nodes rather than from a list of known loaders.

A loader's input offers the file names of one of ComfyUI's model folders. So an input whose value is the name of a file
in such a folder names a model, whatever node it belongs to; if several folders have a file of this name, the folder
whose files the input offers is the one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from .graph import Prompt, class_type

# Folders of ComfyUI that hold no models.
NO_MODELS = {"custom_nodes", "configs"}
MODEL_ENDINGS = (".safetensors", ".sft", ".gguf", ".ckpt", ".pt", ".pth", ".pt2", ".bin", ".pkl", ".onnx", ".engine")
# How long what a folder lists is believed, in seconds. A plan is made from one listing.
LISTING_SECONDS = 5.0


class Host(Protocol):
    """What is asked of ComfyUI."""

    def node_class(self, class_type: str) -> Any:
        """The class of a node type; None if there is none."""

    def folders(self) -> list[str]:
        """The names of the model folders, such as `checkpoints`."""

    def files(self, folder: str) -> list[str]:
        """The names that a folder offers."""

    def path(self, folder: str, name: str) -> str | None:
        """Where a file of a folder is."""


class Registry:
    """What is known of node types and model files."""

    def __init__(self, host: Host, clock: Callable[[], float] = time.monotonic) -> None:
        self._host = host
        self._clock = clock
        self._listed: tuple[float, dict[str, frozenset[str]]] = (float("-inf"), {})

    def outputs(self, class_type: str) -> list[str]:
        """The types of a node's outputs."""
        types = getattr(self._host.node_class(class_type), "RETURN_TYPES", ()) or ()
        return [str(kind) for kind in types] if isinstance(types, (list, tuple)) else []

    def is_output(self, class_type: str) -> bool:
        """Whether prompts are run for nodes of this type."""
        return bool(getattr(self._host.node_class(class_type), "OUTPUT_NODE", False))

    def files_of(self, prompt: Prompt, node: str) -> list[str]:
        """The model files that a node loads, in the order of its inputs, as paths."""
        inputs = prompt[node].get("inputs")
        found: list[str] = []
        offered: Mapping[str, Any] | None = None
        for name, value in inputs.items() if isinstance(inputs, Mapping) else ():
            # Later versions wrap plain values that look like links.
            text = value.get("__value__") if isinstance(value, Mapping) else value
            if not isinstance(text, str) or not text or len(text) > 4096 or "\0" in text:
                continue
            candidates = self._candidates(text)
            if len(set(candidates.values())) > 1:
                offered = self._offers(class_type(prompt, node)) if offered is None else offered
                path: str | None = self._best(candidates, offered.get(name))
            else:
                path = next(iter(candidates.values()), None) or _plain_path(text)
            if path and path not in found:
                found.append(path)
        return found

    def all_files(self) -> list[str]:
        """Every model file that ComfyUI offers, as paths."""
        found: dict[str, None] = {}
        for folder, names in self._listing().items():
            for name in sorted(names):
                if path := self._host.path(folder, name):
                    found[path] = None
        return list(found)

    def _listing(self) -> dict[str, frozenset[str]]:
        at, listed = self._listed
        if self._clock() - at > LISTING_SECONDS:
            listed = {}
            for folder in self._host.folders():
                if folder not in NO_MODELS:
                    try:
                        listed[folder] = frozenset(self._host.files(folder))
                    except Exception:
                        continue
            self._listed = (self._clock(), listed)
        return listed

    def _candidates(self, name: str) -> dict[str, str]:
        found = {}
        for folder, names in self._listing().items():
            if name in names and (path := self._host.path(folder, name)):
                found[folder] = path
        return found

    def _best(self, candidates: dict[str, str], offered: Any) -> str:
        """Of folders that all have a file of this name, the one whose names the input offers, and no others."""
        options = frozenset(option for option in offered or () if isinstance(option, str))
        listing = self._listing()

        def fit(folder: str) -> int:
            return len(options & listing[folder]) - len(listing[folder] - options)

        return candidates[max(candidates, key=fit)]

    def _offers(self, class_type: str) -> dict[str, Any]:
        """What each input of a node type offers to choose from."""
        try:
            types = self._host.node_class(class_type).INPUT_TYPES()
        except Exception:
            return {}
        found = {}
        for group in ("required", "optional"):
            inputs = types.get(group) if isinstance(types, Mapping) else None
            for name, spec in inputs.items() if isinstance(inputs, Mapping) else ():
                if not isinstance(spec, (list, tuple)) or not spec:
                    continue
                extra = spec[1] if len(spec) > 1 and isinstance(spec[1], Mapping) else {}
                found[name] = spec[0] if isinstance(spec[0], (list, tuple)) else extra.get("options")
        return found


def _plain_path(text: str) -> str | None:
    """A model file that is named by its whole path, as some loaders take it."""
    if os.path.isabs(text) and text.lower().endswith(MODEL_ENDINGS) and os.path.isfile(text):
        return text
    return None
