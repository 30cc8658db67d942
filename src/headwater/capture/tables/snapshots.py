"""Incremental snapshots: tables read in chunks and merged into the stream of their changes.

The watermark method of DBLog (Netflix, 2020): threads read a table chunk by chunk, in the order of
its key. While a chunk is read and waits, a `Tracker` records which keys the stream touches. When
the stream has sent everything that the chunk contains, the runner publishes the chunk between two
transactions, without the rows that were touched: the topic has those as new as the chunk, or newer.
So no table is locked, a copy goes on where it was after a crash, and a key's records in the topic
never go back in time.

**Limbo.** A database may send a transaction to us before other sessions see it (PostgreSQL: while
it waits for a synchronous standby). A chunk read then lacks what the topic already has. The latest
transactions that began before the tracker are therefore remembered: unless the chunk contains all
of them it is read again.

Memory: MAX_WAITING chunks of about CHUNK_BYTES.
"""

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from headwater.capture.contract import Begin, Chunk, LogPosition, Row, Source, Table
from headwater.errors import HeadwaterError

CHUNK_BYTES: Final = 3 << 20  # of JSON
FIRST_CHUNK_ROWS: Final = 50  # the size of its rows is not measured yet
GROWTH: Final = 20  # the next chunk has at most so many times the rows
AGAIN_S: Final = 0.1  # pause before what could not be published is read again
SAMPLE_ROWS: Final = 20
MAX_WAITING: Final = 3
READERS: Final = 2
CLOSE_S: Final = 2.0
RECENT_TRANSACTIONS: Final = 4_096
MAX_TOUCHED_BYTES: Final = 16 << 20  # of keys; with more of them a chunk is read again
KEY_BYTES: Final = 80  # that Python needs for each besides
EVERYTHING: Final = b"\0everything"  # stands for all keys: the table was truncated


class Tracker:
    """Which keys of one table the stream has touched since the read of a chunk began."""

    def __init__(self) -> None:
        self.recent: tuple[Begin, ...] = ()  # transactions that began before
        self.touched: set[bytes] = set()
        self._size_bytes = 0

    @property
    def is_full(self) -> bool:
        return self._size_bytes > MAX_TOUCHED_BYTES

    def touch(self, keys: Iterable[bytes]) -> None:
        """(runner)"""
        if not self.is_full:
            for key in keys:
                if key not in self.touched:
                    self.touched.add(key)
                    self._size_bytes += len(key) + KEY_BYTES


@dataclass(slots=True)
class Copy:
    """The copying of one table."""

    table: Table
    kind: str
    after: Any
    rows: int
    trackers: list[Tracker]  # the table's; the runner looks at it for every change
    total: int | None = None
    sent: Tracker | None = None  # of an outbox: what is an event already must not be another one
    generation: int = 0  # counts how often it had to go back
    is_cancelled: bool = False


@dataclass(slots=True)
class ReadChunk:
    """A chunk that waits to be published."""

    copy: Copy
    generation: int
    began_after: Any
    chunk: Chunk
    tracker: Tracker
    rows: list[Row] = field(default_factory=list)

    def is_complete(self) -> bool:
        """Whether the topic has nothing that neither the chunk nor its tracker contains."""
        if self.tracker.is_full:
            return False
        return all(self.chunk.contains(transaction) for transaction in self.tracker.recent)


@dataclass(slots=True)
class FailedCopy:
    copy: Copy
    error: HeadwaterError


