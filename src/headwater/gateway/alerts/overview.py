"""All alerts of a configuration with their states, for people."""

import time
from datetime import UTC, datetime
from typing import Any

from headwater.config import Config
from headwater.gateway.alerts.rules import AlertState
from headwater.gateway.alerts.store import Stored

UNWATCHED, UNKNOWN = "not watched", "unknown"


def rows_of(config: Config, stored: Stored) -> list[dict[str, Any]]:
    """One row for each alert; nothing of the addresses that are notified."""
    now_ms = time.time_ns() // 1_000_000
    rows = []
    for name, alert in config.alerts.items():
        state = stored.states.get(name)
        found = state or AlertState()
        until_ms = stored.silences.get(name, 0)
        rows.append(
            {
                "alert": name,
                "when": alert.when,
                "for_seconds": alert.for_,
                "state": _state(state),
                "since": _time(found.since_ms),
                "value": found.value,
                "error": found.error,
                "checked": _time(found.checked_ms),
                "undelivered": len(found.undelivered),
                "undelivered_error": next(
                    (notice.error for notice in found.undelivered if notice.error), ""
                ),
                "silenced_until": _time(until_ms) if until_ms > now_ms else None,
            }
        )
    return rows


def _state(state: AlertState | None) -> str:
    if state is None:
        return UNWATCHED
    return state.state if state.since_ms else UNKNOWN  # no value has been read yet


def with_times(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**event, "at": _time(int(event["at_ms"]))} for event in events]


def _time(at_ms: int) -> str | None:
    if not at_ms:
        return None
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
