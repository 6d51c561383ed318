"""Writing the safetensors file: whole or not at all, and checked before it takes its name."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .. import header
from .checkpoint import Checkpoint
from .copying import pieces
from .unpickle import CannotConvert, StoredTensor

Progress = Callable[[str, int, int], object]


@dataclass(frozen=True)
class Converted:
    """What came of it: the new file, how many tensors it has, and the size of these in bytes."""

    path: str
    tensors: int
    data_bytes: int


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    state_dict_key: str | None = None,
    skip_non_tensors: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Converted:
    """Writes the weights of a checkpoint as safetensors, by default beside it with the ending `.safetensors`.

    `progress` is called with what is done ("write", then "check"), the bytes done and all bytes. Tensors that share
    bytes in the checkpoint each get their own, so that every name loads. The file appears under its name when every
    byte has been compared with the checkpoint's. Memory: the pieces that are copied, whatever the size of tensors.

    Raises `CannotConvert`, and `OSError` for what the file system says.
    """
    path = os.fspath(target) if target is not None else os.path.splitext(os.fspath(source))[0] + ".safetensors"
    if not overwrite and os.path.lexists(path):
        raise CannotConvert(f"{path} is there already; replace it with --force")
    try:
        with Checkpoint(source) as checkpoint:
            tensors = checkpoint.state_dict(state_dict_key, skip_non_tensors)
            return _write(checkpoint, tensors, path, overwrite, progress)
    except CannotConvert as error:
        raise CannotConvert(f"{os.fspath(source)}: {error}") from None


def _write(
    checkpoint: Checkpoint, tensors: Mapping[str, StoredTensor], path: str, overwrite: bool, progress: Progress | None
) -> Converted:
    # The largest elements first, so that all are aligned; then by name.
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.size, name))
    total = sum(tensors[name].nbytes for name in order)
    folder = os.path.dirname(os.path.abspath(path))
    descriptor, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", suffix=".tmp", dir=folder)
    try:
        with os.fdopen(descriptor, "w+b") as out:
            out.write(_header(tensors, order))
            done = 0
            for name in order:
                for piece in pieces(checkpoint, tensors[name]):
                    out.write(piece)
                    done += len(piece)
                    if progress:
                        progress("write", done, total)
            out.flush()
            os.fsync(out.fileno())
            _check(checkpoint, tensors, out.fileno(), total, progress)
            os.fchmod(out.fileno(), 0o666 & ~_umask())
        if overwrite:
            os.replace(temporary, path)
        else:
            # Unlike a rename, this does not replace what somebody else has made meanwhile.
            os.link(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    with contextlib.suppress(OSError):
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    return Converted(path, len(order), total)


def _header(tensors: Mapping[str, StoredTensor], order: list[str]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name in order:
        tensor = tensors[name]
        entries[name] = {"dtype": tensor.dtype.name, "shape": tensor.shape, "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > header.MAX_HEADER:
        raise CannotConvert(f"so many tensors that the header would take {len(text)} bytes")
    return len(text).to_bytes(8, "little") + text


def _check(
    checkpoint: Checkpoint,
    tensors: Mapping[str, StoredTensor],
    descriptor: int,
    total: int,
    progress: Progress | None,
) -> None:
    """Reads the new file back as any reader would, and compares every byte."""
    written = header.read(descriptor)
    done = 0
    for name, tensor in tensors.items():
        place = written.tensors[name]
        if (place.dtype, place.shape, place.nbytes) != (tensor.dtype.name, tensor.shape, tensor.nbytes):
            raise CannotConvert(f"the tensor {name!r} was not written as it is")
        at = place.start
        for piece in pieces(checkpoint, tensor):
            if os.pread(descriptor, len(piece), at) != piece:
                raise CannotConvert(f"the bytes of {name!r} differ from the checkpoint's; is the disk all right?")
            at += len(piece)
            done += len(piece)
            if progress:
                progress("check", done, total)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
