"""A model file as memory, without a copy.

Two ways to map the same pages of RAM:

- *shared*, to be read only. What is written to it is an error, which numpy reports as such. The mapping to register
  with a GPU.
- *private*, which may be written to: the page that is written becomes a copy of this process, the file and everybody
  else's pages stay as they are. Until then it is the same pages. It is for torch, which has no read-only tensors: a
  write into a page that is not writable would end the process.

A mapping keeps the content that the file had when it was opened, whatever happens to the file.
"""

from __future__ import annotations

import mmap
import os

from ._find import resident
from .header import Header, InvalidFile, read


class MappedFile:
    """An open model file and its header, to be mapped. Closes the descriptor when closed; mappings live on."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.header: Header = read(self._descriptor)
        except InvalidFile as error:
            os.close(self._descriptor)
            raise InvalidFile(f"{self.path}: {error}") from None
        except BaseException:
            os.close(self._descriptor)
            raise

    def resident(self) -> bool:
        """Whether the whole file is in the RAM of weightfs."""
        known = resident(self._descriptor)
        return known is not None and known[0] == known[1] == self.header.size

    def shared(self) -> mmap.mmap:
        """A shared, read-only mapping of the whole file."""
        return mmap.mmap(self._descriptor, self.header.size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)

    def private(self) -> mmap.mmap:
        """A private mapping of the whole file, whose pages are copied when they are written to."""
        return mmap.mmap(
            self._descriptor, self.header.size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
        )

    def close(self) -> None:
        """Closes the descriptor."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> MappedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
