"""The contract of a decoder: raw records in, typed rows and rejected records out.

The rows of a record depend on the record, the schema and the options only, never on the records
beside it: a replayed batch may be cut in another way, and has to give the same rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import ConfigError
from headwater.pipelines.position import POSITION, POSITION_TYPE

CAUSE_CHARACTERS: Final = 300
ADDED: Final = (
    pa.field("_op", pa.string()),  # c, u, d, r, t
    pa.field("_at", pa.timestamp("us", tz="UTC")),
    pa.field(POSITION, POSITION_TYPE),
)

Rows = npt.NDArray[np.int64]  # numbers of records in a batch, ascending


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that cannot be decoded: as it is in its partition, and the cause."""

    offset: int
    cause: str  # at most CAUSE_CHARACTERS
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Sequence[tuple[str, bytes | None]] = ()


@dataclass(frozen=True, slots=True)
class Decoded:
    rows: pa.RecordBatch  # Decoder.schema; in the order of the records
    rejected: list[Rejected]  # in the order of the records
    erased: int = 0  # records that an erasure has left blank: they are no rows


@dataclass(slots=True)
class Columns:
    """The decoded columns of a batch, before `_op`, `_at` and `_position` are added."""

    arrays: list[pa.Array]  # of the user's columns
    rows: Rows  # from which record each row is
    causes: list[tuple[int, str]]  # of the records that cannot be read
    ops: pa.Array  # as long as `rows`
    at_ms: npt.NDArray[np.int64] | None = None  # likewise; None: the records' own times


class Decoder(ABC):
    """A decoder of one kind and schema. Can be pickled; used by one thread at a time.

    The user's columns are nullable in the result, whatever the schema says: a delete may have the
    key only. A column that must not be null is checked in all other rows, and a record that
    lacks it is rejected.
    """

    def __init__(self, schema: pa.Schema) -> None:
        """Raises ConfigError for invalid names."""
        names = schema.names
        if not names:
            raise ConfigError("a schema without columns")
        for name in names:
            if names.count(name) > 1 or name in [field.name for field in ADDED]:
                raise ConfigError(
                    f"column {name} is there twice",
                    hint="_op, _at and _position are added to the schema's columns",
                )
        self._fields = [field.with_nullable(True) for field in schema]
        self.schema = pa.schema([*self._fields, *ADDED])

    @abstractmethod
    def _decode(self, batch: pa.RecordBatch) -> Columns:
        """The columns of one batch of records; `key` and `value` are binary."""

    def decode(self, batch: pa.RecordBatch, topic: str, partition: int) -> Decoded:
        """The rows of raw records: `key`, `value`, `offset`, `timestamp` (a timestamp, or
        milliseconds), optionally `headers` (a list of pairs) and `erased`. Rows are in their
        order. Erased records are counted, and neither rows nor rejected: they have no key by which
        a row could be found.
        """
        records = batch.num_rows
        batch = _with_binary(_without_erased(batch))
        erased = records - batch.num_rows
        if erased and not batch.num_rows:
            return Decoded(pa.RecordBatch.from_pylist([], schema=self.schema), [], erased)
        columns = self._decode(batch)
        stamps = batch.column("timestamp")
        unit = stamps.type.unit if pa.types.is_timestamp(stamps.type) else "ms"
        numbers = stamps.cast(pa.int64())
        if columns.at_ms is None:
            at = _micros(numbers.take(pa.array(columns.rows)), unit)
        else:
            at = _micros(pa.array(columns.at_ms), "ms")
        offsets = batch.column("offset")
        size = len(columns.rows)
        position = pa.StructArray.from_arrays(
            [
                pa.repeat(pa.scalar(topic), size),
                pa.repeat(pa.scalar(partition, pa.int32()), size),
                offsets.take(pa.array(columns.rows)),
            ],
            fields=list(POSITION_TYPE),
        )
        rows = pa.RecordBatch.from_arrays(
            [*columns.arrays, columns.ops, at, position], schema=self.schema
        )
        rejected = _rejected(batch, columns.causes, offsets, numbers, unit)
        return Decoded(rows, rejected, erased)


def _without_erased(batch: pa.RecordBatch) -> pa.RecordBatch:
    if "erased" not in batch.schema.names:  # of a broker that erases none
        return batch
    is_erased = batch.column("erased")
    return batch.filter(pc.invert(is_erased)) if is_erased.true_count else batch


def _with_binary(batch: pa.RecordBatch) -> pa.RecordBatch:
    for name in ("key", "value"):
        at = batch.schema.get_field_index(name)
        column = batch.column(at)
        if column.type != pa.binary():
            batch = batch.set_column(at, name, column.cast(pa.binary()))
    return batch


def _micros(numbers: pa.Array, unit: str) -> pa.Array:
    per_unit = {"s": 10**6, "ms": 10**3, "us": 1}[unit]
    micros = numbers if per_unit == 1 else pc.multiply(numbers, per_unit)
    return micros.cast(ADDED[1].type)


def rejected(batch: pa.RecordBatch, causes: list[tuple[int, str]]) -> list[Rejected]:
    """The records of a batch that cannot be decoded, each with its cause."""
    stamps = batch.column("timestamp")
    unit = stamps.type.unit if pa.types.is_timestamp(stamps.type) else "ms"
    return _rejected(batch, causes, batch.column("offset"), stamps.cast(pa.int64()), unit)


def _rejected(
    batch: pa.RecordBatch,
    causes: list[tuple[int, str]],
    offsets: pa.Array,
    numbers: pa.Array,
    unit: str,
) -> list[Rejected]:
    if not causes:
        return []
    keys, values = batch.column("key"), batch.column("value")
    has_headers = "headers" in batch.schema.names
    return [
        Rejected(
            offset=offsets[row].as_py(),
            cause=cause[:CAUSE_CHARACTERS],
            key=keys[row].as_py(),
            value=values[row].as_py(),
            timestamp_ms=_millis(numbers[row].as_py(), unit),
            headers=_headers(batch.column("headers")[row].as_py()) if has_headers else (),
        )
        for row, cause in sorted(causes)
    ]


def _millis(number: int | None, unit: str) -> int:
    per_s = {"s": 1, "ms": 10**3, "us": 10**6}[unit]
    return -1 if number is None else number * 1000 // per_s


def _headers(headers: list[dict[str, bytes | None]] | None) -> list[tuple[str, bytes | None]]:
    """From a list of structs of two members, or a map."""
    pairs = [
        tuple(header.values()) if isinstance(header, dict) else header for header in headers or []
    ]
    return [
        (name.decode(errors="replace") if isinstance(name, bytes) else str(name), value)
        for name, value in pairs
    ]
