"""A clock that a test advances."""

import heapq
import itertools
from collections.abc import Callable
from typing import Any


class _FakeTimer:
    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.callback = callback
        self.args = args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeClock:
    """Stands still until `advance`, which fires the timers that fall due, in order of time."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = now_ms
        self._elapsed_s = 0.0
        self._timers: list[tuple[float, int, _FakeTimer]] = []
        self._ids = itertools.count()

    def now_ms(self) -> int:
        return self._start_ms + round(self._elapsed_s * 1000)

    def monotonic_s(self) -> float:
        return self._elapsed_s

    def call_later(self, delay_s: float, callback: Callable[..., Any], *args: Any) -> _FakeTimer:
        timer = _FakeTimer(callback, args)
        heapq.heappush(self._timers, (self._elapsed_s + delay_s, next(self._ids), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Moves time on, firing on the way every timer that falls due (also newly set ones)."""
        target_s = self._elapsed_s + seconds
        while self._timers and self._timers[0][0] <= target_s:
            due_s, _, timer = heapq.heappop(self._timers)
            self._elapsed_s = max(self._elapsed_s, due_s)
            if not timer.cancelled:
                timer.callback(*timer.args)
        self._elapsed_s = target_s
