"""Threads for whatever may wait for the disk, so that the event loop never does.

Jobs begin in the order of submission; with several threads they may end in another.
"""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)


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
            del item, job, args  # a parked thread must not keep a request's buffer alive
