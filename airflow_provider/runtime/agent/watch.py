"""Being told when files in a directory change, instead of asking.

The standard library has no inotify; libc has. Where the kernel has no instance or watch left (they are few per user),
the directories are looked at four times a second instead: slower, never wrong.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    OnChange = Callable[[set[str] | None], None]
    """Takes the names of the files that changed, None when only "something" is known."""

log = logging.getLogger(__name__)

_IN_MODIFY = 0x2
_IN_MOVED_TO = 0x80
_IN_Q_OVERFLOW = 0x4000
_EVENT = struct.Struct("iIII")
_POLL_SECONDS = 0.25


class DirectoryWatcher:
    """Calls back when a file in a watched directory grows or is replaced. Belongs to one event loop."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._callbacks: dict[int, tuple[Path, OnChange]] = {}
        self._polled: dict[Path, tuple[OnChange, object]] = {}
        self._poller: asyncio.Task[None] | None = None
        self._handle: int | None = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._handle == -1:
            log.warning("inotify is not to be had (%s): polling", os.strerror(ctypes.get_errno()))
            self._handle = None
        else:
            asyncio.get_running_loop().add_reader(self._handle, self._read)

    def watch(self, directory: Path, callback: OnChange) -> None:
        """Call ``callback`` soon after each change in ``directory``; several changes may come as one call."""
        if self._handle is not None:
            mask = _IN_MODIFY | _IN_MOVED_TO
            watch = self._libc.inotify_add_watch(self._handle, os.fsencode(directory), mask)
            if watch != -1:
                self._callbacks[watch] = (directory, callback)
                return
            log.warning("cannot watch %s (%s): polling", directory, os.strerror(ctypes.get_errno()))
        self._polled[directory] = (callback, _fingerprint(directory))
        if self._poller is None:
            self._poller = asyncio.create_task(self._poll())

    def unwatch(self, directory: Path) -> None:
        """Stop watching; a directory that is not watched is no error."""
        self._polled.pop(directory, None)
        for watch, (path, _) in list(self._callbacks.items()):
            if path == directory:
                del self._callbacks[watch]
                self._libc.inotify_rm_watch(self._handle, watch)

    def close(self) -> None:
        """Stop watching everything."""
        if self._poller is not None:
            self._poller.cancel()
            self._poller = None
        if self._handle is not None:
            asyncio.get_running_loop().remove_reader(self._handle)
            os.close(self._handle)
            self._handle = None

    def _read(self) -> None:
        if self._handle is None:
            return
        try:
            data = os.read(self._handle, 64 * 1024)
        except BlockingIOError:
            return
        changed: dict[int, set[str] | None] = {}
        position = 0
        while position < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, position)
            position += _EVENT.size
            name = os.fsdecode(data[position : position + length].rstrip(b"\0"))
            position += length
            if mask & _IN_Q_OVERFLOW:
                changed = dict.fromkeys(self._callbacks)  # events were lost: anything may have changed
                break
            names = changed.setdefault(watch, set())
            if names is not None:
                names.add(name)
        for watch, names in changed.items():
            entry = self._callbacks.get(watch)
            if entry is not None:
                entry[1](names)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            for directory, (callback, before) in list(self._polled.items()):
                now = _fingerprint(directory)
                if now != before:
                    self._polled[directory] = (callback, now)
                    callback(None)


def _fingerprint(directory: Path) -> object:
    try:
        with os.scandir(directory) as entries:
            return {
                (entry.name, entry.inode(), entry.stat().st_size, entry.stat().st_mtime_ns)
                for entry in entries
                if entry.is_file()
            }
    except FileNotFoundError:
        return None
