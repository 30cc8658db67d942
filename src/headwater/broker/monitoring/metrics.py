"""The broker's counters: plain numbers on the hot path, rendered for Prometheus at each scrape."""

from bisect import bisect_left
from collections import defaultdict, deque
from dataclasses import dataclass, field

RATE_WINDOW_S = 60.0
# Upper bounds of the counts of `Latency`; one more count is for what took longer.
LATENCY_BOUNDS_S = (
    0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
)  # fmt: skip


@dataclass(slots=True)
class Latency:
    """How long answers took, counted by bounds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))
    sum_s: float = 0.0

    def observe(self, took_s: float) -> None:
        self.counts[bisect_left(LATENCY_BOUNDS_S, took_s)] += 1
        self.sum_s += took_s


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
    latency: defaultdict[int, Latency] = field(default_factory=lambda: defaultdict(Latency))
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
