"""The two forms of PyTorch checkpoints: where their tensors' bytes are."""

from __future__ import annotations

import io
import os
import struct
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from . import unpickle
from .unpickle import CannotConvert, Opaque, Storage, StoredTensor

# Of a structure without its tensors' bytes. Real ones are a few MiB.
MAX_PICKLE = 512 << 20
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
# Keys under which trainers put the weights, in the order in which they are looked for.
_USUAL_KEYS = ("state_dict", "model_state_dict", "module", "model", "params_ema", "params", "net", "weights")


class Checkpoint:
    """An open checkpoint: its structure, and where each storage lies in the file.

    Raises `CannotConvert` for files that are none, or hold what this does not read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        # The bytes of storages lie as they are in the file: (offset, size) by key.
        self.places: dict[str, tuple[int, int]] = {}
        self.file: BinaryIO = open(self.path, "rb")  # noqa: SIM115 - closed by close()
        try:
            self.root: Any = self._zip() if zipfile.is_zipfile(self.file) else self._legacy()
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, struct.error, ValueError) as error:
            self.file.close()
            raise CannotConvert(f"the archive is damaged: {error}") from None
        except BaseException:
            self.file.close()
            raise

    def state_dict(self, key: str | None = None, skip_non_tensors: bool = False) -> dict[str, StoredTensor]:
        """The tensors by name. `key` says where they are in the structure, such as `state_dict` or `model.ema`.

        Without it they are looked for at the top and in the usual places. What is no tensor among them is refused
        unless it may be skipped.
        """
        found = self._at(key) if key is not None else self._find()
        tensors, others = {}, []
        for name, value in _flat(found):
            if isinstance(value, StoredTensor):
                tensors[name] = value
            else:
                others.append(f"{name} ({_what(value)})")
        if others and not skip_non_tensors:
            shown = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
            raise CannotConvert(
                f"among the weights are things that are no tensors: {shown}. Leave them out with --skip-non-tensors"
            )
        if not tensors:
            raise CannotConvert(f"there are no tensors {'under ' + key if key else 'in it'}")
        return tensors

    def place(self, storage: Storage) -> int:
        """Where a storage's bytes begin in the file."""
        try:
            offset, size = self.places[storage.key]
        except KeyError:
            raise CannotConvert(f"the storage {storage.key!r} is missing; the checkpoint is not complete") from None
        if size < storage.nbytes:
            raise CannotConvert(f"the storage {storage.key!r} has {size} bytes instead of {storage.nbytes}")
        return offset

    def close(self) -> None:
        """Closes the file."""
        self.file.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _at(self, key: str) -> Mapping[str, Any]:
        here = self.root
        for part in key.split("."):
            if not isinstance(here, Mapping) or part not in here:
                raise CannotConvert(f"there is no {key!r} in it; at the top are {_names(self.root)}")
            here = here[part]
        if not isinstance(here, Mapping):
            raise CannotConvert(f"{key!r} is no collection of tensors but {_what(here)}")
        return here

    def _find(self) -> Mapping[str, Any]:
        root = self.root
        if not isinstance(root, Mapping) or isinstance(root, Opaque):
            raise CannotConvert(
                f"it holds {_what(root)} rather than weights by name; "
                f"save its state_dict() with the program that made it"
            )
        if any(isinstance(value, StoredTensor) for value in root.values()):
            return root
        holding = [key for key, value in root.items() if isinstance(value, Mapping) and _holds_tensors(value)]
        for key in _USUAL_KEYS:
            if key in holding:
                return self._at(key)
        if len(holding) == 1:
            value: Mapping[str, Any] = root[holding[0]]
            return value
        raise CannotConvert(
            f"where the weights are is not clear: say it with --state-dict-key; at the top are {_names(root)}"
        )

    def _zip(self) -> Any:
        with zipfile.ZipFile(self.file) as archive:
            entries = {info.filename: info for info in archive.infolist()}
            pickles = [name for name in entries if name == "data.pkl" or name.endswith("/data.pkl")]
            if len(pickles) != 1:
                raise CannotConvert("it is a zip archive, but no checkpoint: it has no data.pkl")
            prefix = pickles[0].removesuffix("data.pkl")
            if f"{prefix}constants.pkl" in entries:
                raise CannotConvert("it is a TorchScript program; save its state_dict() with torch instead")
            order = entries.get(f"{prefix}byteorder")
            if order and archive.read(order).strip() != b"little":
                raise CannotConvert("its numbers are big-endian; save it again on a little-endian machine")
            if entries[pickles[0]].file_size > MAX_PICKLE:
                raise CannotConvert(f"its structure alone takes {entries[pickles[0]].file_size} bytes")
            for name, info in entries.items():
                if name.startswith(f"{prefix}data/"):
                    self.places[name.removeprefix(f"{prefix}data/")] = (self._stored(info), info.file_size)
            return unpickle.load(io.BytesIO(archive.read(pickles[0])))

    def _stored(self, info: zipfile.ZipInfo) -> int:
        if info.compress_type != zipfile.ZIP_STORED:
            raise CannotConvert("its tensors are compressed, which torch does not do; unpack and save it again")
        # The lengths in the entry's own header may differ from those in the directory.
        self.file.seek(info.header_offset)
        header = self.file.read(30)
        if len(header) < 30 or header[:4] != b"PK\x03\x04":
            raise CannotConvert(f"the archive is damaged at {info.filename}")
        name_length, extra_length = struct.unpack("<HH", header[26:30])
        start: int = info.header_offset + 30 + name_length + extra_length
        if start + info.file_size > os.fstat(self.file.fileno()).st_size:
            raise CannotConvert(f"the archive ends within {info.filename}; the file is not complete")
        return start

    def _legacy(self) -> Any:
        self.file.seek(0)
        if self.file.read(8)[:1] != b"\x80":
            self._refuse()
        self.file.seek(0)
        if unpickle.load(self.file) != _LEGACY_MAGIC:
            raise CannotConvert("it is a pickle, but no checkpoint of PyTorch")
        if unpickle.load(self.file) != 1001:
            raise CannotConvert("it is of a version of the format that is not known")
        system = unpickle.load(self.file)
        if isinstance(system, Mapping) and not system.get("little_endian", True):
            raise CannotConvert("its numbers are big-endian; save it again on a little-endian machine")
        noted: dict[str, int] = {}
        root = _Noting(self.file, noted).read()
        keys = unpickle.load(self.file)
        at, end = self.file.tell(), os.fstat(self.file.fileno()).st_size
        for key in keys if isinstance(keys, list) else []:
            self.file.seek(at)
            count = int.from_bytes(self.file.read(8), "little")
            size = count * noted.get(str(key), 0)
            if str(key) not in noted or at + 8 + size > end:
                raise CannotConvert("the file ends within its tensors; it is not complete")
            self.places[str(key)] = (at + 8, size)
            at += 8 + size
        return root

    def _refuse(self) -> None:
        self.file.seek(0)
        start = self.file.read(16)
        if len(start) > 8 and start[8:9] == b"{":
            raise CannotConvert("it is a safetensors file already")
        if tarfile.is_tarfile(self.path):
            raise CannotConvert("it is of PyTorch before 0.1.10; load and save it with an old torch first")
        raise CannotConvert("it is no checkpoint of PyTorch")


