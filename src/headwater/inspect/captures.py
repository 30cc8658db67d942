"""State of captures: configuration, stored position, lag, and what their processes report."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from headwater import config
from headwater.capture import positions
from headwater.capture.contract import Lag
from headwater.capture.positions import Stored, TableState
from headwater.capture.records.plan import topic_name
from headwater.capture.settings import CaptureSettings, with_password
from headwater.capture.sources import source_of
from headwater.client import login
from headwater.client.reading.compacted import read_committed_latest
from headwater.errors import HeadwaterError, UsageError
from headwater.inspect.kafka_cluster import KafkaCluster
from headwater.settings import ClientSettings
from headwater.spelling import nearest
from headwater.terminal.output import count, duration, plural, size

_METRICS_TIMEOUT_S: Final = 1.0
_HEARTBEATS_MISSED: Final = 3
_DEFAULT_HEARTBEAT_S: Final = 10.0
_GRACE_S: Final = 2.0
_ASKED_AT_ONCE: Final = 32

FOLLOWING, STOPPED, NEW = "following", "stopped", "never ran"


@dataclass(frozen=True, slots=True)
class CaptureState:
    """One capture. `settings` is None if this configuration does not name it."""

    name: str
    settings: CaptureSettings | None
    stored: Stored
    not_ready: str | None = None  # what its process reports, if it answers
    lag_now: Lag | None = None  # what its database reports, if it was asked

    @property
    def state(self) -> str:
        """Whether a process runs it. A running capture stores its position at every heartbeat."""
        if self.stored.capture is None:
            return NEW
        heartbeat_s = self.settings.heartbeat_s if self.settings else _DEFAULT_HEARTBEAT_S
        is_late = (self.silent_s or 0) > _HEARTBEATS_MISSED * heartbeat_s + _GRACE_S
        has_ended = self.stored.capture.has_ended
        return STOPPED if has_ended or is_late or self.not_ready is not None else FOLLOWING

    @property
    def silent_s(self) -> float | None:
        """Since it last stored its position."""
        if self.stored.capture is None:
            return None
        return max(0.0, time.time() - self.stored.capture.written_ms / 1000)

    @property
    def lag(self) -> Lag:
        """As the database said just now, else as the capture stored it."""
        if self.lag_now is not None:
            return self.lag_now
        return self.stored.capture.lag if self.stored.capture is not None else Lag()

    @property
    def lag_s(self) -> float | None:
        """How old the last transaction was when it was read."""
        capture = self.stored.capture
        if capture is None:
            return None
        if self.lag.size_bytes == 0:
            return 0.0
        return capture.delay_ms / 1000

    @property
    def failed(self) -> list[str]:
        return [name for name, table in self.stored.tables.items() if table.failed is not None]

    @property
    def is_well(self) -> bool:
        return self.state == FOLLOWING and not self.failed

    def as_json(self) -> dict[str, Any]:
        capture = self.stored.capture
        return {
            "capture": self.name,
            "source": self.settings.shown_source if self.settings else None,
            "state": self.state,
            "silent_seconds": self.silent_s,
            "not_ready": self.not_ready,
            "position": None if capture is None else dict(capture.position.at),
            "source_timestamp_ms": None if capture is None else capture.ts_ms,
            "lag_bytes": self.lag.size_bytes,
            "lag_seconds": self.lag_s,
            "retained_bytes": self.lag.retained_bytes,
            "retained_left_bytes": self.lag.left_bytes,
            "tables": [
                _table_as_json(self.name, table) for _, table in sorted(self.stored.tables.items())
            ],
        }


def _table_as_json(capture: str, state: TableState) -> dict[str, Any]:
    snapshot, failed = state.snapshot, state.failed
    return {
        "table": state.table.id,
        "topic": topic_name(capture, state.table),
        "snapshot": None
        if snapshot is None
        else {
            "rows": snapshot.rows,
            "estimated_rows": snapshot.total,
            "done": snapshot.is_done,
        },
        "failed": None
        if failed is None
        else {"error": failed.what, "detail": failed.detail, "hint": failed.hint},
    }


def shown_lag(state: CaptureState) -> str:
    capture = state.stored.capture
    if capture is None:
        return "-"
    lag = state.lag
    if lag.size_bytes == 0:
        return "none"
    parts = [size(lag.size_bytes)] if lag.size_bytes is not None else []
    if state.lag_s is not None:
        parts.append(duration(state.lag_s))
    return ", ".join(parts) or "?"


def shown_tables(state: CaptureState) -> str:
    """4 tables, 1 copying, 1 failed."""
    tables = state.stored.tables.values()
    copying = sum(
        table.snapshot is not None and not table.snapshot.is_done and table.failed is None
        for table in tables
    )
    parts = [plural(len(tables), "table")]
    parts += [f"{count(copying)} copying"] if copying else []
    parts += [f"{count(len(state.failed))} failed"] if state.failed else []
    return ", ".join(parts)


def asked(settings: CaptureSettings | None) -> str | None:
    """What the capture's process reports at /ready; None if it is ready or does not answer."""
    if settings is None or settings.metrics_listen is None:
        return None
    import urllib.error
    import urllib.request

    url = f"http://{settings.metrics_listen}/ready"
    try:
        with urllib.request.urlopen(url, timeout=_METRICS_TIMEOUT_S):
            return None
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(1000).decode("utf-8", "replace")
        return said.strip().removeprefix("not ready: ")
    except (OSError, ValueError):
        return None  # it may run on another machine


