"""How a command that runs until it is stopped handles SIGINT and SIGTERM."""

import os
import signal
import socket
import sys
import threading
from types import FrameType
from typing import Final

from headwater.terminal.output import note

_STOPPING: Final = (signal.SIGINT, signal.SIGTERM)
_KILLED: Final = 128  # and the signal's number: the exit code that a shell shows


def stop_on_signals(limit_s: float) -> threading.Event:
    """Set by SIGINT and SIGTERM. A second one ends the process at once, and so does `limit_s`: an
    end that is not orderly loses nothing, the next run goes on from what is stored.

    Both hold also while the main thread is inside a library that does not return (libpq waits for
    a server that hangs). Python's own handlers run in that thread and would wait as well, so a
    thread gets the signals' numbers through the wakeup file.
    """
    stop = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        for other in _STOPPING:
            signal.signal(other, signal.SIG_DFL)
        stop.set()

    received, wakeup = socket.socketpair()
    wakeup.setblocking(False)
    signal.set_wakeup_fd(wakeup.detach(), warn_on_full_buffer=False)
    for number in _STOPPING:
        signal.signal(number, ask)
    threading.Thread(
        target=_end_anyway, args=(received, stop, limit_s), name="end", daemon=True
    ).start()
    return stop


def _end_anyway(received: socket.socket, stop: threading.Event, limit_s: float) -> None:
    _next_signal(received)
    stop.set()
    received.settimeout(limit_s)
    try:
        number = _next_signal(received)
    except TimeoutError:
        note("stopped, though something did not answer")
        sys.stderr.flush()
        os._exit(0)
    os._exit(_KILLED + number)


def _next_signal(received: socket.socket) -> int:
    while True:
        number = received.recv(1)[0]
        if number in _STOPPING:
            return number
