"""What ComfyUI holds fully in the memory of a GPU, as files.

ComfyUI's list of loaded models knows modules, not files. Which file a module came from is noted when its patcher is
made: by the node that runs then, whose files are known. Clones of a patcher share its module, so a LoRA that is applied
to a model does not make it another.
"""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from .daemons import Daemons

# What a GPU holds is forgotten by the daemon after so long without news, in seconds.
HELD_SECONDS = 120.0


class Origins:
    """Which files modules came from. Modules are held weakly."""

    def __init__(self) -> None:
        self._paths: weakref.WeakKeyDictionary[Any, tuple[str, ...]] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def note(self, module: Any, paths: Iterable[str]) -> bool:
        """Notes it, unless more is known already. Whether that was news."""
        files = tuple(paths)
        with self._lock:
            if not files or module in self._paths:
                return False
            self._paths[module] = files
        return True

    def of(self, module: Any) -> tuple[str, ...]:
        """The files that a module came from."""
        with self._lock:
            try:
                return self._paths.get(module, ())
            except TypeError:  # nothing that could have been noted
                return ()

    def modules(self) -> list[tuple[Any, tuple[str, ...]]]:
        """All modules that are still there."""
        with self._lock:
            return list(self._paths.items())


def watch_patchers(
    patcher_class: Any, current_files: Callable[[], list[str]], origins: Origins, loaded: Callable[[list[str]], None]
) -> None:
    """Notes the origin of every model whose patcher is made from now on. `patcher_class` is `ModelPatcher`."""
    theirs = patcher_class.__init__

    @functools.wraps(theirs)
    def initialise(self: Any, *arguments: Any, **named: Any) -> None:
        theirs(self, *arguments, **named)
        module = getattr(self, "model", None)
        if module is None:
            return
        try:
            files = current_files()
            if origins.note(module, files):
                loaded(files)
        except Exception:
            return

    patcher_class.__init__ = initialise


def fully_loaded(loaded_models: Iterable[Any], origins: Origins) -> dict[str, list[str]]:
    """By device, the files of which every module that is alive is wholly in that device's memory."""
    on_device: dict[str, set[int]] = {}
    for entry in list(loaded_models):
        try:
            patcher, device = entry.model, entry.device
            if patcher is None or getattr(device, "type", "cpu") == "cpu":
                continue
            if entry.model_loaded_memory() >= entry.model_memory() > 0:
                on_device.setdefault(str(device), set()).add(id(patcher.model))
        except (AttributeError, TypeError, ReferenceError):
            continue
    alive: dict[str, set[int]] = {}
    for module, paths in origins.modules():
        for path in paths:
            alive.setdefault(path, set()).add(id(module))
    return {
        device: [path for path, modules in alive.items() if modules <= held] for device, held in on_device.items()
    }


class Feedback:
    """Tells the daemons when that has changed."""

    def __init__(self, loaded_models: Callable[[], Iterable[Any]], origins: Origins, daemons: Daemons) -> None:
        self._loaded_models = loaded_models
        self._origins = origins
        self._daemons = daemons
        self._told: dict[tuple[Any, str], tuple[float, list[str]]] = {}

    def step(self) -> None:
        """Looks once."""
        now = fully_loaded(self._loaded_models(), self._origins)
        wanted = {
            (client, device): files
            for device, paths in now.items()
            for client, files in self._daemons.by_client(paths).items()
        }
        clock = time.monotonic()
        for client, device in {*wanted, *self._told}:
            files = wanted.get((client, device), [])
            at, before = self._told.get((client, device), (clock, []))
            if files != before or (files and clock - at > HELD_SECONDS / 3):
                client.hint_vram(device, files, seconds=HELD_SECONDS)
                self._told[client, device] = (clock, files)
