"""The broker's counters: plain numbers on the hot path, rendered for Prometheus at each scrape."""

from collections import defaultdict, deque
from dataclasses import dataclass, field

RATE_WINDOW_S = 60.0


@dataclass(slots=True)
class Disk:
    """Free space, the rate at which it goes, and how long it lasts at that rate."""

    free_bytes: int = 0
    write_bytes_per_s: float = 0.0
    _samples: deque[tuple[float, int]] = field(default_factory=deque)

    def measure(self, now_s: float, free_bytes: int, bytes_written: int) -> None:
        self.free_bytes = free_bytes
        self._samples.append((now_s, bytes_written))
        while now_s - self._samples[0][0] > RATE_WINDOW_S:
            self._samples.popleft()
        began_s, before_bytes = self._samples[0]
        if now_s > began_s:
            self.write_bytes_per_s = (bytes_written - before_bytes) / (now_s - began_s)

    @property
    def seconds_left(self) -> float:
        """Infinite while nothing is written."""
        if self.write_bytes_per_s <= 0:
            return float("inf")
        return self.free_bytes / self.write_bytes_per_s


@dataclass(slots=True)
class Metrics:
    """Counters since the start of the process."""

    requests: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    produced_records: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    produced_bytes: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    fetched_bytes: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    refused_batches: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    missed_records: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    held_back_looks: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    dropped_records: defaultdict[tuple[str, str], int] = field(
        default_factory=lambda: defaultdict(int)
    )  # by topic and what became of them
    # Of share groups, by group; acknowledgements also by kind, dead letters also by topic.
    share_deliveries: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    share_locks_expired: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    share_acknowledgements: defaultdict[tuple[str, int], int] = field(
        default_factory=lambda: defaultdict(int)
    )
    dead_letters: defaultdict[tuple[str, str], int] = field(
        default_factory=lambda: defaultdict(int)
    )
    connections_opened: int = 0
    connections_refused: int = 0
    logins_failed: int = 0
    disk: Disk = field(default_factory=Disk)
