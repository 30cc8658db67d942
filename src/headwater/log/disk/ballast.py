"""The ballast: room on the disk that is reserved for deletions.

Whatever deletes writes first: a line of the catalog, a checkpoint. On a full disk it could not, and
nothing would ever leave the disk. Therefore a file lies in the data directory that makes way for
such a write: it is emptied. From then on, also after a restart, records are refused
(`Storage.is_short`), so that they do not take the room; when there is enough of it the file gets
its size again, and records are taken as before.
"""

import contextlib
import errno
import logging
import os
import threading

from headwater.log.segment import Storage

log = logging.getLogger(__name__)

NAME = "ballast"
SIZE_BYTES = 4 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_full(error: OSError) -> bool:
    """Whether it says that the disk has no room."""
    return error.errno in _FULL


class Ballast:
    """See the module. Every method blocks; any thread may call it."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._directory = directory
        self._path = f"{directory}/{NAME}"
        self._lock = threading.Lock()
        self.is_there = False

    def find(self) -> None:
        """At a start: on a full disk even that has to write."""
        if not os.path.exists(self._path):
            return
        self.is_there = self._storage.files.size_bytes(self._path) >= SIZE_BYTES
        self._storage.is_short = not self.is_there
        if self.is_there and self._free_bytes() < SIZE_BYTES:
            self.release()

    def take(self) -> None:
        """Makes the file if there is room for it, and as much again. Raises OSError."""
        with self._lock:
            if self.is_there or self._free_bytes() < 2 * SIZE_BYTES:
                return
            try:
                self._storage.files.allocate(self._path, SIZE_BYTES)
            except OSError:
                with contextlib.suppress(OSError):
                    if self._storage.is_short:
                        self._empty()
                    else:
                        self._storage.files.unlink(self._path)
                raise
            self.is_there = True
            if self._storage.is_short:
                self._storage.is_short = False
                log.info("the disk has room again: records are taken")

    def release(self) -> bool:
        """Gives the room to what has to be written now. False: it is given away already."""
        with self._lock:
            if not self.is_there:
                return False
            self._empty()
            self.is_there = False
            self._storage.is_short = True
        log.warning("the disk is full: records are refused until something is deleted")
        return True

    def is_needed(self) -> bool:
        """Whether the disk has less room than what is held back."""
        return self._free_bytes() < SIZE_BYTES

    def _empty(self) -> None:
        fd = self._storage.files.open(self._path, create=True)
        try:
            self._storage.files.truncate(fd, 0)
        finally:
            self._storage.files.close(fd)

    def _free_bytes(self) -> int:
        return self._storage.files.free_bytes(self._directory)
