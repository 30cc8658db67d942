"""From values to states. Nothing here reads a clock or a network: the same values at the same times
make the same alerts.

    ok ──holds──▶ pending ──for so long──▶ firing ──no longer──▶ ok
                     │                       notice               notice
                     └──no longer──▶ ok, without a notice

A value that cannot be read changes no state; it is shown as the alert's error.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final
from uuid import uuid4

import orjson

from headwater.alert_settings import AlertSettings

OK, PENDING, FIRING = "ok", "pending", "firing"
FIRED, RECOVERED, TEST = "firing", "recovered", "test"
MAX_UNDELIVERED: Final = 100  # of one alert
GIVE_UP_MS: Final = 24 * 3600 * 1000
_FIRST_PAUSE_MS: Final = 5_000
_LONGEST_PAUSE_MS: Final = 300_000


@dataclass(slots=True)
class Notice:
    """Something that a receiver has to be notified of, until it was."""

    to: str  # `place_id` of who: the state is stored, and an address may be a secret
    event: dict[str, Any]
    attempts: int = 0
    next_ms: int = 0
    error: str = ""

    def has_failed(self, error: str, now_ms: int) -> None:
        self.attempts += 1
        self.error = error[:300]
        pause_ms = min(_FIRST_PAUSE_MS << min(self.attempts - 1, 10), _LONGEST_PAUSE_MS)
        self.next_ms = now_ms + pause_ms

    def is_hopeless(self, now_ms: int) -> bool:
        return now_ms - int(self.event["at_ms"]) > GIVE_UP_MS


@dataclass(slots=True)
class AlertState:
    state: str = OK
    since_ms: int = 0
    value: float | None = None
    error: str = ""
    checked_ms: int = 0
    undelivered: list[Notice] = field(default_factory=list)
    given_up: int = 0  # notices

    def to_json(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def from_json(cls, data: bytes) -> "AlertState":
        """Raises ValueError, TypeError, LookupError."""
        stored = orjson.loads(data)
        names = {one.name for one in fields(cls)}
        known = {name: value for name, value in stored.items() if name in names}
        known["undelivered"] = [Notice(**one) for one in stored.get("undelivered", [])]
        return cls(**known)


def advanced(
    alert: AlertSettings, state: AlertState, value: float, now_ms: int, *, is_silenced: bool
) -> dict[str, Any] | None:
    """Changes the state by a value; the event, if it began to fire or has recovered. While it is
    silenced, events are in the history, and nobody is notified.
    """
    state.value, state.error, state.checked_ms = value, "", now_ms
    holds = alert.condition.holds(value)
    if state.state == FIRING:
        if holds:
            return None
        state.state, state.since_ms = OK, now_ms
        return _notified(alert, state, event_of(alert, RECOVERED, value, now_ms), is_silenced)
    if not holds:
        if state.state != OK or not state.since_ms:
            state.state, state.since_ms = OK, now_ms
        return None
    if state.state != PENDING:
        state.state, state.since_ms = PENDING, now_ms
    if now_ms - state.since_ms < alert.for_ * 1000:
        return None
    state.state, state.since_ms = FIRING, now_ms
    return _notified(alert, state, event_of(alert, FIRED, value, now_ms), is_silenced)


def _notified(
    alert: AlertSettings, state: AlertState, event: dict[str, Any], is_silenced: bool
) -> dict[str, Any]:
    event["silenced"] = is_silenced
    if not is_silenced:
        state.undelivered += [Notice(place_id(to), event) for to in alert.receivers]
        too_many = len(state.undelivered) - MAX_UNDELIVERED
        if too_many > 0:  # the newest count
            state.given_up += too_many
            del state.undelivered[:too_many]
    return event


def place_id(receiver: str) -> str:
    return hashlib.sha256(receiver.encode()).hexdigest()[:16]


def event_of(alert: AlertSettings, event: str, value: float | None, now_ms: int) -> dict[str, Any]:
    return {
        "id": uuid4().hex,
        "alert": alert.name,
        "event": event,
        "when": alert.when,
        "value": value,
        "at_ms": now_ms,
    }


def shown(value: float | None) -> str:
    """Without an exponent, as conditions are written: bytes have eleven digits."""
    return "-" if value is None else f"{round(value, 3):.15g}"


def sentence(event: Mapping[str, Any]) -> str:
    """For people: "alert lag is firing: lag(orders) > 10000, now 12034"."""
    what = {FIRED: "is firing", RECOVERED: "has recovered", TEST: "is tested"}[event["event"]]
    value = "" if event["value"] is None else f", now {shown(event['value'])}"
    return f"alert {event['alert']} {what}: {event['when']}{value}"
