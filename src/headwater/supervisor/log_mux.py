"""Multiplexer of the lines of all children to one stream, which may be slow or closed.

A thread of its own writes: a terminal that is stopped (Ctrl-S) or a pager at its first page must
not stop the children. What waits is bounded; beyond that lines are left out, and it is said how
many.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

MAX_WAITING_BYTES: Final = 1 << 20
_CLEAR_LINE: Final = b"\r\x1b[K"


class Merged:
    """Whole lines only. On a terminal the last line may be one that changes (`status`)."""

    def __init__(self, fd: int, *, is_terminal: bool, on_gone: Callable[[], None]) -> None:
        """`on_gone` is called, in the writing thread, if the reader has closed the stream."""
        self._fd = fd
        self._is_terminal = is_terminal
        self._on_gone = on_gone
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._left_out = 0
        self._status = b""
        self._shown_status = b""
        self._is_closed = False
        self._is_gone = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        self._thread.start()

    def write(self, text: str) -> None:
        """One or more lines. Never blocks."""
        data = text.encode("utf-8", "replace") + b"\n"
        with self._changed:
            if self._waiting_bytes + len(data) > MAX_WAITING_BYTES:
                self._left_out += text.count("\n") + 1
            elif not self._is_gone:
                self._waiting.append(data)
                self._waiting_bytes += len(data)
            self._changed.notify()

    def status(self, text: str) -> None:
        """The line below all others; "" for none."""
        if self._is_terminal:
            with self._changed:
                self._status = text.encode("utf-8", "replace")
                self._changed.notify()

    def close(self, timeout_s: float = 2.0) -> None:
        """Writes what waits, if it can be written in that time."""
        with self._changed:
            self._status = b""
            self._is_closed = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_news)
                if self._is_closed and not self._has_lines() and self._status == self._shown_status:
                    return
                data = self._taken()
            try:
                self.put(data)
            except OSError:
                with self._changed:
                    self._is_gone = True
                    self._waiting.clear()
                    self._waiting_bytes = self._left_out = 0
                self._on_gone()
                return

    def _has_lines(self) -> bool:
        return bool(self._waiting or self._left_out)

    def _has_news(self) -> bool:
        return self._has_lines() or self._is_closed or self._status != self._shown_status

    def _taken(self) -> bytes:
        lines = b"".join(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        if self._left_out:
            lines += f"… {self._left_out} lines left out: the output is slow\n".encode()
            self._left_out = 0
        clear = _CLEAR_LINE if self._shown_status else b""
        self._shown_status = self._status
        return clear + lines + self._status

    def put(self, data: bytes) -> None:
        """To the stream itself, in the writing thread. Raises OSError."""
        while data:
            data = data[os.write(self._fd, data) :]
