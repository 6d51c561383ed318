"""weightfs for ComfyUI: tells the cache what the queue will load, and adds nodes and a sidebar tab.

Link this folder into ComfyUI's `custom_nodes`, or install the package `weightfs` and make a folder there with an
`__init__.py` that says `from weightfs_comfyui import *`.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import Any

try:
    import weightfs
except ImportError:
    # Linked out of a checkout: the other package lies beside this one.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    import weightfs

from . import automatic, config, routes
from .nodes import NODES

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS", "WEB_DIRECTORY"]

NODE_CLASS_MAPPINGS: dict[str, Any] = {name: node for name, (_, node) in NODES.items()}
NODE_DISPLAY_NAME_MAPPINGS: dict[str, str] = {name: shown for name, (shown, _) in NODES.items()}
WEB_DIRECTORY = os.path.join(os.path.dirname(os.path.realpath(__file__)), "web")


def _start() -> None:
    log = logging.getLogger("weightfs.comfyui")
    try:
        server = importlib.import_module("server").PromptServer.instance
    except (ImportError, AttributeError):
        return  # imported by something else than ComfyUI
    try:
        automatic.start(config.read(), server)
        routes.add(server)
    except Exception as error:
        log.warning("weightfs %s does not work with this ComfyUI: %s", weightfs.__version__, error)


_start()
