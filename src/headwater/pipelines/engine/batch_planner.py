"""Where the next batch of a write ends: at a consistent cut (cuts.py), within its bounds."""

import time
from collections.abc import Sequence
from typing import Any, Final

from headwater.pipelines.engine.cuts import FollowedCuts
from headwater.pipelines.engine.tailed_source import MOST_ROWS, TailedSource
from headwater.pipelines.source.log_ends import Offsets
from headwater.pipelines.source.options import offsets_from_json
from headwater.pipelines.source.progress import split_end_markers

Ends = list[dict[str, Any]]  # of each source, as the checkpoint has them

_PATIENCE_S: Final = 1.0  # until the broker is asked why there is no cut
_TABLE_PATIENCE_S: Final = 3.0  # for the rest of a transaction
_ALL_ROWS: Final = 2**62
# A transaction is one batch, also if it is so much larger than batches in the driver are.
_LARGE_TRANSACTION: Final = 8


class BatchPlanner:
    """Of all sources of one write. To be used by one thread."""

    def __init__(
        self,
        sources: Sequence[TailedSource],
        cuts: FollowedCuts | None,
        *,
        backlog_rows: int | None = None,
    ) -> None:
        """Without `cuts`, a transaction may be in two batches. `backlog_rows`: batches are those of
        a query that works off a backlog, with so many rows at most, and wait for nothing.
        """
        self._sources = sources
        self._cuts = cuts
        self._backlog_rows = backlog_rows
        self._has_resolved = False
        self._waits_since_s: float | None = None  # for a cut
        self._table_waits_since_s: float | None = None

    def next_ends(self, starts: Ends) -> Ends:
        """Equal to `starts` if there is nothing, or no cut behind what has arrived."""
        if self._cuts is None:
            return self._ends(starts, {})
        begins: Offsets = {}
        arrived: Offsets = {}
        is_news = False
        for source, start in zip(self._sources, starts, strict=True):
            found = source.arrived(start)
            is_news = is_news or source.is_news(start, found)
            for one, (begin, end) in found.items():
                begins[one] = min(begin, begins.get(one, begin))
                arrived[one] = end
        if not is_news:  # the records that have woken this write are of other topics
            self._waits_since_s = self._table_waits_since_s = None
            return starts
        most_rows = self._backlog_rows or MOST_ROWS
        limits = self._cuts.limits(begins, arrived, most_rows)
        ends = self._ends(starts, limits)
        while not self._have_reached(ends, limits):
            most_rows = self._fewer_rows(most_rows, begins, limits, ends)
            fewer = self._cuts.limits(begins, arrived, most_rows)
            if fewer == limits:
                ends = self._of_one_transaction(starts, limits, ends)
                break
            limits, ends = fewer, self._ends(starts, fewer)
        if self._backlog_rows is not None:
            if ends == starts and self._is_resolving(self._cuts, begins, arrived):
                return self.next_ends(starts)
            return ends
        if self._is_table_arriving(self._cuts, ends, limits, begins, arrived):
            ends = starts
        self._check_progress(self._cuts, ends == starts, begins, arrived)
        return ends

    def _ends(self, starts: Ends, limits: Offsets, *, is_bounded: bool = True) -> Ends:
        return [
            source.next_end(start, limits, is_bounded=is_bounded)
            for source, start in zip(self._sources, starts, strict=True)
        ]

    def _fewer_rows(self, most_rows: int, begins: Offsets, limits: Offsets, ends: Ends) -> int:
        """After a try that was too large in bytes: about as many as fitted of it."""
        wanted = {one: at - begins[one] for one, at in limits.items() if at > begins[one]}
        fitted = min(
            (reached[one] - begins[one]) / wanted[one]
            for end in ends
            for reached in [offsets_from_json(split_end_markers(end)[0])]
            for one in reached.keys() & wanted.keys()
        )
        return max(min(int(sum(wanted.values()) * fitted), most_rows // 2), 1)

    def _have_reached(self, ends: Ends, limits: Offsets) -> bool:
        return all(
            source.has_reached(end, limits) for source, end in zip(self._sources, ends, strict=True)
        )

    def _of_one_transaction(self, starts: Ends, limits: Offsets, bounded: Ends) -> Ends:
        """It is larger than a batch. What does not fit into memory comes in parts."""
        whole = self._ends(starts, limits, is_bounded=False)
        is_oversize = any(
            source.is_oversize(start, end, times=_LARGE_TRANSACTION)
            for source, start, end in zip(self._sources, starts, whole, strict=True)
        )
        return bounded if is_oversize else whole

    def _is_table_arriving(
        self, cuts: FollowedCuts, ends: Ends, limits: Offsets, begins: Offsets, arrived: Offsets
    ) -> bool:
        """Whether a joined table has records behind the last cut, because the next transaction has
        arrived in part. Events of this batch would be pending until the table has passed them: the
        position of the store would be past their offsets, without their rows. The rest of the
        transaction is under way, so the batch waits for it, for a moment at most.
        """
        is_short = any(
            source.has_more_of_table(end, limits)
            for source, end in zip(self._sources, ends, strict=True)
        )
        # A backlog is worked off in batches, whatever arrives meanwhile.
        if not is_short or cuts.limits(begins, arrived, _ALL_ROWS) != limits:
            self._table_waits_since_s = None
            return False
        now_s = time.monotonic()
        self._table_waits_since_s = self._table_waits_since_s or now_s
        return now_s - self._table_waits_since_s < _TABLE_PATIENCE_S

    def _is_resolving(self, cuts: FollowedCuts, begins: Offsets, arrived: Offsets) -> bool:
        """At the end of a backlog, once."""
        waiting = _waiting(begins, arrived)
        if self._has_resolved or not waiting:
            return False
        self._has_resolved = True
        cuts.resolve(waiting)
        return True

    def _check_progress(
        self, cuts: FollowedCuts, is_waiting: bool, begins: Offsets, arrived: Offsets
    ) -> None:
        """Records that have arrived and wait for a cut: is there one?"""
        waiting = _waiting(begins, arrived)
        if not is_waiting or not waiting:
            self._waits_since_s = None
        elif self._waits_since_s is None:
            self._waits_since_s = time.monotonic()
        elif time.monotonic() - self._waits_since_s > _PATIENCE_S:
            self._waits_since_s = None
            cuts.resolve(waiting)


def _waiting(begins: Offsets, arrived: Offsets) -> Offsets:
    """Ends of partitions that have records."""
    return {one: end for one, end in arrived.items() if end > begins[one]}
