"""Runs a program in a pseudo-terminal: terminal.py COLUMNS ROWS KEYS PROGRAM ARGUMENT...

Once the program has drawn something and paused, the keys are typed. Prints JSON: the exit code, and what was written.
"""

import fcntl
import json
import os
import pty
import select
import struct
import sys
import termios
import time

# Only a program that hangs needs it.
PATIENCE = 20


def main() -> None:
    columns, rows, keys, *command = sys.argv[1:]
    child, terminal = pty.fork()
    if child == 0:
        size = struct.pack("HHHH", int(rows), int(columns), 0, 0)
        fcntl.ioctl(0, termios.TIOCSWINSZ, size)
        os.environ["TERM"] = "xterm-256color"
        os.execv(command[0], command)
    output = b""
    end = time.monotonic() + PATIENCE
    typed = False
    while time.monotonic() < end:
        ready, _, _ = select.select([terminal], [], [], 1.0)
        if not ready:
            if keys and output and not typed:
                typed = True
                os.write(terminal, keys.encode())
            continue
        try:
            chunk = os.read(terminal, 65536)
        except OSError:
            # The other side is closed.
            break
        if not chunk:
            break
        output += chunk
        # What goes on drawing never pauses.
        if keys and not typed and b"safetensors" in output:
            typed = True
            os.write(terminal, keys.encode())
    else:
        os.kill(child, 9)
    _, status = os.waitpid(child, 0)
    print(json.dumps({"code": os.waitstatus_to_exitcode(status), "output": output.decode(errors="replace")}))


main()
