"""Alerts for groups that retention is about to pass: log lines, metrics and a webhook.

A group that has used `lag_warning_percent` of what retention grants its next record is falling
behind; one whose next record is deleted has lost records. Each change is reported once: in the log,
in the metrics (`headwater status` shows them) and, if `lag_webhook` is set, by one POST of JSON a
round:

    {"events": [{"event": "falling_behind" | "lost" | "recovered", "group": …, "topic": …,
                 "partition": …, "lag_records": …, "lag_bytes": …, "lag_seconds": …,
                 "retention_used": …}], "more": 0, "at_ms": …}

A POST that fails is tried again with growing pauses, then given up, logged and counted. It carries
an `Idempotency-Key`, the same for each try.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import orjson

from headwater.broker.monitoring.lag import Lag, LagMeter
from headwater.clock import sleep

if TYPE_CHECKING:
    from headwater.broker.broker import Broker

log = logging.getLogger(__name__)

FALLING_BEHIND, LOST, RECOVERED = "falling_behind", "lost", "recovered"
MAX_EVENTS_PER_POST: Final = 100
MAX_POSTS_WAITING: Final = 10
POST_TIMEOUT_S: Final = 5.0
PAUSES_S: Final = (1.0, 4.0, 16.0, 60.0)  # between tries
LOGGED_PER_ROUND: Final = 20
LAGS_PER_TURN: Final = 1_000


class LagAlerts:
    """Watches the lag of all groups."""

    def __init__(
        self, broker: "Broker", meter: LagMeter, *, warning_percent: int, webhook: str | None
    ) -> None:
        self._broker = broker
        self._meter = meter
        self._warn_at = warning_percent / 100
        self._webhook = webhook
        # Only of groups that fall behind or have lost records.
        self.states: dict[tuple[str, str, int], str] = {}
        self._posts: asyncio.Queue[list[dict[str, Any]]] = asyncio.Queue(MAX_POSTS_WAITING)
        self.posts_failed = 0

    async def run_round(self) -> None:
        """One round: measures, and reports what has changed."""
        await self._meter.measure()
        states: dict[tuple[str, str, int], str] = {}
        events: list[dict[str, Any]] = []
        for count, lag in enumerate(self._meter.lags()):
            if count % LAGS_PER_TURN == 0:
                await asyncio.sleep(0)
            key = (lag.group, lag.partition.topic, lag.partition.index)
            state = self._state(lag)
            if state != RECOVERED:
                states[key] = state
            if state != self.states.get(key, RECOVERED):
                events.append(_event(state, lag))
        self.states = states
        for event in events[:LOGGED_PER_ROUND]:
            _log(event)
        if len(events) > LOGGED_PER_ROUND:
            log.warning("%d more groups and partitions like these", len(events) - LOGGED_PER_ROUND)
        if events and self._webhook is not None:
            if self._posts.full():  # the newest events count
                self._posts.get_nowait()
                self.posts_failed += 1
            self._posts.put_nowait(events)

    def _state(self, lag: Lag) -> str:
        if lag.records and lag.is_lost:
            return LOST
        if lag.retention_used is not None and lag.retention_used >= self._warn_at:
            return FALLING_BEHIND
        return RECOVERED

    async def post(self) -> None:
        """Posts queued events to the webhook, until it is cancelled."""
        while True:
            events = await self._posts.get()
            body = orjson.dumps(
                {
                    "events": events[:MAX_EVENTS_PER_POST],
                    "more": max(len(events) - MAX_EVENTS_PER_POST, 0),
                    "at_ms": self._broker.clock.now_ms(),
                }
            )
            await self._deliver(body, uuid4().hex)

    async def _deliver(self, body: bytes, key: str) -> None:
        for pause_s in (*PAUSES_S, None):
            try:
                await self._broker.store.in_reader(_post, self._webhook, body, key)
                return
            except (OSError, ValueError) as error:
                if pause_s is None:
                    self.posts_failed += 1
                    log.error("lag_webhook: given up: %s", error)
                else:
                    log.warning("lag_webhook: %s; tried again in %d s", error, pause_s)
                    await sleep(self._broker.clock, pause_s)


def _event(state: str, lag: Lag) -> dict[str, Any]:
    return {
        "event": state,
        "group": lag.group,
        "topic": lag.partition.topic,
        "partition": lag.partition.index,
        "lag_records": lag.records,
        "lag_bytes": lag.size_bytes,
        "lag_seconds": lag.seconds,
        "retention_used": lag.retention_used,
    }


def _log(event: dict[str, Any]) -> None:
    where = f"group {event['group']}, {event['topic']}-{event['partition']}"
    match event["event"]:
        case "lost":
            log.error("%s: retention has deleted records that it had not read", where)
        case "falling_behind":
            log.warning(
                "%s: falling behind: %d records to read, %.0f %% of retention used",
                where, event["lag_records"], 100 * (event["retention_used"] or 0),
            )  # fmt: skip
        case _:
            log.info("%s: no longer falling behind", where)


def _post(url: str, body: bytes, key: str) -> None:
    """(worker) Raises OSError unless the answer is a 2xx."""
    import urllib.error
    import urllib.request  # 40 ms that most brokers need not spend

    # The address is the operator's own setting, and config.py has checked that it is HTTP.
    request = urllib.request.Request(  # noqa: S310
        url,
        data=body,
        headers={"Content-Type": "application/json", "Idempotency-Key": key},
        method="POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=POST_TIMEOUT_S) as answer:  # noqa: S310
            answer.read(1 << 16)
    except urllib.error.HTTPError as error:
        error.close()
        raise
