"""The alert for too many late rows of an operator: `late_alert` of [pipeline.NAME]."""

from collections import deque
from typing import Final

from headwater.pipelines.operators.time.lateness import CAUSES, EVENTS

WINDOW_S: Final = 600.0


class LateAlert:
    """The share of an operator's rows of the last ten minutes that were rejected for their time
    (too late, from the future, without one), by the operator's cumulative counters.
    """

    def __init__(self, threshold: float | None) -> None:
        self._threshold = threshold
        self._seen: deque[tuple[float, int, int]] = deque()  # time; cumulative events, rejected
        self.share: float | None = None  # None: no rows

    def saw(self, now_s: float, counters: dict[str, int]) -> None:
        events = counters.get(EVENTS, 0)
        rejected = sum(counters.get(cause, 0) for cause in CAUSES)
        if self._seen and events < self._seen[-1][1]:
            self._seen.clear()  # its state was reset
        if not self._seen or (events, rejected) != self._seen[-1][1:]:
            self._seen.append((now_s, events, rejected))
        # The first entry is the baseline from before the ten minutes.
        while len(self._seen) > 1 and self._seen[1][0] <= now_s - WINDOW_S:
            self._seen.popleft()
        _, before, rejected_before = self._seen[0]
        self.share = (rejected - rejected_before) / (events - before) if events > before else None

    @property
    def is_on(self) -> bool:
        if self._threshold is None or self.share is None:
            return False
        return self.share > self._threshold
