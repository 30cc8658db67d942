"""Ctrl-C and SIGTERM as a request to finish, not as an exception in the middle of something."""

import signal
from types import FrameType


class Interrupt:
    """True once the user wants it to end. A second signal raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self._asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def __bool__(self) -> bool:
        return self._asked

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
