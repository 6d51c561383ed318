"""What the sidebar asks for: the daemons' data, through ComfyUI's server."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from weightfs import Client, WeightfsError

from .parts import parts

ACTIONS = ("pin", "unpin", "evict", "prefetch")


def add(server: Any) -> None:
    """Adds `GET /weightfs/residency` and `POST /weightfs/action` to ComfyUI's server."""
    from aiohttp import web

    @server.routes.get("/weightfs/residency")  # type: ignore[untyped-decorator]
    async def residency(_: Any) -> Any:
        return web.json_response(await _elsewhere(residency_now))

    @server.routes.post("/weightfs/action")  # type: ignore[untyped-decorator]
    async def action(request: Any) -> Any:
        try:
            asked = await request.json()
        except ValueError:
            asked = None
        status, answer = await _elsewhere(functools.partial(act, asked))
        return web.json_response(answer, status=status)


def residency_now() -> dict[str, Any]:
    """Every daemon that serves a model folder of ComfyUI: how it is, and its files."""
    found: list[dict[str, Any]] = []
    for client in parts().daemons.all(parts().registry.all_files()):
        try:
            found.append({"status": client.status(), "files": client.files()})
        except WeightfsError as error:
            found.append({"error": str(error)})
    return {"daemons": found, "policy": getattr(parts().service, "policy", "legacy")}


def act(asked: Any) -> tuple[int, dict[str, Any]]:
    """Carries out one of `ACTIONS` for a file that ComfyUI offers as a model. Gives the HTTP status and the answer."""
    name = asked.get("action") if isinstance(asked, dict) else None
    path = asked.get("path") if isinstance(asked, dict) else None
    if name not in ACTIONS or not isinstance(path, str):
        return 400, {"error": f"an action ({', '.join(ACTIONS)}) and the path of a model are needed"}
    client = parts().daemons.of(path)
    if client is None:
        return 404, {"error": f"{path} is in no mount of weightfs"}
    try:
        return 200, {"done": _do(client, name, path)}
    except WeightfsError as error:
        return 409, {"error": str(error)}


def _do(client: Client, name: str, path: str) -> Any:
    if name == "prefetch":
        return client.prefetch(path)
    return {"pin": client.pin, "unpin": client.unpin, "evict": client.evict}[name](path)


async def _elsewhere(work: Any) -> Any:
    """Runs what blocks in a thread: ComfyUI's server must go on."""
    return await asyncio.get_running_loop().run_in_executor(None, work)
