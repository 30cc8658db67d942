"""Threads for work that may wait for the disk, so that the event loop never does.

Jobs begin in the order of submission; with several threads they may end in another.
"""

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


class Workers:
    """A fixed number of daemon threads, started when first needed."""

    def __init__(self, name: str, count: int) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]] | None] = (
            queue.SimpleQueue()
        )
        self._name = name
        self._count = count
        self._threads: list[threading.Thread] = []
        self._unfinished = 0  # jobs submitted and not yet done
        self._lock = threading.Lock()

    def submit(self, job: Callable[..., Any], *args: Any) -> None:
        """Runs `job(*args)` in a thread. What it raises is logged; what it returns is dropped."""
        self._jobs.put((job, args))
        with self._lock:
            self._unfinished += 1
            if self._unfinished > len(self._threads) < self._count:
                self._start_thread()

    def start(self, job: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Runs `job(*args)` in a thread; the future has what it returns or raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            result: Any = None
            failure: BaseException | None = None
            try:
                result = job(*args)
            except BaseException as error:
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: a crash in a test
                loop.call_soon_threadsafe(_settle, future, result, failure)

        self.submit(run)
        return future

    async def run(self, job: Callable[..., T], *args: Any) -> T:
        """What `job(*args)` returns or raises, run in a thread.

        A job cannot be stopped. A caller that is cancelled therefore waits for its end and holds
        its locks until then: the next holder must not write to the same file meanwhile.
        """
        future = self.start(job, *args)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
            if not future.cancelled():
                future.exception()  # counts as retrieved: no caller waits for it any more
            raise

    def close(self) -> None:
        """Finishes what was submitted, then ends the threads."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _start_thread(self) -> None:
        name = f"{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while True:
            item = self._jobs.get()
            if item is None:
                return
            job, args = item
            try:
                job(*args)
            except Exception:
                log.exception("a background job failed")
            with self._lock:
                self._unfinished -= 1
            del item, job, args  # an idle thread must not hold a request's buffer in memory


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
