"""Rows that a store does not take: into the topic `<pipeline>.dlq`, each once.

They are written, together with a note of their batch, in a Kafka transaction that is committed
before the store's own. If the process dies between the two, the batch runs again: the note tells
that its dead letters are there.
"""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import orjson

from headwater.client.batches import BatchBuilder
from headwater.client.topics import NewTopic, ensure_topics
from headwater.errors import RowRefused
from headwater.pipelines.dead_letters import PREFIX, SUFFIX
from headwater.sinks.contract import Batch, Log, Refuse
from headwater.sinks.noted_transactions import NotedTransactions, as_sink_errors

_CONFIG: Final = {"retention.ms": "-1"}  # they wait for a person


class RefusedRows:
    """Of one write. The topic and the producer are made when the first row is refused."""

    def __init__(self, log: Log, owner: str, pipeline: str) -> None:
        self.topic = f"{pipeline}{SUFFIX}"
        self._log = log
        self._owner = owner
        self._noted: NotedTransactions | None = None

    def of_batch(self, batch: Batch) -> Refuse:
        """What the store is given to tell of the rows that it refuses."""
        return partial(self._write, batch)

    def close(self) -> None:
        if self._noted is not None:
            self._noted.close()
            self._noted = None

    def _write(self, batch: Batch, refused: Sequence[RowRefused]) -> None:
        """Raises StoreUnreachable: the batch is not committed without its dead letters."""
        try:
            self._write_once(batch, refused)
        except BaseException:
            self.close()
            raise

    def _write_once(self, batch: Batch, refused: Sequence[RowRefused]) -> None:
        noted = self._opened()
        last: dict[str, Any] = orjson.loads(noted.note) if noted.note else {}
        if last.get("query") == batch.query and last.get("batch", -1) >= batch.id:
            return
        now_ms = int(time.time() * 1000)
        builders = [BatchBuilder()]
        for each in refused:
            letter = None, _row(each), self._headers(each), now_ms
            if not builders[-1].append(*letter):
                builders.append(BatchBuilder())
                builders[-1].append(*letter)
        count = last.get("count", 0) + len(refused)
        note = orjson.dumps({"query": batch.query, "batch": batch.id, "count": count})
        noted.commit({(self.topic, 0): builders}, lambda _: note)

    def _headers(self, refused: RowRefused) -> list[tuple[str, bytes | None]]:
        about = {"cause": str(refused), "column": refused.column, "store": self._owner}
        return [(PREFIX + name, value.encode()) for name, value in about.items()]

    def _opened(self) -> NotedTransactions:
        if self._noted is None:
            with as_sink_errors():
                wanted = [NewTopic(self.topic, 1, _CONFIG)]
                ensure_topics(self._log.bootstrap, self._log.login, wanted)
            self._noted = NotedTransactions(self._log, f"{self._owner}{SUFFIX}", _key(self._owner))
        return self._noted


def refused_count(notes: Mapping[bytes, bytes], owner: str) -> int:
    """How many rows of the write were ever refused."""
    note = notes.get(_key(owner))
    return int(orjson.loads(note)["count"]) if note else 0


def _key(owner: str) -> bytes:
    return f"/refused/{owner}".encode()


def _row(refused: RowRefused) -> bytes:
    return orjson.dumps(refused.row, default=str, option=orjson.OPT_NON_STR_KEYS)
