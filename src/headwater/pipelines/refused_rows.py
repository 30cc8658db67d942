"""Rows that a store does not take: into the topic `<pipeline>.dlq`, each once.

They are written, together with a marker of their batch, in a Kafka transaction that is committed
before the store's own. If the process dies between the two, the batch runs again: the marker tells
that its dead letters are there.
"""

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from headwater.capture import positions
from headwater.client.batches import BatchBuilder
from headwater.client.compacted import read_committed_latest
from headwater.client.topics import NewTopic, ensure_topics
from headwater.client.transactions import TransactionalProducer
from headwater.errors import RowRefused
from headwater.sinks.contract import Batch, Log, Refuse

if TYPE_CHECKING:
    from headwater.client.sending import TopicPartition

_CAUSE, _STORE, _COLUMN = "headwater.cause", "headwater.store", "headwater.column"
_CONFIG: Final = {"retention.ms": "-1"}


class RefusedRows:
    """Of one write. The topic and the producer are made when the first row is refused."""

    def __init__(self, log: Log, owner: str, pipeline: str) -> None:
        self.topic = f"{pipeline}.dlq"
        self._log = log
        self._owner = owner
        self._key = f"@refused/{owner}".encode()
        self._producer: TransactionalProducer | None = None
        self._last: dict[str, Any] = {}

    def of_batch(self, batch: Batch) -> Refuse:
        """What the store is given to tell of the rows that it refuses."""
        return partial(self._write, batch)

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    def _write(self, batch: Batch, refused: Sequence[RowRefused]) -> None:
        producer = self._opened()
        last = self._last
        if last.get("query") == batch.query and last.get("batch", -1) >= batch.id:
            return
        now_ms = int(time.time() * 1000)
        builders = [BatchBuilder()]
        for each in refused:
            value = orjson.dumps(each.row, default=str, option=orjson.OPT_NON_STR_KEYS)
            headers = [
                (_CAUSE, str(each).encode()),
                (_STORE, self._owner.encode()),
                (_COLUMN, each.column.encode()),
            ]
            if not builders[-1].append(None, value, headers, now_ms):
                builders.append(BatchBuilder())
                builders[-1].append(None, value, headers, now_ms)
        marker = {
            "query": batch.query,
            "batch": batch.id,
            "count": last.get("count", 0) + len(refused),
        }
        note = BatchBuilder()
        note.append(self._key, orjson.dumps(marker), (), now_ms)
        records: dict[TopicPartition, list[BatchBuilder]] = {
            (self.topic, 0): builders,
            (positions.TOPIC, 0): [note],
        }
        producer.send(records)
        producer.commit()
        self._last = marker

    def _opened(self) -> TransactionalProducer:
        if self._producer is None:
            bootstrap, login = self._log.bootstrap, self._log.login
            wanted = [
                NewTopic(self.topic, 1, _CONFIG),
                NewTopic(positions.TOPIC, 1, positions.TOPIC_CONFIG),
            ]
            ensure_topics(bootstrap, login, wanted)
            self._producer = TransactionalProducer(bootstrap, f"{self._owner}.dlq", login=login)
            self._producer.fence()
            found = read_committed_latest(bootstrap, login, positions.TOPIC).get(self._key)
            self._last = orjson.loads(found) if found else {}
        return self._producer


def refused_count(log: Log, owner: str) -> int:
    """How many rows of the write were ever refused."""
    found = read_committed_latest(log.bootstrap, log.login, positions.TOPIC)
    marker = found.get(f"@refused/{owner}".encode())
    return int(orjson.loads(marker)["count"]) if marker else 0
