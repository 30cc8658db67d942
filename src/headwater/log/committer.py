"""The threads that commit: side by side for a few partitions, together for many.

A sync costs about the same for one file as for all of them. So while few partitions wait, each is
written and synced on its own, by several threads at once; when many do, one thread takes them all,
writes them and syncs the file system once. Measured for 1,000 partitions with a small batch each:
20 ms instead of 200.
"""

import logging
import queue
import threading
from collections.abc import Callable

from headwater.log import segment as segments_on_disk
from headwater.log.commit import Commit
from headwater.log.segment import SYNC_TOGETHER, Storage

log = logging.getLogger(__name__)

THREADS = 4
# At most so many at a time, so that the first of them does not wait for all the others' writes.
SYNC_TOGETHER_MAX = 512


class Committer:
    """Takes commits from the event loop and gives them back to it when they are durable."""

    def __init__(self, storage: Storage, on_loop: Callable[..., None]) -> None:
        self._storage = storage
        self._on_loop = on_loop
        self._waiting: queue.SimpleQueue[Commit | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._unfinished = 0  # only the event loop counts
        self._can_sync_together = storage.files.can_sync_together()

    def submit(self, commit: Commit) -> None:
        """`commit.finish` is called on the event loop in the end, whatever happens."""
        self._waiting.put(commit)
        self._unfinished += 1
        if self._unfinished > len(self._threads) < THREADS:
            name = f"commit-{len(self._threads)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Finishes what was submitted, then ends the threads."""
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _run(self) -> None:
        while True:
            first = self._waiting.get()
            if first is None:
                return
            commits = [first]
            if self._can_sync_together and self._waiting.qsize() >= SYNC_TOGETHER:
                self._take_more(commits)
            try:
                self._commit(commits)
            except Exception as error:  # a bug: nobody may take what was not synced for durable
                log.exception("a commit failed")
                for commit in commits:
                    commit.error = commit.error or OSError(f"internal: {error!r}")
            self._on_loop(self._finish, commits)
            del first, commits  # a parked thread must not keep requests' buffers alive

    def _take_more(self, commits: list[Commit]) -> None:
        while len(commits) < SYNC_TOGETHER_MAX:
            try:
                commit = self._waiting.get_nowait()
            except queue.Empty:
                return
            if commit is None:  # the end: for another thread, or for this one the next time
                self._waiting.put(None)
                return
            commits.append(commit)

    def _commit(self, commits: list[Commit]) -> None:
        for commit in commits:
            commit.write()
        to_sync = [commit for commit in commits if commit.needs_sync]
        paths = [path for commit in to_sync for path in commit.paths_to_sync]
        if len(paths) >= SYNC_TOGETHER and segments_on_disk.sync_together(self._storage, paths):
            return
        for commit in to_sync:
            commit.sync()

    def _finish(self, commits: list[Commit]) -> None:
        self._unfinished -= len(commits)
        for commit in commits:
            try:
                commit.finish(commit)
            except Exception:  # the others wait for their answers too
                log.exception("what follows a commit failed")
