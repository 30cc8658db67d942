"""A deadline that is pushed back often and reached rarely."""

from collections.abc import Callable

from headwater.clock import Clock, Timer

# Timers may fire a hair early, and sums of floats are not exact.
_TOLERANCE_S = 0.001


class Deadline:
    """Calls `expired` once `push` has not been called for the delay of the last call.

    Every heartbeat pushes one of these, so pushing back only records the new time: the one timer
    underneath looks at it when it fires, and sets itself again for the rest.
    """

    __slots__ = ("_at_s", "_clock", "_expired", "_timer", "_timer_at_s")

    def __init__(self, clock: Clock, expired: Callable[[], None]) -> None:
        self._clock = clock
        self._expired = expired
        self._at_s = 0.0
        self._timer: Timer | None = None
        self._timer_at_s = 0.0

    def push(self, delay_ms: int) -> None:
        delay_s = delay_ms / 1000
        self._at_s = self._clock.monotonic_s() + delay_s
        if self._timer is not None:
            if self._timer_at_s <= self._at_s:
                return
            self._timer.cancel()
        self._set(delay_s)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, delay_s: float) -> None:
        self._timer_at_s = self._at_s
        self._timer = self._clock.call_later(delay_s, self._fire)

    def _fire(self) -> None:
        self._timer = None
        left_s = self._at_s - self._clock.monotonic_s()
        if left_s > _TOLERANCE_S:
            self._set(left_s)
        else:
            self._expired()
