"""Background tasks beside the requests: no request waits for them, but their owner's close does."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from headwater.protocol.error_codes import ApiError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Background:
    """The tasks of one owner, held until they end: the event loop has only weak references to
    tasks.

    A failure is logged with `what` failed; not an ApiError, which is an answer to a client.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    async def wait(self) -> None:
        """Until all is done, also what is started meanwhile."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def stop(self) -> None:
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ApiError):
            logger.error("%s failed", self._what, exc_info=error)
