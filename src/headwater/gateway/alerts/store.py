"""States, silences and history of alerts, in topics, so that they survive restarts.

__headwater_alerts            compacted; alert:NAME the state, silence:NAME {"until_ms", "why"}
__headwater_alert_history     one event a record, for 30 days
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from headwater.client.reading.compacted import read_committed_latest
from headwater.client.reading.fetching import EARLIEST, LATEST, Fetcher
from headwater.client.topics import NewTopic, ensure_topics
from headwater.client.writing.batches import BatchBuilder
from headwater.client.writing.transactions import TransactionalProducer
from headwater.gateway.alerts.rules import AlertState
from headwater.settings import ClientSettings

TOPIC: Final = "__headwater_alerts"
HISTORY: Final = "__headwater_alert_history"
_TOPICS: Final = (
    NewTopic(TOPIC, 1, {"cleanup.policy": "compact"}),
    NewTopic(HISTORY, 1, {"retention.ms": str(30 * 24 * 3600 * 1000)}),
)
_TRANSACTIONAL_ID: Final = "headwater-alert-silences"
_PATIENCE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Stored:
    states: Mapping[str, AlertState]
    silences: Mapping[str, int]  # until when, in ms

    def is_silenced(self, name: str, now_ms: int) -> bool:
        return self.silences.get(name, 0) > now_ms


def decoded(latest: Mapping[bytes, bytes]) -> Stored:
    states, silences = {}, {}
    for key, value in latest.items():
        kind, _, name = key.decode(errors="replace").partition(":")
        try:
            if kind == "alert":
                states[name] = AlertState.from_json(value)
            elif kind == "silence":
                silences[name] = int(orjson.loads(value)["until_ms"])
        except (ValueError, LookupError, TypeError):
            continue
    return Stored(states, silences)


def read(bootstrap: str, login: ClientSettings) -> Stored:
    return decoded(read_committed_latest(bootstrap, login, TOPIC, patience_s=_PATIENCE_S))


def ensure(bootstrap: str, login: ClientSettings) -> None:
    ensure_topics(bootstrap, login, _TOPICS, patience_s=_PATIENCE_S)


def silence(bootstrap: str, login: ClientSettings, name: str, until_ms: int | None) -> None:
    """None ends it."""
    ensure(bootstrap, login)
    value = None if until_ms is None else orjson.dumps({"until_ms": until_ms})
    batch = BatchBuilder()
    batch.append(f"silence:{name}".encode(), value, (), time.time_ns() // 1_000_000)
    with TransactionalProducer(bootstrap, _TRANSACTIONAL_ID, login=login) as producer:
        producer.fence()
        producer.send({(TOPIC, 0): [batch]})
        producer.commit()


def history(bootstrap: str, login: ClientSettings, limit: int) -> list[dict[str, Any]]:
    """The last events, the newest first."""
    with Fetcher(bootstrap, login, patience_s=_PATIENCE_S) as fetcher:
        if not fetcher.exists(HISTORY):
            return []
        place = (HISTORY, 0)
        start = fetcher.offsets([place], EARLIEST)[place]
        end = fetcher.offsets([place], LATEST)[place]
        found = []
        for record in fetcher.records(*place, max(start, end - limit), end):
            try:
                found.append(orjson.loads(record.value or b""))
            except orjson.JSONDecodeError:
                continue
    return found[::-1]
