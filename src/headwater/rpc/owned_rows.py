"""The rows of the partitions that a server owns, to answer questions about.

A question goes to every partition of `rpc.NAME`, which has as many as the topic that it is about.
Who takes the question of a partition reads the rows of the same partition of that topic, once, and
from then on what is new: an answer contains all that was committed when it was begun.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from headwater.client.reading.fetching import EARLIEST, LATEST, Fetcher
from headwater.errors import CallFailed, RequestRefused
from headwater.inspect.table_rows import Kind, Row, completed, step_of
from headwater.rpc.messages import Request
from headwater.settings import ClientSettings

_MAX_BYTES: Final = 512 << 20  # of all partitions of a server

Rows = Mapping[str, Any]  # the latest document of each key


class OwnedRows:
    """Of one topic. Thread-safe; a partition is asked by one thread at a time."""

    def __init__(self, bootstrap: str, login: ClientSettings, topic: str) -> None:
        self.topic = topic
        self._bootstrap = bootstrap
        self._login = login
        self._partitions: dict[int, _Partition] = {}
        self._lock = threading.Lock()

    def count(self) -> int:
        """How many partitions the topic has. Raises RequestRefused if there is none."""
        with Fetcher(self._bootstrap, self._login) as fetcher:
            if not fetcher.exists(self.topic):
                raise RequestRefused(f"there is no topic {self.topic}")
            return fetcher.partitions(self.topic)

    def handler(self, function: Callable[[Rows, Any], Any]) -> Callable[[Request], Any]:
        def answered(request: Request) -> Any:
            with self._lock:
                owned = self._partitions.setdefault(request.partition, _Partition())
            try:
                with owned.lock:
                    if owned.fetcher is None:
                        owned.fetcher = Fetcher(self._bootstrap, self._login)
                    owned.read(self.topic, request.partition, self._room_bytes())
                    return function(owned.documents, request.body)
            finally:
                if owned.is_left:
                    owned.leave()

        return answered

    def keep(self, partitions: list[int]) -> None:
        """Forgets the rows of all others: another server owns them now."""
        with self._lock:
            for number in [one for one in self._partitions if one not in partitions]:
                self._partitions.pop(number).leave()

    def close(self) -> None:
        self.keep([])

    def _room_bytes(self) -> int:
        with self._lock:
            return _MAX_BYTES - sum(owned.size_bytes for owned in self._partitions.values())


class _Partition:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.fetcher: Fetcher | None = None
        self.documents: dict[str, Any] = {}
        self.size_bytes = 0
        self.is_left = False
        self._rows: dict[bytes, Row] = {}
        self._at = 0

    def leave(self) -> None:
        """A thread that is at work with it leaves it afterwards."""
        self.is_left = True
        if self.lock.acquire(blocking=False):
            try:
                if self.fetcher is not None:
                    self.fetcher.close()
                self.fetcher = None
            finally:
                self.lock.release()

    def read(self, topic: str, partition: int, room_bytes: int) -> None:
        """Up to the end as it is now."""
        assert self.fetcher is not None
        end = self.fetcher.offsets([(topic, partition)], LATEST)[topic, partition]
        start = self.fetcher.offsets([(topic, partition)], EARLIEST)[topic, partition]
        if end < self._at:  # the topic was deleted and created again
            self._clear()
            self._at = 0
        for record in self.fetcher.records(topic, partition, max(self._at, start), end):
            step = step_of(partition, record)
            name = step.key.decode(errors="replace")
            if step.kind is Kind.CLEAR:
                self._clear()
            elif step.kind is not Kind.NO_ROW:
                before = self._rows.pop(step.key, None)
                self.size_bytes -= 0 if before is None else before.size_bytes * 2
                self.documents.pop(name, None)
                if step.kind is Kind.PUT:
                    row = Row(step.key, completed(step.json, before), partition, step.offset)
                    self._rows[step.key] = row
                    self.documents[name] = row.document()
                    self.size_bytes += row.size_bytes * 2
                    room_bytes -= row.size_bytes * 2
            if room_bytes < 0:
                self._clear()
                self._at = 0
                raise CallFailed(
                    f"the rows of {topic} do not fit into the memory of this server",
                    detail=f"all partitions of it together have more than {_MAX_BYTES:,} bytes",
                )
            self._at = record.offset + 1
        self._at = max(self._at, end)

    def _clear(self) -> None:
        self._rows, self.documents, self.size_bytes = {}, {}, 0
