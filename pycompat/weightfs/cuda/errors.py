"""What can go wrong with a GPU. Each message says what to do next."""

from __future__ import annotations


class CudaUnavailable(RuntimeError):
    """This machine, or this driver, cannot do what was asked for."""


class CudaError(RuntimeError):
    """A call of the driver failed."""

    def __init__(self, function: str, code: int, name: str | None = None, hint: str = "") -> None:
        self.function = function
        self.code = code
        words = f"{function} failed with {name or 'error'} ({code})"
        super().__init__(f"{words}: {hint}" if hint else words)


class GdsUnavailable(CudaUnavailable):
    """Reading from storage straight to the GPU was asked for and is not possible here."""
