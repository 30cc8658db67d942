"""Pacing: how long a write waits before its next batch, so that all share the cores.

A batch has a fixed cost. A write that began its next batch at once for every single record would
spend the machine on fixed costs, and the other writes would wait. So all writes of a process
together may use a part of the cores: after a batch that took `d`, a write waits until `d` times
the number of busy writes fits into that part. A write that was idle begins at once.

One write may use a third of the cores: its pauses are of milliseconds then. Many together use
less, but none waits for longer than 0.3 s; half of that is what pauses add to the median latency.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from headwater.pipelines.session import cores

_SHARE: Final = 0.35  # of the cores, for the batches of one write
_SHARE_OF_MANY: Final = 0.1  # that the share of all approaches, the more writes there are
_LONGEST_S: Final = 0.3
_BUSY_S: Final = 1.0  # a write counts for so long after its last batch
_SMOOTHING: Final = 0.3


class _Budget:
    """When each write of the process had its last batch, and what batches take."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_s: dict[int, float] = {}

    def busy(self, pacing: int, now_s: float) -> int:
        with self._lock:
            self._last_s[pacing] = now_s
            return sum(now_s - last_s < _BUSY_S for last_s in self._last_s.values())

    def leave(self, pacing: int) -> None:
        with self._lock:
            self._last_s.pop(pacing, None)


_budget = _Budget()


class Pacing:
    """The pace of one write. To be used by one thread."""

    def __init__(self, every_s: float = 0.0) -> None:
        self._every_s = every_s
        self._began_s = 0.0
        self._pause_s = 0.0
        self._took_s = 0.0  # a batch, smoothed

    def close(self) -> None:
        """It no longer counts as busy."""
        _budget.leave(id(self))

    def wait(self, stopping: threading.Event, *, is_behind: bool = False) -> bool:
        """Until the next batch may begin. False if it is not to begin any more. A write that is
        behind does not pause.
        """
        pause_s = 0.0 if is_behind else max(self._every_s, self._pause_s)
        left_s = self._began_s + pause_s - time.monotonic()
        if left_s > 0:
            stopping.wait(left_s)
        return not stopping.is_set()

    @contextmanager
    def batch(self) -> Iterator[None]:
        self._began_s = time.monotonic()
        cpu_s = time.thread_time()
        yield
        now_s = time.monotonic()
        took_s = max(time.thread_time() - cpu_s, (now_s - self._began_s) / 4)
        self._took_s += _SMOOTHING * (took_s - self._took_s)
        busy = _budget.busy(id(self), now_s)
        self._pause_s = pause_after(self._took_s, busy)


def pause_after(took_s: float, busy: int) -> float:
    """From the begin of a batch to that of the next one, with so many writes at work."""
    share = _SHARE_OF_MANY + (_SHARE - _SHARE_OF_MANY) / busy
    return min(took_s * busy / (cores() * share), _LONGEST_S)
