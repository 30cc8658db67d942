"""Search for records in a whole topic: by key, value, header and JSON path, newest first.

A search runs in a thread of its own, reads offset ranges of all partitions by the bulk client, from
their ends to their starts, and compares columns instead of records: some hundred thousand to a
million records a second. It ends when it has found enough, has read everything, is cancelled, or no
page has asked for it for a while.
"""

import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import orjson

from headwater import extras
from headwater.console.topics.records import (
    COLUMNS,
    PREVIEW_BYTES,
    Record,
    at_time,
    bounds,
    opened,
    records_of,
    slices,
)
from headwater.console.web.access import Access
from headwater.errors import DataLost, HeadwaterError, RequestRefused, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.client.reading.fetching import Fetcher

MOST_FOUND: Final = 1000
_MOST_RUNNING, _MOST_RUNNING_OF_USER = 4, 2
_MOST_RETAINED, _MOST_RETAINED_OF_USER = 16, 8  # each has some MiB at most
_ABANDONED_S: Final = 120.0  # after which a search that no page asks for ends
_RANGE_OFFSETS: Final = 200_000  # read at a time

_PLAIN: Final = re.compile(r"[A-Za-z0-9_ .:-]+")
_NUMBER: Final = re.compile(r"[0-9.eE+-]+")
_STEP: Final = re.compile(r"\.?([^.\[\]]+)|\[(\d{1,9})\]")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The conditions of a search: all must hold; empty ones do not count."""

    key: str = ""
    key_is_whole: bool = True
    value: str = ""
    ignore_case: bool = False
    header: str = ""  # its name
    header_value: str = ""
    path: str = ""  # after.country, items[0].sku
    path_value: str = ""
    partition: int | None = None
    since_ms: int | None = None

    def check(self) -> None:
        """Raises UsageError."""
        if not any((self.key, self.value, self.header, self.header_value, self.path)):
            raise UsageError("there is nothing to look for", hint="fill in a field")
        if self.path:
            path_steps(self.path)

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


class Search:
    """One search and what it has found. Read by the event loop, written by its thread."""

    def __init__(self, access: Access, topic: str, partitions: int, wanted: Wanted) -> None:
        self.id = secrets.token_urlsafe(9)
        self.user = access.user
        self.topic = topic
        self.wanted = wanted
        self.found: list[Record] = []
        self.scanned = 0  # offsets
        self.total: int | None = None  # None: it has not begun
        self.state = "running"  # enough, done, cancelled, failed
        self.failure: HeadwaterError | None = None
        self.took_s = 0.0
        self.asked_s = time.monotonic()
        self._access = access
        self._partitions = (
            [wanted.partition] if wanted.partition is not None else [*range(partitions)]
        )
        self._begun_s = time.monotonic()
        self._cancelled = threading.Event()
        self._fetcher: Fetcher | None = None
        self._thread = threading.Thread(target=self._run, name="search", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    @property
    def share(self) -> float:
        return self.scanned / self.total if self.total else float(self.total == 0)

    def cancel(self) -> None:
        """It ends soon; what was found stays."""
        self._cancelled.set()

    def join(self) -> None:
        self._thread.join()

    def as_json(self) -> dict[str, Any]:
        took_s = self.took_s or time.monotonic() - self._begun_s
        return {
            "id": self.id,
            "topic": self.topic,
            "state": self.state,
            "wanted": self.wanted.as_json(),
            "scanned": self.scanned,
            "total": self.total,
            "share": self.share,
            "seconds": took_s,
            "per_s": self.scanned / took_s if took_s else 0.0,
            "found": len(self.found),
            "error": self.failure.what if self.failure else None,
            "detail": self.failure.detail if self.failure else None,
        }

    def _run(self) -> None:
        state = "failed"
        try:
            with opened(self._access) as fetcher:
                state = self._search(fetcher)
        except HeadwaterError as error:
            self.failure = error
        except Exception as error:  # reported on the page instead of lost with the thread
            self.failure = HeadwaterError(f"unexpected {type(error).__name__}", detail=str(error))
        self.took_s = time.monotonic() - self._begun_s
        self.state = state

    def _search(self, fetcher: "Fetcher") -> str:
        starts, ends = bounds(fetcher, self.topic, self._partitions)
        if self.wanted.since_ms is not None:
            since = at_time(fetcher, self.topic, self._partitions, self.wanted.since_ms)
            starts = {
                partition: max(start, since[partition]) for partition, start in starts.items()
            }
        self.total = sum(max(0, ends[partition] - start) for partition, start in starts.items())
        columns = ["key", "value", "offset", "timestamp"]
        if self.wanted.header or self.wanted.header_value:
            columns.append("headers")
        left = {partition: end for partition, end in ends.items() if end > starts[partition]}
        while left:
            for partition, end in [*left.items()]:
                first = max(starts[partition], end - _RANGE_OFFSETS)
                found = []
                for record in self._matching(fetcher, partition, first, end, columns):
                    found.append(record)
                    if len(found) > MOST_FOUND:  # the newest of the range count
                        found.pop(0)
                if self._cancelled.is_set():
                    return "cancelled"
                self.found += reversed(found)
                if len(self.found) >= MOST_FOUND:
                    del self.found[MOST_FOUND:]
                    return "enough"
                left[partition] = first
                if first <= starts[partition]:
                    del left[partition]
        return "done"

    def _matching(
        self, fetcher: "Fetcher", partition: int, first: int, end: int, columns: list[str]
    ) -> Iterator[Record]:
        scanned = self.scanned
        try:
            for batch in fetcher.read(self.topic, partition, first, end, columns=columns):
                is_abandoned = time.monotonic() - self.asked_s > _ABANDONED_S
                if self._cancelled.is_set() or is_abandoned:
                    self._cancelled.set()
                    return
                yield from records_of(matching(batch, self.wanted), partition, PREVIEW_BYTES)
                self.scanned = scanned + batch.column("offset")[-1].as_py() + 1 - first
        except DataLost:
            pass  # retention has deleted this range meanwhile: there is nothing left to find
        self.scanned = scanned + end - first


class Searches:
    """The running searches, and the last ones that have ended."""

    def __init__(self) -> None:
        self._searches: OrderedDict[str, Search] = OrderedDict()
        self._is_prepared = False

    def prepare(self) -> None:
        """Loads Arrow and what numba compiles when the form is opened, before the first search:
        it takes seconds, once.
        """
        if not self._is_prepared and not extras.missing_of("fast"):
            self._is_prepared = True
            threading.Thread(target=_load, name="prepare", daemon=True).start()

    def start(self, access: Access, topic: str, partitions: int, wanted: Wanted) -> Search:
        """Raises RequestRefused while too many are running, of all users or of this one. Without
        sign-in users cannot be distinguished, and only the total is limited. MissingExtra without
        Arrow.
        """
        wanted.check()
        extras.require("search through records", "fast")
        running = [search for search in self._searches.values() if search.is_running]
        own = [search for search in running if access.user and search.user == access.user]
        if len(running) >= _MOST_RUNNING or len(own) >= _MOST_RUNNING_OF_USER:
            raise RequestRefused(
                f"{len(own) or len(running)} searches are running",
                hint="cancel one, or wait for its end",
            )
        search = Search(access, topic, partitions, wanted)
        self._searches[search.id] = search
        if access.user:
            self._forget(_MOST_RETAINED_OF_USER, access.user)
        self._forget(_MOST_RETAINED)
        return search

    def _forget(self, most: int, user: str | None = None) -> None:
        """The oldest that have ended, beyond so many, of one user or of all."""
        of_user = [
            search for search in self._searches.values() if user is None or search.user == user
        ]
        ended = [search for search in of_user if not search.is_running]
        for search in ended[: max(len(of_user) - most, 0)]:
            del self._searches[search.id]

    def find(self, access: Access, identity: str) -> Search | None:
        """Of this user."""
        found = self._searches.get(identity)
        if found is None or found.user != access.user:
            return None
        found.asked_s = time.monotonic()
        return found

    def close(self) -> None:
        for search in self._searches.values():
            search.cancel()


def _load() -> None:
    """Reads one record, as a search does."""
    from headwater.client.reading import arrow
    from headwater.client.writing.batches import BatchBuilder
    from headwater.protocol.records import read_header

    builder = BatchBuilder()
    builder.append(b"key", b"value", [("header", b"value")], 0)
    data = memoryview(builder.build())
    for batch in arrow.to_arrow(data, [(read_header(data), 0)], 0, 1, COLUMNS):
        matching(batch, Wanted(key="key", value="value", header="header"))


def matching(batch: "pa.RecordBatch", wanted: Wanted) -> "pa.RecordBatch":
    """The rows that are wanted, in their order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def contains(column: Any, text: str) -> Any:
        found = pc.match_substring(column, text.encode(), ignore_case=wanted.ignore_case)
        return pc.fill_null(found, False)

    masks = []
    if wanted.key and wanted.key_is_whole:
        same = pc.equal(batch.column("key"), pa.scalar(wanted.key.encode(), pa.binary()))
        masks.append(pc.fill_null(same, False))
    elif wanted.key:
        masks.append(contains(batch.column("key"), wanted.key))
    if wanted.value:
        masks.append(contains(batch.column("value"), wanted.value))
    if masks:
        batch = batch.filter(reduce(pc.and_, masks))
    if batch.num_rows and (wanted.header or wanted.header_value):
        batch = batch.filter(_has_header(batch.column("headers"), wanted, contains))
    if batch.num_rows and wanted.path:
        if _is_plain(wanted.path_value):
            batch = batch.filter(contains(batch.column("value"), wanted.path_value))
        steps = path_steps(wanted.path)
        is_match = [
            _is_at(value, steps, wanted.path_value)
            for part in slices(batch)
            for value in part.column("value").to_pylist()
        ]
        batch = batch.filter(pa.array(is_match, pa.bool_()))
    return batch


