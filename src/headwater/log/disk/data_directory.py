"""The data directory of a broker: created durably, and locked by one process at a time.

.headwater/
  lock                               held while a broker uses the directory
  up.lock                            held while `headwater up` does (supervisor/lock.py)
  catalog.jsonl                      topics (catalog.py)
  clean-shutdown                     there if the last process closed everything
  recovery-point-offset-checkpoint   how far each partition needs no scan
  log-start-offset-checkpoint        where a partition begins inside its first segment
  cleaner-offset-checkpoint          how far each partition is compacted
  ballast                            room for deletions on a full disk (ballast.py)
  archive-cache/                     what was read back from the archive
  control                            socket for commands on this machine (broker/control.py)
  backup-….deleted/                  while a backup is made (staging.py)
  erasure-….deleted/                 an archived segment while it is rewritten (erasure/archived.py)
  orders-0/                          a partition; made with its first record
    00000000000000000000.log/.index/.timeindex/.txnindex, ….snapshot, leader-epoch-checkpoint
"""

import fcntl
import os

from headwater.errors import DataDirectoryInUse
from headwater.log.disk.files import Files
from headwater.private_files import open_lock

LOCK = "lock"
UP_LOCK = "up.lock"
CLEAN_SHUTDOWN = "clean-shutdown"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEAN_OFFSETS = "cleaner-offset-checkpoint"
DELETED = ".deleted"  # how the names of directories end whose removal is under way


def create(files: Files, path: str) -> None:
    """Creates the directory if need be, durably: a power cut must not remove all of it."""
    missing = []
    parent = path
    while not os.path.isdir(parent):
        missing.append(parent)
        parent = os.path.dirname(parent)
    files.makedirs(path)
    for created in missing:
        files.sync_directory(os.path.dirname(created))


def lock(path: str) -> int:
    """The descriptor that holds the lock until it is closed. Raises DataDirectoryInUse."""
    fd = open_lock(f"{path}/{LOCK}")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        os.close(fd)
        raise DataDirectoryInUse(
            "another process uses this data directory",
            detail=f"{path}, process {holder or 'unknown'}",
            hint="stop it, or choose another --data-dir",
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd
