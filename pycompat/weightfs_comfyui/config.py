"""What is switched on, from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

OFF = {"0", "off", "no", "false"}
POLICIES = ("legacy", "balanced", "prefer", "sticky")


@dataclass(frozen=True)
class Config:
    """The automatic part. `policy` is the one to start with: see the node Residency Policy."""

    lookahead: bool = True
    storage: bool = True
    vram: bool = True
    policy: str = "balanced"


def read(environment: Mapping[str, str] | None = None) -> Config:
    """`WEIGHTFS_COMFYUI=off` switches everything off; `WEIGHTFS_COMFYUI_LOOKAHEAD`, `_STORAGE` and `_VRAM` one part;
    `WEIGHTFS_COMFYUI_POLICY` is the policy to start with."""
    given = os.environ if environment is None else environment

    def on(name: str) -> bool:
        return given.get(name, "").strip().lower() not in OFF

    policy = given.get("WEIGHTFS_COMFYUI_POLICY", "").strip().lower()
    everything = on("WEIGHTFS_COMFYUI")
    return Config(
        lookahead=everything and on("WEIGHTFS_COMFYUI_LOOKAHEAD"),
        storage=everything and on("WEIGHTFS_COMFYUI_STORAGE"),
        vram=everything and on("WEIGHTFS_COMFYUI_VRAM"),
        policy=policy if policy in POLICIES else "balanced",
    )
