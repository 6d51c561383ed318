"""weightfs for Python: hints to the cache, and tensors that are views of it.

Nothing needs this package: weightfs serves files to programs that know nothing of it. With it, the cache knows the
future (`connect`), and a model that is in RAM is loaded without a copy (`load`, `open`, `patch`).

It needs Python 3.10 and nothing else. numpy, torch and safetensors are used where they are installed.
"""

from __future__ import annotations

from ._find import on_mount
from .aio import AsyncClient
from .client import Client, connect
from .errors import (
    BadRequest,
    Busy,
    NoDaemon,
    NoFile,
    NoRoom,
    NotFound,
    NotMounted,
    NotPermitted,
    Overloaded,
    Problem,
    ProtocolError,
    TimedOut,
    TooLarge,
    WeightfsError,
)
from .frameworks import UnsupportedType
from .header import Header, InvalidFile, Tensor
from .header import read as read_header
from .mapping import MappedFile
from .patching import patch, unpatch
from .tensors import load, load_file, open

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "BadRequest",
    "Busy",
    "Client",
    "Header",
    "InvalidFile",
    "MappedFile",
    "NoDaemon",
    "NoFile",
    "NoRoom",
    "NotFound",
    "NotMounted",
    "NotPermitted",
    "Overloaded",
    "Problem",
    "ProtocolError",
    "Tensor",
    "TimedOut",
    "TooLarge",
    "UnsupportedType",
    "WeightfsError",
    "connect",
    "load",
    "load_file",
    "on_mount",
    "open",
    "patch",
    "read_header",
    "unpatch",
]
