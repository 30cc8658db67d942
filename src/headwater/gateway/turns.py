"""Turns: work in threads that must not overlap, although who waits for it may be cancelled.

A client that disconnects cancels what waits for it on the event loop. A thread that works for it
goes on: its turn ends when it does, not when nobody waits any longer.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

_T = TypeVar("_T")


async def in_turn(turn: asyncio.Lock | asyncio.Semaphore, work: Callable[[], Awaitable[_T]]) -> _T:
    """What `work()` returns, when the turn has come."""
    await turn.acquire()
    task = asyncio.ensure_future(work())

    def ended(done: "asyncio.Future[_T]") -> None:
        turn.release()
        if not done.cancelled():
            done.exception()  # is that of who waits; if nobody does, it has been seen

    task.add_done_callback(ended)
    return await asyncio.shield(task)
