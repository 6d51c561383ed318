"""Where ComfyUI is listened to. Each hook calls what was there, whatever becomes of the rest.

Known of ComfyUI (0.3.50 of August 2025 to the heads of late 2026): every change of the queue is announced through
`PromptServer.send_sync("status", ...)`; nodes are run within `comfy_execution.utils.CurrentNodeContext`, also when
nobody listens to their progress; cached nodes are announced as `execution_cached`.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from .service import Service

LOG = logging.getLogger("weightfs.comfyui")


def listen_to_queue(server: Any, service: Service) -> None:
    """Wakes the service whenever the queue changes. Raises `AttributeError` for a server that is not known."""
    theirs = server.send_sync

    @functools.wraps(theirs)
    def send_sync(event: Any, data: Any, *more: Any, **named: Any) -> Any:
        try:
            if event == "status":
                service.changed()
            elif event == "execution_cached" and isinstance(data, dict):
                service.cached(str(data.get("prompt_id")), [str(node) for node in data.get("nodes") or ()])
        except Exception:
            LOG.debug("a message was not understood", exc_info=True)
        return theirs(event, data, *more, **named)

    server.send_sync = send_sync


def listen_to_nodes(context: Any, service: Service) -> None:
    """Tells the service which node runs. `context` is the class `CurrentNodeContext`."""
    theirs = context.__enter__

    @functools.wraps(theirs)
    def enter(self: Any) -> Any:
        entered = theirs(self)
        try:
            now = getattr(self, "context", None)
            prompt, node = getattr(now, "prompt_id", None), getattr(now, "node_id", None)
            if prompt is not None and node is not None:
                service.begins(str(prompt), str(node))
        except Exception:
            LOG.debug("the node that runs was not noted", exc_info=True)
        return entered

    context.__enter__ = enter