class _Noting(unpickle.SafeUnpickler):
    """Notes the size of the elements of each storage: in the old form only the structure says it."""

    def __init__(self, file: BinaryIO, noted: dict[str, int]) -> None:
        super().__init__(file)
        self._noted = noted

    def persistent_load(self, identity: Any) -> Storage:
        """A storage. What comes sixth are views of others, which torch has not written for years."""
        if isinstance(identity, tuple) and len(identity) > 5 and identity[5] is not None:
            raise CannotConvert("its storages are views of each other; load and save it with torch first")
        storage = super().persistent_load(identity)
        self._noted[storage.key] = storage.dtype.size
        return storage

    def read(self) -> Any:
        """The structure."""
        try:
            return self.load()
        except CannotConvert:
            raise
        except Exception as error:
            raise CannotConvert(f"this is no checkpoint, or a damaged one: {type(error).__name__}: {error}") from None


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and not isinstance(value, Opaque) and value:
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


def _holds_tensors(tree: Mapping[str, Any]) -> bool:
    return any(isinstance(value, StoredTensor) for _, value in _flat(tree))


def _what(value: Any) -> str:
    return f"an object {value.called}" if isinstance(value, Opaque) else f"a {type(value).__name__}"


def _names(root: Any) -> str:
    names = [str(key) for key in root] if isinstance(root, Mapping) else []
    return ", ".join(names[:20]) + (" ..." if len(names) > 20 else "") if names else "no names"
