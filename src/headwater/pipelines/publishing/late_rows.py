"""Rows that operators put aside (too late, from the future, without a time): into the topic
`<pipeline>.late`, each once (idempotent_publisher.py).

    transactional id    <pipeline>.late.<operator>.<topic>.<partition>
    key of the note     /late/<pipeline>/<operator>/<topic>/<partition>

(of a join <operator>.<side> and <operator>/<side>: both inputs may be of one topic).

A batch leaves them in files beside its state; the driver publishes them when the batch is computed,
before the store gets the result. Whoever dies in between, the batch runs again, puts the same rows
aside, and the note tells that they are written. A row is known by its operator and the place of its
record in the log: an operator of two writes runs twice and tells once, a rebuild tells nothing
again, and a row that is late for two operators is told by each.

The value is the row as JSON, the key its operator's key, as JSON. Headers: `headwater.late.cause`
(late, future, without_time), `.topic`, `.partition`, `.offset` (of the record that it was),
`.pipeline` and `.operator`; of a join also `.side`.
"""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa

from headwater.errors import Fenced, StoreUnreachable
from headwater.pipelines.operators.runtime.contract import OFFSET
from headwater.pipelines.operators.runtime.naming import Built
from headwater.pipelines.operators.state.state_metrics import sides_of
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
    """Of one version of one write."""

    def __init__(
        self, log: Log, pipeline: str, operators: tuple[Built, ...], directory: Path
    ) -> None:
        self._pipeline = pipeline
        self._operators = operators
        self._directory = directory
        self._published = IdempotentPublisher(log)

    def close(self) -> None:
        self._published.close()

    def publish(self, batch: int) -> int:
        """What the batch has put aside, as far as it is not published yet; how many rows that is.
        Raises StoreUnreachable, after which it is to be asked again, and StoreRefused.
        """
        written = 0
        for operator in self._operators:
            records: dict[tuple[str, str, int], list[Record]] = {}
            for rows in sides_of(self._directory / operator.name, operator.buckets, batch, LATE):
                side = rows[OF_SIDE][0].as_py() if OF_SIDE in rows.column_names else ""
                for topic, partition, record in self._records(operator, side, rows):
                    records.setdefault((side, topic, partition), []).append(record)
            for (side, topic, partition), each in records.items():
                each.sort(key=lambda record: record.offset)
                by = (operator.name, side) if side else (operator.name,)
                written += self._write(by, topic, partition, each)
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
        except Fenced as error:  # a rebuild beside it, which comes to an end
            raise StoreUnreachable(
                f"another process publishes late rows of {self._pipeline}", detail=str(error)
            ) from error

    def _records(
        self, operator: Built, side: str, rows: pa.Table
    ) -> Iterator[tuple[str, int, Record]]:
        values = _as_json(rows, [each for each in rows.column_names if not each.startswith("__")])
        named = operator.keys[::-1] if side == RIGHT else operator.keys
        key = next((each for each in named if set(each) <= set(rows.column_names)), ())
        keys = _as_json(rows, list(key)) if key else [None] * len(rows)
        now_ms = int(time.time() * 1000)
        about = [rows[name].to_pylist() for name in (CAUSE, TOPIC, PARTITION, OFFSET)]
        for value, of_row, cause, topic, partition, offset in zip(
            values, keys, *about, strict=True
        ):
            told = {
                "cause": cause,
                "topic": topic,
                "partition": str(partition),
                "offset": str(offset),
                "pipeline": self._pipeline,
                "operator": operator.name,
            }
            told |= {"side": side} if side else {}
            headers: list[tuple[str, bytes | None]] = [
                (PREFIX + name, each.encode()) for name, each in told.items()
            ]
            yield topic, partition, Record(offset, of_row, value, headers, now_ms)


def late_counts(notes: Mapping[bytes, bytes], pipeline: str) -> dict[str, int]:
    """How many rows of the pipeline were published, by operator."""
    prefix = _key(pipeline)
    found: dict[str, int] = {}
    for key, note in notes.items():
        if key.startswith(prefix):
            operator = key.removeprefix(prefix).decode().partition("/")[0]
            found[operator] = found.get(operator, 0) + count_in(note, key)
    return found


def _key(pipeline: str, rest: str = "") -> bytes:
    return f"/late/{pipeline}/{rest}".encode()


def _as_json(rows: pa.Table, names: list[str]) -> list[bytes]:
    columns = [_tellable(rows[name].combine_chunks()) for name in names]
    texts: list[bytes] = json_text.objects(columns, names).to_pylist()
    return texts


def _tellable(column: pa.Array) -> pa.Array:
    if json_text.is_supported(column.type):
        return column
    return pa.array([None if each is None else str(each) for each in column.to_pylist()])
