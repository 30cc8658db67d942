"""The buffer of one input of an interval join: rows that may still find a partner (LSM tiers).

They are stored in runs: tables sorted by the hash of the key and by time, so that a batch looks its
own keys up and reads little else. A batch adds runs and changes none; four of the same level and
range of time are compacted into one of the next level. A run has rows of about one range of time,
an eighth of the interval of the join, so that expired rows are removed by whole tables. Which rows
have found a partner is stored apart (`<side>-matched`, a bit for each row): it changes, and they do
not.

    document   {"runs": [{"name": "left-7", "stretch": 3245, "level": 1, "rows": 8192,
                          "least": …, "last": …}], "made": 9}         times in microseconds
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.pipelines.operators.runtime.contract import TIME, State
from headwater.pipelines.operators.state.column_evolution import with_columns_of

_RANGES: Final = 8  # ranges of time that the interval of a join is divided into
_LEAST_RANGE_US: Final = 1_000_000
_MOST_PIECES: Final = 8  # that the rows of a batch are divided into, however long their time
_FAN_IN: Final = 4  # runs of the same range and level are compacted

Int64s = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(eq=False)
class Run:
    """Rows sorted by hash and time; all have a key."""

    rows: pa.Table
    hashes: Int64s
    times: Int64s
    matched: Flags | None  # None: not needed, of an inner side
    is_changed: bool = False  # whether `matched` is

    def mark(self, which: Int64s) -> None:
        if self.matched is not None and len(which):
            self.matched[which] = True
            self.is_changed = True

    def only(self, which: Flags) -> "Run":
        if which.all():
            return self
        matched = None if self.matched is None else self.matched[which]
        rows = self.rows.filter(pa.array(which))
        return Run(rows, self.hashes[which], self.times[which], matched)


def sorted_run(rows: pa.Table, hash_column: str, matched: Flags | None) -> Run:
    hashes, times = _numbers(rows, hash_column), _numbers(rows, TIME)
    order = np.lexsort((times, hashes))
    return Run(
        rows.combine_chunks().take(pa.array(order)),
        hashes[order],
        times[order],
        None if matched is None else matched[order],
    )


class JoinBuffer:
    """The buffered rows of one side, before and after one batch."""

    def __init__(
        self,
        state: State,
        side: str,
        schema: pa.Schema,
        key: Collection[str],
        hash_column: str,
        interval_us: int,
        *,
        is_outer: bool,
    ) -> None:
        """`schema`: of rows that are added."""
        self._state = state
        self._side = side
        self._schema = schema
        self._key = key
        self._hash_column = hash_column
        self._range_us = max(interval_us // _RANGES, _LEAST_RANGE_US)
        self._is_outer = is_outer
        self._document = state.document.setdefault(_document_name(side), {"runs": [], "made": 0})
        self._loaded: dict[str, Run] = {}
        self._bits = _matched_bits(state, side) if is_outer else {}
        self._has_new_bits = False

    def within(self, least_us: int, last_us: int) -> Iterator[Run]:
        """Runs that may have rows between these times."""
        for entry in self._entries:
            if entry["least"] <= last_us and least_us <= entry["last"]:
                yield self._run(entry)

    def expire(self, limit_us: int) -> Iterator[pa.Table]:
        """Drops rows before the limit; gives those of an outer side that found no partner, each
        once.
        """
        for entry in [entry for entry in self._entries if entry["least"] < limit_us]:
            if self._is_outer:
                run = self._run(entry)
                assert run.matched is not None
                alone = np.flatnonzero((run.times < limit_us) & ~run.matched)
                if len(alone):
                    yield run.rows.take(pa.array(alone))
                    run.mark(alone)
            if entry["last"] < limit_us:
                self._remove(entry)

    def add(self, run: Run, limit_us: int) -> None:
        """`limit_us`: as it was given to `expire`."""
        if not len(run.times):
            return
        ranges = run.times // self._range_us
        shift = 0
        while (ranges.max() >> shift) - (ranges.min() >> shift) >= _MOST_PIECES:
            shift += 1
        ranges = ranges >> shift << shift
        for range_ in np.unique(ranges).tolist():
            self._put(run.only(ranges == range_), range_, 0)
            self._merge(range_, limit_us)

    def save(self) -> None:
        if not self._is_outer:
            return
        for entry in self._entries:
            run = self._loaded.get(entry["name"])
            if run is not None and run.is_changed:
                assert run.matched is not None
                self._bits[entry["name"]] = np.packbits(run.matched).tobytes()
                self._has_new_bits = True
        if self._has_new_bits:
            _put_matched_bits(self._state, self._side, self._bits)

    def _merge(self, range_: int, limit_us: int) -> None:
        level = 0
        while True:
            alike = [e for e in self._entries if e["stretch"] == range_ and e["level"] == level]
            if len(alike) < _FAN_IN:
                return
            runs = [self._run(entry) for entry in alike]
            runs = [run.only(run.times >= limit_us) for run in runs]
            for entry in alike:
                self._remove(entry)
            matched = None
            if self._is_outer:
                matched = np.concatenate([run.matched for run in runs if run.matched is not None])
            rows = pa.concat_tables([run.rows for run in runs])
            level += 1
            self._put(sorted_run(rows, self._hash_column, matched), range_, level)

    def _put(self, run: Run, range_: int, level: int) -> None:
        if not len(run.times):
            return
        name = f"{self._side}-{self._document['made']}"
        self._document["made"] += 1
        entry = {
            "name": name,
            "stretch": range_,
            "level": level,
            "rows": len(run.times),
            "least": int(run.times.min()),
            "last": int(run.times.max()),
        }
        self._entries.append(entry)
        run.is_changed = True
        self._loaded[name] = run
        self._state.put(name, run.rows)

    def _remove(self, entry: dict[str, Any]) -> None:
        self._entries.remove(entry)
        self._state.put(entry["name"], None)
        self._loaded.pop(entry["name"], None)
        if self._bits.pop(entry["name"], None) is not None:
            self._has_new_bits = True

    @property
    def _entries(self) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self._document["runs"]
        return entries

    def _run(self, entry: dict[str, Any]) -> Run:
        name = entry["name"]
        if name not in self._loaded:
            rows = self._state.table(name)
            assert rows is not None
            rows = with_columns_of(self._schema, rows, self._key)
            matched = None
            if self._is_outer:
                bits = np.frombuffer(self._bits[name], np.uint8)
                matched = np.unpackbits(bits, count=len(rows)).astype(np.bool_)
            hashes, times = _numbers(rows, self._hash_column), _numbers(rows, TIME)
            self._loaded[name] = Run(rows, hashes, times, matched)
        return self._loaded[name]


def rescale_join_buffer(
    before: Sequence[State], after: State, side: str, is_of_share: Callable[[pa.Table], Flags]
) -> None:
    """The rows of a share (contract.Rescalable) in the runs that they are in."""
    runs: list[dict[str, Any]] = []
    bits: dict[str, bytes] = {}
    for state in before:
        bits_before = _matched_bits(state, side)
        for entry in state.document.get(_document_name(side), {}).get("runs", ()):
            rows = state.table(entry["name"])
            assert rows is not None
            which = is_of_share(rows)
            if not which.any():
                continue
            name = f"{side}-{len(runs)}"
            times = _numbers(rows, TIME)[which]
            least, last = int(times.min()), int(times.max())
            changed = {"name": name, "rows": len(times), "least": least, "last": last}
            runs.append(entry | changed)
            after.put(name, rows.filter(pa.array(which)))
            if entry["name"] in bits_before:
                stored = np.frombuffer(bits_before[entry["name"]], np.uint8)
                bits[name] = np.packbits(np.unpackbits(stored, count=len(rows))[which]).tobytes()
    after.document[_document_name(side)] = {"runs": runs, "made": len(runs)}
    if bits:
        _put_matched_bits(after, side, bits)


def _document_name(side: str) -> str:
    return f"{side}-kept"


def _matched_bits(state: State, side: str) -> dict[str, bytes]:
    table = state.table(f"{side}-matched")
    if table is None:
        return {}
    return dict(zip(table["run"].to_pylist(), table["bits"].to_pylist(), strict=True))


def _put_matched_bits(state: State, side: str, bits: dict[str, bytes]) -> None:
    table = pa.table({"run": list(bits), "bits": list(bits.values())}) if bits else None
    state.put(f"{side}-matched", table)


def _numbers(rows: pa.Table, name: str) -> Int64s:
    column = rows[name].cast(pa.int64())
    one = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    numbers: Int64s = one.to_numpy()
    return numbers
