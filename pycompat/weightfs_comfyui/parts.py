"""What the nodes and routes share: made once, when ComfyUI imports the extension."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .daemons import Daemons
from .registry import Registry
from .service import Service
from .vram import Origins


@dataclass
class Parts:
    """The pieces of the automatic part. `service` is None where that is switched off."""

    registry: Registry
    daemons: Daemons
    origins: Origins
    service: Service | Any = None


_parts: Parts | None = None


def parts() -> Parts:
    """The pieces. Raises `RuntimeError` before they have been made."""
    if _parts is None:
        raise RuntimeError("the nodes of weightfs need ComfyUI: they are loaded from its folder custom_nodes")
    return _parts


def install(made: Parts | None) -> None:
    """Says which they are."""
    global _parts
    _parts = made
