"""The clock of Headwater's parts, as an interface, so that a test can advance it.

`headwater.testing.FakeClock` is the other implementation.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol


class Timer(Protocol):
    """Something that will happen unless it is cancelled."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Wall time for records, monotonic time for durations, and timers on the event loop."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, as Kafka's timestamps."""
        ...

    def monotonic_s(self) -> float: ...

    def call_later(self, delay_s: float, callback: Callable[..., Any], *args: Any) -> Timer:
        """Calls `callback(*args)` on the event loop, once, no sooner than `delay_s` from now."""
        ...


class SystemClock:
    """The machine's own clock. Timers need a running event loop."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def call_later(self, delay_s: float, callback: Callable[..., Any], *args: Any) -> Timer:
        return asyncio.get_running_loop().call_later(delay_s, callback, *args)


async def sleep(clock: Clock, delay_s: float) -> None:
    """Waits until `clock` has advanced by that much."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not over.done():
            over.set_result(None)

    timer = clock.call_later(delay_s, wake)
    try:
        await over
    finally:
        timer.cancel()
