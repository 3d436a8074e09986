"""``python relay.py SOCKET``: carry standard input and output to and from a unix socket.

For hosts whose sshd forwards no sockets, and for sockets whose path is longer than the 107 bytes that the kernel takes.
Runs as a file of its own, with the standard library alone: it is started for each connection.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from threading import Thread

_CHUNK = 256 * 1024


def main(path: str) -> int:
    """Carry bytes until the far side ends; return the exit code."""
    directory, name = os.path.split(path)
    try:
        if directory:
            os.chdir(directory)  # names in the working directory may be as long as they like
        far = socket.socket(socket.AF_UNIX)
        far.connect(name)
    except OSError as error:
        sys.stderr.write(f"{path}: {error}\n")
        return 1
    # A thread for each way: neither may wait for the other.
    Thread(target=_send, args=(far,), daemon=True).start()
    with suppress(OSError):  # a side that is gone is the end
        while data := far.recv(_CHUNK):
            view = memoryview(data)
            while view:
                view = view[os.write(1, view) :]
    return 0


def _send(far: socket.socket) -> None:
    with suppress(OSError):
        while data := os.read(0, _CHUNK):
            far.sendall(data)
        far.shutdown(socket.SHUT_WR)  # what the agent still says is wanted


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
