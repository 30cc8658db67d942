"""Late rows: those that operators reject for their time go to `<pipeline>.late`, each once.

They are too late, from the future, or without a time (idempotent_publisher.py writes them once):

    transactional id    <pipeline>.late.<operator>.<topic>.<partition>
    key of the position /late/<pipeline>/<operator>/<topic>/<partition>

(of a join <operator>.<side> and <operator>/<side>: both inputs may be of one topic).

A batch leaves them in files beside its state; the driver publishes them when the batch is computed,
before the store gets the result. After a crash in between, the batch runs again and rejects the
same rows, which the position shows as written. A row is identified by its operator and the position
of its record in the log: an operator of two writes runs twice and publishes once, a rebuild
publishes nothing again, and a row that is late for two operators is published by each.

The value is the row as JSON, the key its operator's key, as JSON. Headers: `headwater.late.cause`
(late, future, without_time), `.topic`, `.partition`, `.offset` (of the record that it was),
`.pipeline` and `.operator`; of a join also `.side`.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import pyarrow as pa

from headwater.errors import Fenced, StoreUnreachable
from headwater.pipelines.operators.runtime.contract import OFFSET
from headwater.pipelines.operators.runtime.naming import Built
from headwater.pipelines.operators.state.state_metrics import sides_of
from headwater.pipelines.operators.state.state_store import Location
from headwater.pipelines.operators.time.lateness import (
    CAUSE,
    LATE,
    OF_SIDE,
    PARTITION,
    RIGHT,
    TOPIC,
)
from headwater.pipelines.publishing.idempotent_publisher import (
    IdempotentPublisher,
    Record,
    Stream,
    count_in,
)
from headwater.sinks.contract import Log
from headwater.sinks.rows import json_text

SUFFIX: Final = ".late"
PREFIX: Final = "headwater.late."


class LateRows:
    """The late rows of one version of one write."""

    def __init__(
        self, log: Log, pipeline: str, operators: tuple[Built, ...], directory: Location
    ) -> None:
        self._pipeline = pipeline
        self._operators = operators
        self._directory = directory
        self._published = IdempotentPublisher(log)

    def close(self) -> None:
        self._published.close()

    def publish(self, batch: int) -> int:
        """Publishes the late rows of the batch that are not published yet, and returns their
        number. Raises StoreUnreachable, after which it is to be called again, and StoreRefused.
        """
        return self.publish_rows(
            {
                operator.name: sides_of(
                    self._directory / operator.name, operator.buckets, batch, LATE
                )
                for operator in self._operators
            }
        )

    def publish_rows(self, late: Mapping[str, Iterable[pa.Table]]) -> int:
        """The same, of late rows by operator."""
        written = 0
        for operator in self._operators:
            records: dict[tuple[str, str, int], list[Record]] = {}
            for rows in late[operator.name]:
                side = rows[OF_SIDE][0].as_py() if OF_SIDE in rows.column_names else ""
                for topic, partition, record in self._records(operator, side, rows):
                    records.setdefault((side, topic, partition), []).append(record)
            for (side, topic, partition), of_partition in records.items():
                of_partition.sort(key=lambda record: record.offset)
                by = (operator.name, side) if side else (operator.name,)
                written += self._write(by, topic, partition, of_partition)
        return written

    def _write(self, by: tuple[str, ...], topic: str, partition: int, records: list[Record]) -> int:
        stream = Stream(
            f"{self._pipeline}{SUFFIX}.{'.'.join(by)}.{topic}.{partition}",
            _key(self._pipeline, f"{'/'.join(by)}/{topic}/{partition}"),
            topic,
            partition,
            self._pipeline + SUFFIX,
        )
        try:
            return self._published.write(stream, records)
        except Fenced as error:  # by a rebuild beside it, which ends
            raise StoreUnreachable(
                f"another process publishes late rows of {self._pipeline}", detail=str(error)
            ) from error

    def _records(
        self, operator: Built, side: str, rows: pa.Table
    ) -> Iterator[tuple[str, int, Record]]:
        values = _as_json(rows, [name for name in rows.column_names if not name.startswith("__")])
        named = operator.keys[::-1] if side == RIGHT else operator.keys
        key = next((columns for columns in named if set(columns) <= set(rows.column_names)), ())
        keys = _as_json(rows, list(key)) if key else [None] * len(rows)
        now_ms = int(time.time() * 1000)
        about = [rows[name].to_pylist() for name in (CAUSE, TOPIC, PARTITION, OFFSET)]
        for value, of_row, cause, topic, partition, offset in zip(
            values, keys, *about, strict=True
        ):
            details = {
                "cause": cause,
                "topic": topic,
                "partition": str(partition),
                "offset": str(offset),
                "pipeline": self._pipeline,
                "operator": operator.name,
            }
            details |= {"side": side} if side else {}
            headers: list[tuple[str, bytes | None]] = [
                (PREFIX + name, value.encode()) for name, value in details.items()
            ]
            yield topic, partition, Record(offset, of_row, value, headers, now_ms)


def late_counts(positions: Mapping[bytes, bytes], pipeline: str) -> dict[str, int]:
    """How many rows of the pipeline were published, by operator."""
    prefix = _key(pipeline)
    found: dict[str, int] = {}
    for key, position in positions.items():
        if key.startswith(prefix):
            operator = key.removeprefix(prefix).decode().partition("/")[0]
            found[operator] = found.get(operator, 0) + count_in(position, key)
    return found


def _key(pipeline: str, rest: str = "") -> bytes:
    return f"/late/{pipeline}/{rest}".encode()


def _as_json(rows: pa.Table, names: list[str]) -> list[bytes]:
    columns = [_representable(rows[name].combine_chunks()) for name in names]
    texts: list[bytes] = json_text.objects(columns, names).to_pylist()
    return texts


def _representable(column: pa.Array) -> pa.Array:
    if json_text.is_supported(column.type):
        return column
    return pa.array([None if value is None else str(value) for value in column.to_pylist()])
