"""A budget of bytes in memory, shared by many requests."""

import asyncio
from collections import deque


class ByteBudget:
    """For the event loop's thread."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self.used_bytes = 0

    def try_take(self, size_bytes: int) -> bool:
        """False, and nothing is taken, if there is no room."""
        if self.used_bytes + size_bytes > self._max_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    async def take(self, size_bytes: int) -> None:
        """When there is room, in the order of those who wait. More than all of it counts as all."""
        size_bytes = min(size_bytes, self._max_bytes)
        if not self._waiting and self.try_take(size_bytes):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, size_bytes))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(size_bytes)
            raise

    def give(self, size_bytes: int) -> None:
        self.used_bytes -= min(size_bytes, self._max_bytes)
        while self._waiting:
            turn, wanted_bytes = self._waiting[0]
            if not turn.done():
                if not self.try_take(wanted_bytes):
                    return
                turn.set_result(None)
            self._waiting.popleft()
