"""Writes a GGUF file with the package `gguf`: `make_gguf.py PATH MEGABYTES`. Prints how many tensors it has."""

import json
import sys

import gguf
import numpy


def main() -> None:
    path, megabytes = sys.argv[1], int(sys.argv[2])
    random = numpy.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(megabytes // 4)
    for block in range(max(1, megabytes // 4)):
        writer.add_tensor(f"blk.{block}.attn_q.weight", random.random((1024, 1000), dtype=numpy.float32))
        writer.add_tensor(f"blk.{block}.attn_norm.weight", random.random(1001, dtype=numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    json.dump({"tensors": 2 * max(1, megabytes // 4)}, sys.stdout)


if __name__ == "__main__":
    main()
