"""The log of a detached supervisor: one JSON object per event and log line, bounded by bytes.

    <data_dir>/up.log      the newest lines
    <data_dir>/up.log.1    those before them

When a line would make up.log larger than MAX_BYTES, it replaces up.log.1 and a new one begins.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from headwater.supervisor.log_mux import Merged

FILE_NAME: Final = "up.log"
MAX_BYTES: Final = 8 << 20
_MODE: Final = 0o600


def files_of(data_dir: Path) -> list[Path]:
    """Those that are there, the older one first."""
    path = data_dir / FILE_NAME
    return [found for found in (_older(path), path) if found.exists()]


class LogFile(Merged):
    """Takes whole lines. Standard output and error of this process lead into it, too: that is where
    a traceback of the supervisor itself goes.
    """

    def __init__(self, data_dir: Path, *, max_bytes: int = MAX_BYTES) -> None:
        """Raises OSError."""
        self.path = data_dir / FILE_NAME
        self._max_bytes = max_bytes
        self._open()
        super().__init__(1, is_terminal=False, on_gone=lambda: None)

    def put(self, data: bytes) -> None:
        """A disk that takes no file is no reason to stop: the lines are lost then."""
        try:
            size_bytes = os.fstat(1).st_size
            if size_bytes and size_bytes + len(data) > self._max_bytes:
                with suppress(FileNotFoundError):  # it was removed, or the last `_open` failed
                    self.path.replace(_older(self.path))
                self._open()
            super().put(data)
        except OSError:
            pass

    def _open(self) -> None:
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)


def _older(path: Path) -> Path:
    return path.with_name(path.name + ".1")
