"""Saves a new safetensors file over `PATH` while the old one is still loaded, as trainers and merge nodes do:
`save_in_place.py PATH`. Prints the hashes of the old tensors, which must not change, and of the new file."""

import json
import sys

from readers import hashes, safetensors_lazy, safetensors_numpy
from safetensors import safe_open
from safetensors.numpy import save_file


def main() -> None:
    path = sys.argv[1]
    before = hashes(safetensors_numpy(path))
    with safe_open(path, framework="numpy") as held:
        arrays = {name: held.get_tensor(name) for name in held.keys()}
        save_file({name: array + 1 for name, array in arrays.items()}, path)
        still = hashes({name: memoryview(held.get_tensor(name).tobytes()) for name in held.keys()})
    json.dump({"before": before, "still": still, "after": hashes(safetensors_lazy(path))}, sys.stdout)


if __name__ == "__main__":
    main()
