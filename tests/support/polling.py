"""Waiting for a condition, without taking the processor from what is waited for."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_TIMES = 3  # as long as a try takes is the pause behind it
_LONGEST_PAUSE_S = 0.25


def polled(condition: Callable[[], T], timeout_s: float, *, pause_s: float = 0.01) -> T:
    """What `condition` returned last: once that is true, or when the time is over.

    Many conditions ask a store or a broker, which costs as much as what some tests wait for: the
    more a try takes (as it does on a busy machine), the longer is the pause until the next one.
    """
    end_s = time.monotonic() + timeout_s
    while True:
        began_s = time.monotonic()
        found = condition()
        now_s = time.monotonic()
        if found or now_s > end_s:
            return found
        time.sleep(max(pause_s, min(_TIMES * (now_s - began_s), _LONGEST_PAUSE_S)))
