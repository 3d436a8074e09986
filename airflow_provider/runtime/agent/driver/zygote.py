"""A process that has already imported the driver and forks one for each job: it starts in a thousandth of a second.

It is asked over a socket: the path of a job's directory in, the pidfd of the job's driver out. It ends with the agent;
the drivers do not.
"""

from __future__ import annotations

import errno
import gc
import os
import select
import socket
import sys
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_PATH_BYTES = 4096
_PIDFD = 0
_ERROR = 1


def main(descriptor: int) -> None:
    """Serve the socket until its other end closes."""
    # Here, as the agent imports this module for the other end of the socket.
    from airflow_provider.runtime.agent.driver.driver import main as drive

    channel = socket.socket(fileno=descriptor)
    _be_called("jobs: zygote")
    gc.freeze()  # or each driver's first collection would copy all of this process's memory
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready != channel.fileno():
                # A driver ended: collected by whoever forked it. The agent has a descriptor of its own to tell.
                poll.unregister(ready)
                os.waitid(os.P_PIDFD, ready, os.WEXITED)
                os.close(ready)
                continue
            path = channel.recv(MAX_PATH_BYTES)
            if not path:
                return
            try:
                handle = _fork(os.fsdecode(path), channel, drive)
            except OSError as error:
                channel.send(bytes([_ERROR, error.errno or 0]) + str(error.strerror or error).encode())
                continue
            poll.register(handle, select.POLLIN)
            socket.send_fds(channel, [bytes([_PIDFD])], [handle])


def ask(channel: socket.socket, path: str) -> int:
    """Have the driver of the job directory ``path`` started and return its pidfd.

    Raises:
        OSError: it cannot be started.
        EOFError: the zygote is gone.
    """
    name = os.fsencode(path)
    if len(name) > MAX_PATH_BYTES:
        raise OSError(f"the path of the job's directory is too long ({len(name)} bytes)")
    try:
        channel.send(name)
        word, handles, _, _ = socket.recv_fds(channel, 4096, 1)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise EOFError("the process that starts drivers is gone") from error
    if not word:
        raise EOFError("the process that starts drivers is gone")
    if word[0] == _ERROR:
        raise OSError(word[1], word[2:].decode(errors="replace"))
    if not handles:
        # It runs; the job's lock tells whoever looks for it.
        raise OSError(errno.EMFILE, "no descriptor is left to watch a driver with")
    return handles[0]


def _fork(path: str, channel: socket.socket, drive: Callable[[str], None]) -> int:
    pid = os.fork()
    if pid:
        # Its pid is its own until we collect it, so this is its descriptor and nobody else's.
        return os.pidfd_open(pid)
    code = 1
    try:
        os.setsid()
        channel.close()
        _stand_alone(path)
        drive(path)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stderr.flush()
        finally:
            os._exit(code)


def _stand_alone(path: str) -> None:
    """Take the job's own log for the driver's words, in place of the agent's."""
    _be_called("jobs: driver")
    words = os.open(f"{path}/driver.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(words, 1)
    os.dup2(words, 2)
    os.close(words)


def _be_called(name: str) -> None:
    """Show in `ps` as what it is: a forked process has the command line of its parent."""
    with open("/proc/self/comm", "w") as comm:
        comm.write(name)
