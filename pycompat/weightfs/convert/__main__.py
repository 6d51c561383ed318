"""`python -m weightfs.convert CHECKPOINT [TARGET]`."""

from __future__ import annotations

import argparse
import sys
import time

from . import CannotConvert, convert


def main(arguments: list[str] | None = None) -> int:
    """Gives the exit code: 0, or 1 with a message on standard error."""
    parser = argparse.ArgumentParser(
        prog="python -m weightfs.convert",
        description="Converts a PyTorch checkpoint (.ckpt, .pt, .pth, .bin) to safetensors: its weights only. "
        "Nothing of the checkpoint is run.",
    )
    parser.add_argument("source", help="the checkpoint")
    parser.add_argument("target", nargs="?", help="the new file (default: beside it, with the ending .safetensors)")
    parser.add_argument("--state-dict-key", metavar="KEY", help="where the weights are: state_dict, model.ema, ...")
    parser.add_argument("--skip-non-tensors", action="store_true", help="leave out what is no tensor")
    parser.add_argument("--force", action="store_true", help="replace the new file if it is there")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    given = parser.parse_args(arguments)
    try:
        done = convert(
            given.source,
            given.target,
            state_dict_key=given.state_dict_key,
            skip_non_tensors=given.skip_non_tensors,
            overwrite=given.force,
            progress=None if given.quiet or not sys.stderr.isatty() else _Line(),
        )
    except (CannotConvert, OSError) as error:
        print(f"weightfs.convert: {error}", file=sys.stderr)
        return 1
    print(f"{done.path}: {done.tensors} tensors, {done.data_bytes / (1 << 20):.1f} MiB, every byte compared")
    return 0


class _Line:
    """One line that is written over, a few times a second."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now < self._next and done < total:
            return
        self._next = now + 0.2
        print(f"\r{what:5} {100 * done / total:5.1f} %", end="", file=sys.stderr, flush=True)
        if what == "check" and done == total:
            print(file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
