"""Puts the automatic part together. Each piece is tried by itself and says in one line what came of it."""

from __future__ import annotations

import logging
import os
from typing import Any

from . import host, storage
from .config import Config
from .daemons import Daemons
from .hooks import listen_to_nodes, listen_to_queue
from .parts import Parts, install
from .registry import Registry
from .service import Service
from .vram import Feedback, Origins, watch_patchers

LOG = logging.getLogger("weightfs.comfyui")


def start(config: Config, server: Any) -> Parts:
    """Starts what `config` asks for, in a ComfyUI whose `PromptServer` is `server`."""
    port = getattr(server, "port", None) or os.getpid()
    made = Parts(Registry(host.ComfyHost()), Daemons(f"comfyui-{port}"), Origins())
    install(made)
    if config.storage:
        _storage()
    if config.lookahead or config.vram:
        made.service = Service(server.prompt_queue, made.registry, made.daemons, config.policy, config.lookahead)
        if _follow(server, made.service, config.lookahead):
            _origins(made, config.vram)
        made.service.start()
    return made


def _storage() -> None:
    try:
        LOG.info("weightfs: %s", storage.tell(host.module("comfy.storage")))
    except LookupError as reason:
        LOG.info("weightfs: %s; nothing is changed, and --fast-disk says it for all files", reason)
    except Exception as error:
        LOG.warning("weightfs: ComfyUI cannot be told that mounts are fast storage: %s", error)


def _follow(server: Any, service: Service, look_ahead: bool) -> bool:
    try:
        listen_to_queue(server, service)
        context = host.module("comfy_execution.utils")
        listen_to_nodes(context.CurrentNodeContext, service)
    except Exception as error:
        LOG.warning("weightfs: this version of ComfyUI does not let the queue be followed node by node: %s", error)
        return False
    if look_ahead:
        LOG.info("weightfs: the queue is looked ahead in")
    return True


def _origins(made: Parts, feedback: bool) -> None:
    def current_files() -> list[str]:
        now = host.executing()
        return made.service.files_of(*now) if now else []

    try:
        patchers = host.module("comfy.model_patcher")
        watch_patchers(patchers.ModelPatcher, current_files, made.origins, made.service.loaded)
        if feedback:
            made.service.also(Feedback(host.loaded_models, made.origins, made.daemons).step)
    except Exception as error:
        LOG.warning("weightfs: what is loaded cannot be followed in this version of ComfyUI: %s", error)
