"""Whether too many rows of an operator come too late: `late_alert` of [pipeline.NAME]."""

from collections import deque
from typing import Final

from headwater.pipelines.operators.time.lateness import CAUSES, EVENTS

WINDOW_S: Final = 600.0


class LateAlert:
    """The share of the rows of the last ten minutes that were not taken in for their time (too
    late, from the future, without one), of one operator. Told is what its counters say from the
    start on.
    """

    def __init__(self, threshold: float | None) -> None:
        self._threshold = threshold
        self._seen: deque[tuple[float, int, int]] = (
            deque()
        )  # when; events, not taken in, until then
        self.share: float | None = None  # None: no row came

    def saw(self, now_s: float, counters: dict[str, int]) -> None:
        events = counters.get(EVENTS, 0)
        missed = sum(counters.get(each, 0) for each in CAUSES)
        if self._seen and events < self._seen[-1][1]:
            self._seen.clear()  # its state was begun anew
        if not self._seen or (events, missed) != self._seen[-1][1:]:
            self._seen.append((now_s, events, missed))
        # The first one stands for what was before the ten minutes.
        while len(self._seen) > 1 and self._seen[1][0] <= now_s - WINDOW_S:
            self._seen.popleft()
        _, before, missed_before = self._seen[0]
        self.share = (missed - missed_before) / (events - before) if events > before else None

    @property
    def is_on(self) -> bool:
        if self._threshold is None or self.share is None:
            return False
        return self.share > self._threshold
