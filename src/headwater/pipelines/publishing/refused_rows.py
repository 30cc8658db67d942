"""Refused rows: those that a store does not accept go to `<pipeline>.dlq`, each once.

They are written, together with the position of their batch, in a Kafka transaction that is
committed before the store's own. If the process dies between the two, the batch runs again: the
position shows that its dead letters are written. A store may report them in several calls, the same
ones for the same batch; the position counts them.

Each version of a write has a position of its own: a rebuild runs beside the process that feeds the
live one, and writes its refused rows again.
"""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import orjson

from headwater.client.topics import NewTopic, ensure_topics
from headwater.client.writing.batches import BatchBuilder
from headwater.errors import RowRefused
from headwater.pipelines.publishing.dead_letters import PREFIX, SUFFIX
from headwater.sinks.contract import Batch, Log, Refuse
from headwater.sinks.topic.transactional_positions import TransactionalPositions, as_sink_errors

_CONFIG: Final = {"retention.ms": "-1"}  # until a person handles them


class RefusedRows:
    """The refused rows of one version of a write. The topic and the producer are created when the
    first row is refused.
    """

    def __init__(self, log: Log, owner: str, pipeline: str, version: int) -> None:
        self.topic = f"{pipeline}{SUFFIX}"
        self._log = log
        self._owner = owner
        self._version = version
        self._positions: TransactionalPositions | None = None

    def of_batch(self, batch: Batch) -> Refuse:
        """The callback for the rows that the store refuses in one attempt."""
        return partial(self._write, batch, itertools.count(1))

    def close(self) -> None:
        if self._positions is not None:
            self._positions.close()
            self._positions = None

    def _write(self, batch: Batch, calls: Iterator[int], refused: Sequence[RowRefused]) -> None:
        """Raises StoreUnreachable: the batch is not committed without its dead letters."""
        call = next(calls)
        if not refused:  # only counted
            return
        try:
            self._write_once(batch, call, refused)
        except BaseException:
            self.close()
            raise

    def _write_once(self, batch: Batch, call: int, refused: Sequence[RowRefused]) -> None:
        positions = self._opened()
        last: dict[str, Any] = orjson.loads(positions.position) if positions.position else {}
        is_same = last.get("query") == batch.query
        if is_same and (last["batch"], last["calls"]) >= (batch.id, call):
            return
        now_ms = int(time.time() * 1000)
        builders = [BatchBuilder()]
        for row in refused:
            letter = None, _row(row), self._headers(row), now_ms
            if not builders[-1].append(*letter):
                builders.append(BatchBuilder())
                builders[-1].append(*letter)
        count = last.get("count", 0) + len(refused)
        position = orjson.dumps(
            {"query": batch.query, "batch": batch.id, "calls": call, "count": count}
        )
        positions.commit({(self.topic, 0): builders}, lambda _: position)

    def _headers(self, refused: RowRefused) -> list[tuple[str, bytes | None]]:
        about = {"cause": str(refused), "column": refused.column, "store": self._owner}
        return [(PREFIX + name, value.encode()) for name, value in about.items()]

    def _opened(self) -> TransactionalPositions:
        if self._positions is None:
            with as_sink_errors():
                wanted = [NewTopic(self.topic, 1, _CONFIG)]
                ensure_topics(self._log.bootstrap, self._log.login, wanted)
            self._positions = TransactionalPositions(
                self._log,
                f"{self._owner}.v{self._version}{SUFFIX}",
                _key(self._owner, self._version),
            )
        return self._positions


def refused_count(positions: Mapping[bytes, bytes], owner: str, version: int) -> int:
    """How many rows of the write were refused by this version."""
    position = positions.get(_key(owner, version))
    return int(orjson.loads(position)["count"]) if position else 0


def _key(owner: str, version: int) -> bytes:
    return f"/refused/{owner}/v{version}".encode()


def _row(refused: RowRefused) -> bytes:
    return orjson.dumps(refused.row, default=str, option=orjson.OPT_NON_STR_KEYS)
