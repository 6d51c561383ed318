"""Run as a program of its own: starts the driver and says what is there, as one line of JSON.

Starting a driver can hang or crash where it is broken or half installed; then it is this process that does.
"""

from __future__ import annotations

import importlib
import json
import os
import sys


def main() -> None:
    # By the package's folder: what else is installed is not needed here.
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    try:
        answer = importlib.import_module("weightfs.cuda.machine").look()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        answer = {"error": str(error) or type(error).__name__}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
