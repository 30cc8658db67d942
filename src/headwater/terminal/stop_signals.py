"""How a command that runs until it is stopped handles SIGINT and SIGTERM."""

import os
import signal
import sys
import threading
import time
from types import FrameType

from headwater.terminal.output import note


def stop_on_signals(limit_s: float) -> threading.Event:
    """Set by SIGINT and SIGTERM. A second one ends the process at once, and so does `limit_s`: an
    end that is not orderly loses nothing, the next run goes on from what is stored.
    """
    stop = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        for other in (signal.SIGINT, signal.SIGTERM):
            signal.signal(other, signal.SIG_DFL)
        stop.set()
        threading.Thread(target=_end_anyway, args=(limit_s,), name="end", daemon=True).start()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask)
    return stop


def _end_anyway(limit_s: float) -> None:
    time.sleep(limit_s)
    note("stopped, though something did not answer")
    sys.stderr.flush()
    os._exit(0)
