"""Programs that load with the package safetensors get zero-copy tensors without being changed.

`patch()` puts functions of ours in the places of `safetensors.safe_open` and `safetensors.torch.load_file`, also where
diffusers, transformers and others have imported them under a name of their own. Theirs go on serving what is not whole
in RAM, and are put back by `unpatch()`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import tensors
from ._find import resident
from .frameworks import UnsupportedType
from .header import InvalidFile

# Modules whose names for the loaders are looked through.
FAMILIES = ("safetensors", "diffusers", "transformers", "accelerate", "huggingface_hub", "comfy", "nodes", "peft")

_lock = threading.Lock()
# (module, attribute, what was there, what is there now)
_replaced: list[tuple[ModuleType, str, Any, Any]] = []
_originals: dict[tuple[str, str], Any] = {}


def patch() -> list[str]:
    """Puts our loaders in place, and says where: `module.attribute` for each. Once is enough; again, it does nothing
    more than look for what has been imported since."""
    with _lock:
        return _patch()


def _patch() -> list[str]:
    places: list[str] = []
    for module_name, attribute, make in (
        ("safetensors", "safe_open", _safe_open),
        ("safetensors.torch", "load_file", _load_file),
    ):
        try:
            module = importlib.import_module(module_name)
        except ImportError:
            continue
        key = (module_name, attribute)
        theirs = _originals.setdefault(key, getattr(module, attribute))
        ours = next((new for _, _, old, new in _replaced if old is theirs), None) or make(theirs)
        places += _swap(theirs, ours, remember=True)
    return places


def unpatch() -> None:
    """Puts everything back, also in modules that were imported in between."""
    with _lock:
        pairs = {id(new): (old, new) for _, _, old, new in _replaced}
        for module, attribute, old, new in _replaced:
            if getattr(module, attribute, None) is new:
                setattr(module, attribute, old)
        for old, new in pairs.values():
            _swap(new, old, remember=False)
        _replaced.clear()
        _originals.clear()


def original(module: ModuleType, attribute: str) -> Any:
    """What a place held before it was patched."""
    return _originals.get((module.__name__, attribute)) or getattr(module, attribute)


def _swap(what: Any, by: Any, *, remember: bool) -> list[str]:
    places = []
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] not in FAMILIES or not isinstance(module, ModuleType):
            continue
        # Not getattr: modules that import lazily would import everything they have.
        for attribute in [key for key, value in list(vars(module).items()) if value is what]:
            setattr(module, attribute, by)
            places.append(f"{name}.{attribute}")
            if remember:
                _replaced.append((module, attribute, what, by))
    return places


def _whole(path: Any) -> bool:
    known = resident(path) if isinstance(path, str) or hasattr(path, "__fspath__") else None
    return known is not None and known[0] == known[1] > 0


def _load_file(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def load_file(filename: Any, device: Any = "cpu", **more: Any) -> Any:
        if _whole(filename):
            # What is too new for us may not be for them.
            with contextlib.suppress(InvalidFile, UnsupportedType):
                return tensors.load(filename, device)
        return theirs(filename, device, **more)

    return load_file


def _safe_open(theirs: Callable[..., Any]) -> Any:
    class safe_open:
        """Ours for files that are whole in RAM, else what was there."""

        def __new__(cls, filename: Any, framework: str, device: Any = "cpu", **more: Any) -> Any:
            if framework in ("pt", "torch", "pytorch", "np", "numpy") and _whole(filename):
                with contextlib.suppress(InvalidFile):
                    return tensors.open(filename, framework, device)
            return theirs(filename, framework=framework, device=device, **more)

    return safe_open