class Snapshots:
    """Reads what is to be copied, ahead of the runner by a few chunks."""

    def __init__(self, source: Source, recent: "deque[Begin]", chunk_rows: int) -> None:
        self._source = source
        self._recent = recent
        self._chunk_rows = chunk_rows
        self._room = threading.Semaphore(MAX_WAITING)
        self._jobs: queue.SimpleQueue[Copy | None] = queue.SimpleQueue()
        self._read: queue.SimpleQueue[ReadChunk | FailedCopy | BaseException] = queue.SimpleQueue()
        self._waiting: deque[ReadChunk] = deque()
        self._is_closed = threading.Event()
        self.copies: dict[str, Copy] = {}  # in progress, by table
        self._threads: list[threading.Thread] = []

    def start(self, copy: Copy) -> None:
        """(runner) Begins or resumes the copy of a table that has a key."""
        self.cancel(copy.table.id)
        self.copies[copy.table.id] = copy
        if len(self._threads) < READERS:
            name = f"snapshot-{len(self._threads)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put(copy)

    def cancel(self, table_id: str) -> None:
        """(runner)"""
        copy = self.copies.pop(table_id, None)
        if copy is not None:
            copy.is_cancelled = True
            copy.trackers.clear()

    def passed(self, position: LogPosition) -> ReadChunk | FailedCopy | None:
        """(runner) The next chunk that can be published, now that the stream is at `position`."""
        while not self._read.empty():
            item = self._read.get()
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, FailedCopy):
                return item
            self._waiting.append(item)
        for read in self._waiting:
            if not self._is_current(read):
                self._forget(read)
                return self.passed(position)
            if read.chunk.is_passed(position):
                self._forget(read)
                if read.is_complete():
                    return read
                read.copy.generation += 1
                read.copy.after = read.began_after
                self._jobs.put(read.copy)
                return self.passed(position)
        return None

    def published(self, read: ReadChunk) -> None:
        """(runner) The chunk was appended to its topic."""
        read.copy.after = read.chunk.after
        if read.chunk.after is None:
            self.copies.pop(read.copy.table.id, None)
            read.copy.trackers.clear()

    def close(self) -> None:
        """Ends the threads, after the chunk that each is reading. A read that takes long is
        not waited for.
        """
        self._is_closed.set()
        for _ in self._threads:
            self._jobs.put(None)
            self._room.release()
        until_s = time.monotonic() + CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _is_current(self, read: ReadChunk) -> bool:
        return not read.copy.is_cancelled and read.generation == read.copy.generation

    def _forget(self, read: ReadChunk) -> None:
        self._waiting.remove(read)
        if read.tracker in read.copy.trackers:
            read.copy.trackers.remove(read.tracker)
        self._room.release()

    def _run(self) -> None:
        try:
            while (copy := self._jobs.get()) is not None:
                try:
                    self._copy(copy)
                except HeadwaterError as error:
                    self._read.put(FailedCopy(copy, error))
        except BaseException as error:
            self._read.put(error)

    def _copy(self, copy: Copy) -> None:
        """(reader) Reads to the end of the table, or until the runner requests to go back."""
        generation, after, limit_rows = copy.generation, copy.after, FIRST_CHUNK_ROWS
        if generation and self._is_closed.wait(AGAIN_S):
            return
        if copy.total is None and not self._is_closed.is_set():
            copy.total = self._source.estimate_rows(copy.table)
        while (
            not self._is_closed.is_set() and not copy.is_cancelled and copy.generation == generation
        ):
            self._room.acquire()
            if self._is_closed.is_set():
                return
            tracker = Tracker()
            # First the tracker, then the transactions before it: one that begins between is both.
            copy.trackers.append(tracker)
            tracker.recent = tuple(self._recent)
            try:
                chunk = self._source.read_chunk(
                    copy.table, after, min(limit_rows, self._chunk_rows)
                )
                rows = list(chunk.rows)
            except BaseException:
                with contextlib.suppress(ValueError):  # cancelled meanwhile: they are cleared
                    copy.trackers.remove(tracker)
                self._room.release()
                raise
            self._read.put(ReadChunk(copy, generation, after, chunk, tracker, rows))
            if chunk.after is None:
                return
            after = chunk.after
            limit_rows = min(_rows_of(CHUNK_BYTES, rows), GROWTH * max(1, len(rows)))


def _rows_of(size_bytes: int, rows: list[Row]) -> int:
    """How many rows like these have that size."""
    sample = rows[:: max(1, len(rows) // SAMPLE_ROWS)]
    if not sample:
        return FIRST_CHUNK_ROWS
    try:
        sample_bytes = len(orjson.dumps(sample, default=str))
    except TypeError:  # publishing reports such a row
        return FIRST_CHUNK_ROWS
    return max(1, size_bytes * len(sample) // sample_bytes)