def _has_header(headers: Any, wanted: Wanted, contains: Callable[[Any, str], Any]) -> Any:
    """For each record whether one of its headers is the one."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    pairs, records = pc.list_flatten(headers), pc.list_parent_indices(headers)
    masks = []
    if wanted.header:
        masks.append(pc.equal(pairs.field("name"), wanted.header))
    if wanted.header_value:
        masks.append(contains(pairs.field("value"), wanted.header_value))
    has = np.zeros(len(headers), np.bool_)
    has[records.filter(reduce(pc.and_, masks)).to_numpy()] = True
    return pa.array(has)


def _is_plain(text: str) -> bool:
    """Whether JSON has this text in one form only: letters that no encoder escapes, no number."""
    return bool(_PLAIN.fullmatch(text)) and not _NUMBER.fullmatch(text)


def path_steps(path: str) -> list[str | int]:
    """after.items[0].sku as its steps; a leading $ is ignored. Raises UsageError."""
    text = path.strip().removeprefix("$")
    steps: list[str | int] = []
    at = 0
    while at < len(text):
        step = _STEP.match(text, at)
        if step is None:
            raise UsageError(f"no JSON path: {path}", hint="for example after.items[0].sku")
        steps.append(int(step[2]) if step[1] is None else step[1])
        at = step.end()
    if not steps:
        raise UsageError("the JSON path is empty", hint="for example after.country")
    return steps


_NOTHING: Final = object()


def _is_at(value: bytes | None, steps: list[str | int], text: str) -> bool:
    """Whether the JSON has `text` at this path; without a text, whether it has anything there."""
    if value is None:
        return False
    try:
        document = orjson.loads(value)
    except orjson.JSONDecodeError:
        return False
    found = _walk(document, steps)
    if found is _NOTHING and isinstance(document, dict) and "payload" in document:
        found = _walk(document["payload"], steps)  # Connect's JSON with schemas
    if found is _NOTHING:
        return False
    if not text or found == text:
        return True
    try:
        meant = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    # For Python 1 is True; for JSON it is not.
    return bool(found == meant and isinstance(found, bool) == isinstance(meant, bool))


def _walk(document: Any, steps: list[str | int]) -> Any:
    for step in steps:
        if isinstance(step, int):
            if not isinstance(document, list) or step >= len(document):
                return _NOTHING
            document = document[step]
        else:
            if not isinstance(document, dict) or step not in document:
                return _NOTHING
            document = document[step]
    return document
