"""A ComfyUI on the CPU that is started for a test, and asked through its HTTP API."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXTENSION = Path(__file__).resolve().parents[1] / "weightfs_comfyui"
START_SECONDS = 180
PROMPT_SECONDS = 180


@dataclass
class Comfy:
    """A running server. `folder` has its outputs and its log."""

    port: int
    folder: Path
    process: subprocess.Popen[bytes]

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            return json.load(answer)

    def post(self, path: str, body: object) -> tuple[int, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def queue(self, prompt: dict[str, Any]) -> str:
        status, answer = self.post("/prompt", {"prompt": prompt})
        if status != 200:
            raise RuntimeError(f"ComfyUI does not take the prompt: {json.dumps(answer)[:2000]}")
        return str(answer["prompt_id"])

    def finished(self, prompt: str) -> dict[str, Any]:
        """Waits for a prompt and gives its outputs."""
        deadline = time.monotonic() + PROMPT_SECONDS
        while time.monotonic() < deadline:
            history = self.get(f"/history/{prompt}")
            if prompt in history:
                status = history[prompt]["status"]
                if status["status_str"] != "success":
                    raise RuntimeError(json.dumps(status)[:3000])
                outputs: dict[str, Any] = history[prompt]["outputs"]
                return outputs
            time.sleep(0.05)
        raise TimeoutError(f"the prompt took more than {PROMPT_SECONDS} s\n{self.log()[-3000:]}")

    def image(self, outputs: dict[str, Any]) -> str:
        """The hash of the pixels' file."""
        name = next(image["filename"] for node in outputs.values() for image in node.get("images", ()))
        return hashlib.sha256(_pixels(self.folder / name)).hexdigest()

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")


def _pixels(path: Path) -> bytes:
    """Not the file: it has the workflow in it."""
    from PIL import Image

    with Image.open(path) as image:
        return image.tobytes()


@contextlib.contextmanager
def running(checkout: Path, models: Path, nodes: bool) -> Iterator[Comfy]:
    """Starts ComfyUI over a folder of models; with `nodes`, the extension is linked into its custom nodes.

    Its base folder is a new one: nothing of the checkout is changed.
    """
    folder = Path(tempfile.mkdtemp(prefix="weightfs-comfyui-"))
    (folder / "custom_nodes").mkdir()
    if nodes:
        (folder / "custom_nodes/weightfs").symlink_to(EXTENSION)
    paths = folder / "paths.yaml"
    kinds = ("checkpoints", "loras", "vae")
    lines = [f"  {kind}: {kind}" for kind in kinds]
    paths.write_text("\n".join(["test:", f"  base_path: {models}", "  is_default: true", *lines, ""]))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "main.py", "--cpu", "--port", str(port), "--disable-auto-launch",
        "--base-directory", str(folder), "--extra-model-paths-config", str(paths), "--output-directory", str(folder),
    ]  # fmt: skip
    with open(folder / "log", "wb") as log:
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        process = subprocess.Popen(command, cwd=checkout, stdout=log, stderr=log, env=environment)
    comfy = Comfy(port, folder, process)
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"ComfyUI does not start:\n{comfy.log()[-5000:]}")
            with contextlib.suppress(OSError):
                comfy.get("/system_stats")
                break
            time.sleep(0.3)
        yield comfy
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)
