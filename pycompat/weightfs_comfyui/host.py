"""ComfyUI as the rest of this package sees it. The only module that imports ComfyUI, and only when it is asked to."""

from __future__ import annotations

import importlib
from typing import Any


def module(name: str) -> Any:
    """A module of ComfyUI, or None."""
    try:
        return importlib.import_module(name)
    except Exception:
        return None


class ComfyHost:
    """Node types and model folders of a running ComfyUI."""

    def __init__(self) -> None:
        self._nodes = importlib.import_module("nodes")
        self._folders = importlib.import_module("folder_paths")

    def node_class(self, class_type: str) -> Any:
        """The class of a node type."""
        return self._nodes.NODE_CLASS_MAPPINGS.get(class_type)

    def folders(self) -> list[str]:
        """The names of the model folders."""
        return list(self._folders.folder_names_and_paths)

    def files(self, folder: str) -> list[str]:
        """The names that a folder offers."""
        return list(self._folders.get_filename_list(folder))

    def path(self, folder: str, name: str) -> str | None:
        """Where a file of a folder is."""
        found = self._folders.get_full_path(folder, name)
        return None if found is None else str(found)


def loaded_models() -> list[Any]:
    """ComfyUI's list of models that are loaded onto a device."""
    management = module("comfy.model_management")
    return list(getattr(management, "current_loaded_models", ()))


def executing() -> tuple[str, str] | None:
    """(prompt id, node id) of the node that runs in this thread."""
    context = getattr(module("comfy_execution.utils"), "get_executing_context", lambda: None)()
    return None if context is None else (str(context.prompt_id), str(context.node_id))


def load_to_device(patchers: list[Any]) -> None:
    """Loads models onto the device that they run on, wholly if there is room."""
    management = importlib.import_module("comfy.model_management")
    management.load_models_gpu(patchers, force_full_load=True)


def unload_from_device(patchers: list[Any]) -> int:
    """Takes models off the device. Gives how many were there."""
    management = importlib.import_module("comfy.model_management")
    modules = [patcher.model for patcher in patchers]
    loaded = management.current_loaded_models
    gone = 0
    for entry in list(loaded):
        if entry.model is not None and any(entry.model.model is module for module in modules):
            entry.model_unload()
            loaded.remove(entry)
            gone += 1
    if gone:
        management.soft_empty_cache()
    return gone
