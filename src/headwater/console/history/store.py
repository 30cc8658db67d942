"""The samples of a week in one SQLite file, bounded in bytes.

    series  (id, name, since, seen)     at most MOST_SERIES; the id is a place in `numbers`
    sample  (resolution, at, numbers)   one row per moment: a float32 for each series, NaN for none

The fine samples of some hours are followed by their means, up to a week back. A name that is new
when all places are taken replaces the one that was not sampled for longest. Bound: 2,736 moments
(3 h / 15 s + 7 d / 5 min) of 4 bytes for each of 4,096 series, 46 MB with the rest of the file.

A sample that is lost in a power cut, or that a full disk does not take, is a gap in a plot. A
damaged file is replaced by an empty one. Several consoles of one directory share the file: the
first that samples a moment writes it.
"""

import logging
import math
import sqlite3
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from headwater.console.history.ranges import COARSE_FOR_S, COARSE_S, FINE_FOR_S, FINE_S, Range

log = logging.getLogger(__name__)

MOST_SERIES: Final = 4096
_FINE, _COARSE = 0, 1
_BUSY_S: Final = 5.0
_SEEN_EVERY_S: Final = 600  # how exactly the last sample of a series is noted
_FORMAT: Final = 1
_MOST_WATCHED: Final = 100
_SCHEMA: Final = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS series (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, since INTEGER NOT NULL, seen INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS sample (
    resolution INTEGER NOT NULL, at INTEGER NOT NULL, numbers BLOB NOT NULL,
    PRIMARY KEY (resolution, at)
);
"""


class Points(NamedTuple):
    """`at` are seconds since 1970, evenly spaced; a series has a value for each, None for none."""

    at: list[int]
    series: dict[str, list[float | None]]


class History:
    """Used by any thread. Without a path the samples are in memory, and gone with the process."""

    def __init__(self, path: Path | None, *, most_series: int = MOST_SERIES) -> None:
        """Raises OSError if the directory cannot be made."""
        self._path = path
        self._most_series = most_series
        self._lock = threading.Lock()
        self._has_failed = False
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._db = self._opened()

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def add(self, values: Mapping[str, float], at_s: float) -> None:
        """The figures of now, the most important first. A moment that has its sample is left."""
        at = int(at_s) // FINE_S * FINE_S
        with self._guarded() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                self._add(db, values, at)
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    def read(self, names: Sequence[str], range_: Range, now_s: float) -> Points:
        """The means of each `range_.step_s`, from the first sample within the range on."""
        step = range_.step_s
        last = int(now_s) // step
        first = last - range_.length_s // step + 1
        rows: list[tuple[int, bytes]] = []
        places: dict[str, tuple[int, int]] = {}
        with self._guarded() as db:
            places = _places(db, names)
            rows = _rows(db, first * step, is_fine=range_.is_fine)
        if not rows:
            return Points([], {name: [] for name in names})
        first = max(first, rows[0][0] // step)
        grid = range(first, last + 1)
        sums = {name: [0.0] * len(grid) for name in places}
        counts = {name: [0] * len(grid) for name in places}
        for at, packed in rows:
            numbers = _unpacked(packed)
            point = at // step - first
            if not 0 <= point < len(grid):
                continue  # of a clock that was ahead
            for name, (place, since) in places.items():
                if at >= since and place < len(numbers) and not math.isnan(numbers[place]):
                    sums[name][point] += numbers[place]
                    counts[name][point] += 1
        return Points(
            [number * step for number in grid],
            {
                name: [
                    total / count if count else None
                    for total, count in zip(sums[name], counts[name], strict=True)
                ]
                if name in places
                else [None] * len(grid)
                for name in names
            },
        )

    def _add(self, db: sqlite3.Connection, values: Mapping[str, float], at: int) -> None:
        if db.execute(
            "SELECT 1 FROM sample WHERE resolution = ? AND at >= ?", (_FINE, at)
        ).fetchone():
            newest = int(db.execute("SELECT max(at) FROM sample").fetchone()[0])
            if newest <= at + FINE_FOR_S:
                return
            db.execute("DELETE FROM sample WHERE at > ?", (at,))  # the clock was ahead
            db.execute("DELETE FROM series WHERE since > ?", (at,))
        before = db.execute("SELECT max(at) FROM sample WHERE resolution = ?", (_FINE,)).fetchone()
        if before[0] is not None and before[0] // COARSE_S < at // COARSE_S:
            _summarise(db, before[0] // COARSE_S * COARSE_S)
        places = self._assigned(db, values, at)
        numbers = array("f", [math.nan]) * (max(places.values(), default=-1) + 1)
        for name, place in places.items():
            numbers[place] = values[name]
        db.execute("INSERT INTO sample VALUES (?, ?, ?)", (_FINE, at, numbers.tobytes()))
        for resolution, since in ((_FINE, at - FINE_FOR_S), (_COARSE, at - COARSE_FOR_S)):
            db.execute("DELETE FROM sample WHERE resolution = ? AND at < ?", (resolution, since))

    def _assigned(
        self, db: sqlite3.Connection, values: Mapping[str, float], at: int
    ) -> dict[str, int]:
        """The place of each series, as far as there are places."""
        rows = db.execute("SELECT name, id, seen FROM series").fetchall()
        existing = {name: (place, seen) for name, place, seen in rows}
        late = [
            (at, existing[name][0])
            for name in values
            if name in existing and existing[name][1] <= at - _SEEN_EVERY_S
        ]
        db.executemany("UPDATE series SET seen = ? WHERE id = ?", late)
        new = [name for name in values if name not in existing][: self._most_series]
        taken = {place for place, _ in existing.values()}
        free = [place for place in range(self._most_series) if place not in taken] if new else []
        if len(free) < len(new):
            unused = sorted((seen, place) for name, place, seen in rows if name not in values)
            free += [place for _, place in unused[: len(new) - len(free)]]
        assigned = dict(zip(new, free, strict=False))
        # A place that nobody had: the mean of which this sample will be a part is its own, too.
        begin = at // COARSE_S * COARSE_S
        db.executemany(
            "INSERT OR REPLACE INTO series VALUES (?, ?, ?, ?)",
            [
                (place, name, at if place in taken else begin, at)
                for name, place in assigned.items()
            ],
        )
        return {
            name: existing[name][0] if name in existing else assigned[name]
            for name in values
            if name in existing or name in assigned
        }

    @contextmanager
    def _guarded(self) -> Iterator[sqlite3.Connection]:
        """What fails is not read or written; a damaged file is replaced."""
        with self._lock:
            try:
                yield self._db
                self._has_failed = False
            except sqlite3.Error as error:
                if not self._has_failed:
                    log.warning("the history %s cannot be used now: %s", self._path, error)
                self._has_failed = True
                if type(error) is sqlite3.DatabaseError:  # malformed, or no database
                    self._db.close()
                    self._db = self._opened()

    def _opened(self) -> sqlite3.Connection:
        for is_last in (False, True):
            db = sqlite3.connect(
                self._path or ":memory:",
                timeout=_BUSY_S,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                if db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                    raise sqlite3.DatabaseError("it is damaged")
                (version,) = db.execute("PRAGMA user_version").fetchone()
                if version not in (0, _FORMAT):
                    raise sqlite3.DatabaseError(f"its format is {version}")
                db.executescript(f"{_SCHEMA}PRAGMA user_version = {_FORMAT};")
            except sqlite3.DatabaseError as error:
                db.close()
                if is_last or self._path is None or isinstance(error, sqlite3.OperationalError):
                    log.warning("the history %s is not used: %s", self._path, error)
                    self._path = None
                    return self._opened()
                log.warning("the history %s begins again: %s", self._path, error)
                for suffix in ("", "-wal", "-shm"):
                    self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
                continue
            if self._path is not None:
                self._path.chmod(0o600)
            return db
        raise AssertionError


class Histories:
    """One history for each cluster, in a directory: a console may be started for another cluster
    than the time before. Without a directory they are in memory.
    """

    def __init__(self, directory: Path | None, *, most_series: int = MOST_SERIES) -> None:
        self._directory = directory
        self._most_series = most_series
        self._lock = threading.Lock()
        self._histories: dict[str, History] = {}
        self._watched: OrderedDict[str, None] = OrderedDict()

    def of(self, cluster_id: str | None) -> History:
        """Opened when it is first used; blocks."""
        name = "".join(c for c in cluster_id or "" if c.isalnum() or c in "-_")[:64]
        with self._lock:
            if name not in self._histories:
                path = self._directory / f"history-{name}.db" if self._directory else None
                self._histories[name] = History(path, most_series=self._most_series)
            return self._histories[name]

    def watch(self, name: str) -> None:
        """What a page showed has samples from now on, also if it is not among the busiest."""
        self._watched[name] = None
        self._watched.move_to_end(name)
        while len(self._watched) > _MOST_WATCHED:
            self._watched.popitem(last=False)

    @property
    def watched(self) -> frozenset[str]:
        return frozenset(self._watched)

    def close(self) -> None:
        with self._lock:
            for history in self._histories.values():
                history.close()


def _places(db: sqlite3.Connection, names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """The place of each series, and since when it has it."""
    found = {}
    for name in names:
        row = db.execute("SELECT id, since FROM series WHERE name = ?", (name,)).fetchone()
        if row is not None:
            found[name] = (row[0], row[1])
    return found


def _rows(db: sqlite3.Connection, since: int, *, is_fine: bool) -> list[tuple[int, bytes]]:
    """In the order of time. Coarse ones are followed by the fine ones that have no mean yet."""
    if not is_fine:
        coarse = _moments(db, _COARSE, since)
        if coarse:
            since = coarse[-1][0] + COARSE_S
        return [*coarse, *_moments(db, _FINE, since)]
    return _moments(db, _FINE, since)


def _moments(db: sqlite3.Connection, resolution: int, since: int) -> list[tuple[int, bytes]]:
    return db.execute(
        "SELECT at, numbers FROM sample WHERE resolution = ? AND at >= ? ORDER BY at",
        (resolution, since),
    ).fetchall()


def _summarise(db: sqlite3.Connection, begin: int) -> None:
    """The means of the samples from `begin` on, for so long as one coarse sample is."""
    every = [
        _unpacked(packed) for at, packed in _moments(db, _FINE, begin) if at < begin + COARSE_S
    ]
    size = max(len(numbers) for numbers in every)
    sums, counts = [0.0] * size, [0] * size
    for numbers in every:
        for place, number in enumerate(numbers):
            if not math.isnan(number):
                sums[place] += number
                counts[place] += 1
    means = array(
        "f",
        [total / count if count else math.nan for total, count in zip(sums, counts, strict=True)],
    )
    db.execute("INSERT OR REPLACE INTO sample VALUES (?, ?, ?)", (_COARSE, begin, means.tobytes()))


def _unpacked(packed: bytes) -> "array[float]":
    numbers = array("f")
    numbers.frombytes(packed[: len(packed) // 4 * 4])
    return numbers
