"""Metrics of a running capture: counters, lag, snapshots' progress; exposed to Prometheus."""

import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from headwater import __version__
from headwater.capture.contract import Lag
from headwater.errors import HeadwaterError
from headwater.prometheus_text import Sample, family, memory_peak_bytes


@dataclass(frozen=True, slots=True)
class SnapshotProgress:
    """How far the copy of one table is."""

    rows: int
    rows_total: int | None  # an estimate
    is_done: bool


class CaptureState:
    """Updated by the runner's threads; read by a display, /metrics and /ready.

    It outlives a run: after an error the next run goes on counting in it. Attributes may be read
    at any time; the two mappings are replaced, never changed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.owner = uuid.uuid4().hex  # names this process in the positions that it stores
        self.is_owner = False  # whether it has stored one
        self.transactions = 0
        self.changes = 0
        self.size_bytes = 0
        self.commit_latency_s: float | None = None  # of the last one
        self.source_ts_ms: int | None = None  # when the database committed the last transaction
        self.lag_s: float | None = None  # how old the last transaction was in the topics
        self.last_lag = Lag()
        self.snapshots: dict[str, SnapshotProgress] = {}  # by table
        self.failed_tables: dict[str, HeadwaterError] = {}  # by table
        self.errors: Counter[str] = Counter()  # by kind
        self.last_error: HeadwaterError | None = None
        self.restarts = 0
        self.is_following = False  # something went well since the last error
        self._lock = threading.Lock()

    def committed(
        self, transactions: int, changes: int, size_bytes: int, latency_s: float, ts_ms: int | None
    ) -> None:
        """A Kafka transaction with so many whole source transactions is durable. `latency_s`: since
        the first of them was read; `ts_ms`: when the database committed the last one, if any.
        """
        with self._lock:
            self.is_owner = True
            self.transactions += transactions
            self.changes += changes
            self.size_bytes += size_bytes
            self.commit_latency_s = latency_s
            if transactions and ts_ms is not None:
                self.source_ts_ms = ts_ms
                self.lag_s = max(0.0, time.time() - ts_ms / 1000)
            self.is_following = True

    def snapshot(
        self, table_id: str, rows_done: int, rows_total: int | None, is_done: bool
    ) -> None:
        """So much of a table is in its topic. A table that failed has recovered by that."""
        progress = SnapshotProgress(rows_done, rows_total, is_done)
        with self._lock:
            self.snapshots = {**self.snapshots, table_id: progress}
            if table_id in self.failed_tables:
                self.failed_tables = {
                    failed: cause
                    for failed, cause in self.failed_tables.items()
                    if failed != table_id
                }
            self.is_following = True

    def lag(self, lag: Lag) -> None:
        with self._lock:
            self.last_lag = lag
            if lag.size_bytes == 0:
                self.lag_s = 0.0
            self.is_following = True

    def table_failed(self, table_id: str, error: HeadwaterError) -> None:
        with self._lock:
            self.failed_tables = {**self.failed_tables, table_id: error}
            self.errors["TableFailed"] += 1

    def error(self, error: HeadwaterError) -> None:
        """The run ends with this."""
        with self._lock:
            self.errors[type(error).__name__] += 1
            self.last_error = error
            self.is_following = False

    def restarted(self) -> None:
        with self._lock:
            self.restarts += 1

    def not_ready_because(self) -> str | None:
        """None once it follows its source."""
        if self.is_following:
            return None
        if self.last_error is None:
            return "the capture is starting"
        return str(self.last_error).replace("\n", " ")


def exposition(state: CaptureState) -> str:
    return "".join(_lines(state))


def _lines(state: CaptureState) -> Iterator[str]:
    capture = {"capture": state.name}
    version = {"version": __version__}
    yield from family("headwater_build_info", "gauge", "The version that runs.", [(version, 1)])
    for name, text, count in (
        ("transactions", "Source transactions that are durable in topics.", state.transactions),
        ("changes", "Changes that are durable in topics.", state.changes),
        ("bytes", "Bytes of records that are durable in topics.", state.size_bytes),
        ("restarts", "Runs that were restarted after an error.", state.restarts),
    ):
        yield from family(f"headwater_capture_{name}_total", "counter", text, [(capture, count)])
    yield from family(
        "headwater_capture_errors_total",
        "counter",
        "Errors by kind.",
        (({**capture, "kind": kind}, count) for kind, count in list(state.errors.items())),
    )
    source_s = None if state.source_ts_ms is None else state.source_ts_ms / 1000
    for name, text, value in (
        ("ready", "1 if it follows its source.", state.not_ready_because() is None),
        ("lag_bytes", "Log of the source that is not in topics yet.", state.last_lag.size_bytes),
        ("lag_seconds", "Age of the last transaction when it was in topics.", state.lag_s),
        (
            "retained_bytes",
            "Log that the source retains for this capture.",
            state.last_lag.retained_bytes,
        ),
        (
            "retained_left_bytes",
            "By how much that may grow, if the source reports it.",
            state.last_lag.left_bytes,
        ),
        ("commit_seconds", "How long the last commit took.", state.commit_latency_s),
        ("source_timestamp_seconds", "When the source committed the last transaction.", source_s),
    ):
        samples: list[Sample] = [] if value is None else [(capture, value)]
        yield from family(f"headwater_capture_{name}", "gauge", text, samples)
    yield from _table_lines(state)
    peak: list[Sample] = [({}, memory_peak_bytes())]
    yield from family("headwater_memory_peak_bytes", "gauge", "Largest resident size so far.", peak)


def _table_lines(state: CaptureState) -> Iterator[str]:
    rows: list[Sample] = []
    estimates: list[Sample] = []
    done: list[Sample] = []
    for table, progress in state.snapshots.items():
        labels = {"capture": state.name, "table": table}
        rows.append((labels, progress.rows))
        done.append((labels, progress.is_done))
        if progress.rows_total is not None:
            estimates.append((labels, progress.rows_total))
    failed = [({"capture": state.name, "table": table}, 1) for table in state.failed_tables]
    for name, text, samples in (
        ("snapshot_rows", "Rows of a table's snapshot that are in its topic.", rows),
        ("snapshot_estimated_rows", "Rows that the snapshot will have, about.", estimates),
        ("snapshot_done", "1 if the snapshot is whole.", done),
        ("table_failed", "1 for a table that is no longer followed.", failed),
    ):
        yield from family(f"headwater_capture_{name}", "gauge", text, samples)
