"""Loads each safetensors file named on a line of standard input, and answers with a line of JSON."""

import json
import sys
import time


def answer(**fields):
    print(json.dumps(fields), flush=True)


try:
    import numpy
    import safetensors
    from safetensors.numpy import load_file
except ImportError as error:
    answer(error=f"{error}; install safetensors and numpy")
    sys.exit()

answer(ready=f"safetensors {safetensors.__version__}, numpy {numpy.__version__}")
for line in sys.stdin:
    try:
        start = time.perf_counter()
        tensors = load_file(line.rstrip("\n"))
        seconds = time.perf_counter() - start
        answer(seconds=seconds, bytes=sum(tensor.nbytes for tensor in tensors.values()))
        del tensors
    except Exception as error:
        answer(error=str(error))