def with_lags_now(captures: Sequence[CaptureState]) -> list[CaptureState]:
    """For captures that do not run, the databases are asked: the stored lag is as old as their end,
    and the log retained for them grows. One that does not answer changes nothing, and all are
    asked at once, so that several of those take no longer than one.
    """
    with ThreadPoolExecutor(max(1, min(len(captures), _ASKED_AT_ONCE))) as pool:
        return list(pool.map(_with_lag_now, captures))


def _with_lag_now(capture: CaptureState) -> CaptureState:
    if capture.settings is None or capture.stored.capture is None or capture.state == FOLLOWING:
        return capture
    try:
        source = source_of(with_password(capture.settings))
    except HeadwaterError:
        return capture
    try:
        return dataclasses.replace(capture, lag_now=source.lag(capture.stored.capture.position.at))
    except HeadwaterError:
        return capture
    finally:
        source.close()


def warning_of(capture: CaptureState) -> str | None:
    """Why the log that the database retains for it will soon be a problem."""
    lag = capture.lag
    if not lag.is_running_out or lag.retained_bytes is None:
        return None
    if lag.left_bytes is None:
        return f"the database retains {size(lag.retained_bytes)} of log for it, without a limit"
    return (
        f"the database retains {size(lag.retained_bytes)} of log for it;"
        f" {size(lag.left_bytes)} more, and it drops that log, or its disk is full"
    )


def capture_states(
    captures: Mapping[str, CaptureSettings], stored: Mapping[str, Stored]
) -> list[CaptureState]:
    """Those of the configuration in its order, then those that only the log knows."""
    nothing = Stored(None, {})
    names = [*captures, *(name for name in stored if name not in captures)]
    return [
        CaptureState(name, captures.get(name), stored.get(name, nothing), asked(captures.get(name)))
        for name in names
    ]


def connected(loaded: config.Config) -> KafkaCluster:
    """The broker. Raises BrokerUnreachable at once if no broker listens there."""
    cluster = KafkaCluster(loaded.bootstrap(), login.properties_of(loaded.client))
    cluster.require_listener()
    return cluster


def stored_of(name: str, bootstrap: str, client: ClientSettings) -> Stored:
    return positions.decode(name, read_committed_latest(bootstrap, client, positions.TOPIC))


def named(loaded: config.Config, name: str) -> CaptureSettings:
    """The settings of one capture, with the password that a file may hold. Raises UsageError."""
    if name in loaded.captures:
        return with_password(loaded.captures[name])
    raise no_capture(name, list(loaded.captures))


def no_capture(name: str, existing: Sequence[str]) -> UsageError:
    meant = nearest(name, existing)
    if meant:
        hint = f"did you mean {meant}?"
    elif existing:
        hint = "there are " + ", ".join(existing)
    else:
        hint = f"a section [capture.{name}] in {config.FILE_NAME} makes one"
    return UsageError(f"there is no capture {name}", hint=hint)
