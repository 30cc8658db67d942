"""Waiting fetches of a share partition: woken some at a time, the longest waiting first.

Hundreds of idle consumers may wait for one record, and one will get it. So a few are woken, and
each of them, when it has taken something or found nothing, wakes the next as long as there is more.
A fetch that was awake when something came has seen it, or passes it on; none is left out.
"""

from collections import deque
from collections.abc import Callable

AT_ONCE = 8

Wake = Callable[[], None]


class Waiters:
    """See the module."""

    __slots__ = ("_turn", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[Wake, None] = {}
        self._turn: deque[Wake] = deque()  # not woken yet since something came

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, wake: Wake) -> None:
        self._waiting[wake] = None

    def discard(self, wake: Wake) -> None:
        self._waiting.pop(wake, None)

    def wake(self) -> None:
        """Something may be had."""
        self._turn = deque(self._waiting)
        self._wake(AT_ONCE)

    def wake_all(self) -> None:
        for wake in tuple(self._waiting):
            wake()

    def pass_on(self, is_more: Callable[[], bool]) -> None:
        """To be called by a fetch that was woken, when it waits again or ends."""
        if self._turn:
            if is_more():
                self._wake(1)
            else:
                self._turn.clear()

    def _wake(self, count: int) -> None:
        while self._turn and count:
            wake = self._turn.popleft()
            if wake in self._waiting:
                wake()
                count -= 1
