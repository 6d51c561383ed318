"""Loading safetensors files without a copy.

A file that is whole in the RAM of weightfs is mapped, and its tensors are views of the pages that everybody shares: no
byte is copied, whatever the size. Any other file is left to the ordinary loader, the package safetensors.

Views and writing: numpy's arrays are read-only, and numpy says so when one is written to; `writable=True` gives arrays
that may be. Torch has no read-only tensors, so its views may always be written to. In both cases the pages that are
written become this process' own, and neither the file nor anybody else sees it. `copy=True` gives tensors in memory of
their own from the start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from .errors import WeightfsError
from .frameworks import Framework, Maker, maker
from .header import Header
from .mapping import MappedFile


def load(
    path: str | os.PathLike[str],
    device: Any = "cpu",
    framework: Framework | str = "pt",
    *,
    copy: bool = False,
    writable: bool = False,
    raw: bool = False,
    gds: bool | str = False,
    on_report: Callable[[Any], object] | None = None,
) -> dict[str, Any]:
    """All tensors of a safetensors file by name, in the order of their places in it.

    `framework` is "pt" or "np". `device` is for torch. `copy`: in memory of their own. `writable`: numpy arrays that
    may be written to. `raw`: numpy gets types that it lacks (BF16, F8) as unsigned numbers of the same bits.

    For a GPU, `device="cuda"` or "cuda:N": resident files are copied from their pages with nothing in between. With
    `gds=True` the tensors are read from storage straight to the device, with "auto" where that is possible, see
    `weightfs.cuda`. `on_report` is called with how it went, a `weightfs.cuda.Report`.

    Raises `OSError`, `InvalidFile`, and `UnsupportedType` for a type that the framework does not have.
    """

    def ordinary() -> dict[str, Any]:
        with open(path, framework, device, copy=copy, writable=writable, raw=raw) as file:
            return file.get_tensors()

    if is_cuda(device) and framework in ("pt", "torch", "pytorch"):
        from . import cuda

        name = device if isinstance(device, int) else str(device)
        return cuda.load(path, name, gds=gds, on_report=on_report, ordinary=ordinary)
    if gds:
        raise ValueError("gds reads into the memory of a GPU: say which with device='cuda' and framework='pt'")
    return ordinary()


def is_cuda(device: Any) -> bool:
    """Whether a device, as torch or safetensors name them, is a GPU of CUDA."""
    is_number = isinstance(device, int) and not isinstance(device, bool)
    return is_number or str(device).partition(":")[0] == "cuda"


def load_file(filename: str | os.PathLike[str], device: Any = "cpu", *, backend: str = "mmap") -> dict[str, Any]:
    """As `safetensors.torch.load_file`. `backend` is for files that are not in RAM."""
    with open(filename, "pt", device, backend=backend) as file:
        return file.get_tensors()


class open:
    """As `safetensors.safe_open(filename, framework, device)`, to be used in a `with` block or without.

    `zero_copy` says whether the tensors are views of the RAM of weightfs. Arguments as for `load`.
    """

    def __init__(
        self,
        filename: str | os.PathLike[str],
        framework: Framework | str = "pt",
        device: Any = "cpu",
        *,
        backend: str = "mmap",
        copy: bool = False,
        writable: bool = False,
        raw: bool = False,
    ) -> None:
        make = maker(framework, device, writable, raw)
        with MappedFile(filename) as file:
            self.zero_copy = file.resident()
            other = None if self.zero_copy else _ordinary(file, framework, device, backend, raw)
            self._file: Any = other or _Views(file, make)
        # The ordinary loader gives memory of its own already, unless it maps as we do.
        self._copy = make.copied if copy and not other else None
        self._header = file.header

    def keys(self) -> list[str]:
        """The names of the tensors, sorted."""
        return list(self._file.keys())

    def offset_keys(self) -> list[str]:
        """The names of the tensors, in the order of their places in the file."""
        return list(self._header.tensors)

    def metadata(self) -> dict[str, str] | None:
        """What the file says of itself, if it does."""
        return dict(self._header.metadata) or None

    def get_tensor(self, name: str) -> Any:
        """One tensor."""
        tensor = self._file.get_tensor(name)
        return self._copy(tensor) if self._copy else tensor

    def get_tensors(self) -> dict[str, Any]:
        """All tensors, in the order of their places in the file."""
        return {name: self.get_tensor(name) for name in self._header.tensors}

    def get_slice(self, name: str) -> Any:
        """One tensor to be indexed: with `get_shape()`, `get_dtype()` and `[...]`."""
        return self._file.get_slice(name)

    def __len__(self) -> int:
        return len(self._header.tensors)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, name: object) -> bool:
        return name in self._header.tensors

    def __enter__(self) -> open:
        enter = getattr(self._file, "__enter__", None)
        if enter:
            enter()
        return self

    def __exit__(self, *error: Any) -> None:
        leave = getattr(self._file, "__exit__", None)
        if leave:
            leave(*error)


class _Views:
    """The tensors of a mapped file. The mapping lives as long as any of them."""

    def __init__(self, file: MappedFile, make: Maker) -> None:
        self._header: Header = file.header
        self._make = make
        self._memory = make.map(file)

    def keys(self) -> list[str]:
        return sorted(self._header.tensors)

    def get_tensor(self, name: str) -> Any:
        try:
            tensor = self._header.tensors[name]
        except KeyError:
            raise KeyError(f"the file has no tensor {name!r}") from None
        return self._make.view(self._memory, tensor)

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self, name)


class _Slice:
    """A part of a tensor that is made when it is asked for."""

    def __init__(self, views: _Views, name: str) -> None:
        self._tensor = views._header.tensors[name]
        self._views = views

    def get_shape(self) -> list[int]:
        """Its shape."""
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        """Its type, by the format's name."""
        return self._tensor.dtype

    def __getitem__(self, index: Any) -> Any:
        return self._views.get_tensor(self._tensor.name)[index]


def _ordinary(file: MappedFile, framework: str, device: Any, backend: str, raw: bool) -> Any:
    """The package safetensors' reader, or None where it cannot serve: then the file is mapped from where it is."""
    if raw:
        return None
    try:
        import safetensors
    except ImportError:
        return None
    from .patching import original

    reader = original(safetensors, "safe_open")
    extra = {} if backend == "mmap" else {"backend": backend}
    try:
        return reader(file.path, framework=framework, device=device or "cpu", **extra)
    except safetensors.SafetensorError as error:
        raise WeightfsError(f"{file.path}: {error}") from error
