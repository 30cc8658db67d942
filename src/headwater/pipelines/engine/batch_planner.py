"""Where the next batch of a write ends: at a consistent cut (cuts.py), within its bounds."""

import time
from collections.abc import Sequence
from typing import Any, Final

from headwater.pipelines.engine.cuts import FollowedCuts
from headwater.pipelines.engine.tailed_source import MOST_ROWS, TailedSource
from headwater.pipelines.source.log_ends import Offsets

Ends = list[dict[str, Any]]  # of each source, as the checkpoint has them

_PATIENCE_S: Final = 1.0  # until the broker is asked why there is no cut
_TABLE_PATIENCE_S: Final = 3.0  # for the rest of a transaction
_ALL_ROWS: Final = 2**62
# A transaction is one batch, also if it is so much larger than batches in the driver are.
_LARGE_TRANSACTION: Final = 8


class BatchPlanner:
    """Of all sources of one write. To be used by one thread."""

    def __init__(self, sources: Sequence[TailedSource], cuts: FollowedCuts | None) -> None:
        """Without `cuts`, a transaction may be in two batches."""
        self._sources = sources
        self._cuts = cuts
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
        for most_rows in (MOST_ROWS, MOST_ROWS // 16, 1):
            limits = self._cuts.limits(begins, arrived, most_rows)
            ends = self._ends(starts, limits)
            if self._have_reached(ends, limits):
                break
        else:
            ends = self._of_one_transaction(starts, limits, ends)
        if self._is_table_arriving(self._cuts, ends, limits, begins, arrived):
            ends = starts
        self._check_progress(self._cuts, ends == starts, begins, arrived)
        return ends

    def _ends(self, starts: Ends, limits: Offsets, *, is_bounded: bool = True) -> Ends:
        return [
            source.next_end(start, limits, is_bounded=is_bounded)
            for source, start in zip(self._sources, starts, strict=True)
        ]

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

    def _check_progress(
        self, cuts: FollowedCuts, is_waiting: bool, begins: Offsets, arrived: Offsets
    ) -> None:
        """Records that have arrived and wait for a cut: is there one?"""
        waiting = {one: end for one, end in arrived.items() if end > begins[one]}
        if not is_waiting or not waiting:
            self._waits_since_s = None
        elif self._waits_since_s is None:
            self._waits_since_s = time.monotonic()
        elif time.monotonic() - self._waits_since_s > _PATIENCE_S:
            self._waits_since_s = None
            cuts.resolve(waiting)
