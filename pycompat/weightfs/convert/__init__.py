"""PyTorch checkpoints (.ckpt, .pt, .pth, .bin) to safetensors: weights only, and no code of the checkpoint is run.

A checkpoint is a pickle, and a pickle may run what it likes. Here its instructions are followed by an unpickler that
knows the few functions that put tensors together and takes everything else for an opaque thing. Bytes are copied from
file to file in pieces. Neither torch nor numpy is needed.
"""

from __future__ import annotations

from .checkpoint import Checkpoint
from .unpickle import CannotConvert
from .write import Converted, convert

__all__ = ["CannotConvert", "Checkpoint", "Converted", "convert"]
