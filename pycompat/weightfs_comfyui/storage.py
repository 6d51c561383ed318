"""No second copy: ComfyUI is told that files under a mount are fast storage.

Known of ComfyUI of late 2026: `comfy.storage.model_fast_disk(paths)` asks `comfy.storage.fast_storage(path)` for each
file of a model whether it lies on fast storage. It says so only of NVMe disks, never of a FUSE mount; for all others
ComfyUI keeps a copy of the weights in pinned RAM of its own. `--fast-disk` and `--disable-fast-disk` are asked before.
With a version that has no such functions, or others, nothing is changed.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from weightfs import on_mount

MARK = "_weightfs_original"


def tell(module: Any) -> str:
    """Changes the answer for files under mounts in the module `comfy.storage`, and gives a line that says so.

    Raises `LookupError` with the reason where nothing is changed.
    """
    theirs = getattr(module, "fast_storage", None)
    if module is None or not callable(theirs) or not callable(getattr(module, "model_fast_disk", None)):
        raise LookupError("this version of ComfyUI does not ask where files lie, or not in a way that is known here")
    if hasattr(theirs, MARK):
        return "files under a mount count as fast storage already"
    parameters = list(inspect.signature(theirs).parameters.values())
    if [parameter.name for parameter in parameters] != ["path"]:
        raise LookupError("this version of ComfyUI asks where files lie in a way that is not known here")

    @functools.wraps(theirs)
    def fast_storage(path: Any) -> Any:
        if isinstance(path, str) and on_mount(path):
            return True
        return theirs(path)

    setattr(fast_storage, MARK, theirs)
    module.fast_storage = fast_storage
    return "files under a mount count as fast storage, so that ComfyUI keeps no copy of them in pinned RAM"


def undo(module: Any) -> None:
    """Puts back what was there."""
    theirs = getattr(getattr(module, "fast_storage", None), MARK, None)
    if theirs is not None:
        module.fast_storage = theirs
