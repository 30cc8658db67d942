"""Rows of a test as the records of a topic: typed columns, `_op`, `_at` and `_position`."""

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast
from uuid import UUID

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from headwater.errors import ConfigError, PipelineError
from headwater.pipelines.decoding.json.records import JsonDecoder
from headwater.pipelines.flow import AT, Schema
from headwater.pipelines.position import POSITION, POSITION_TYPE
from headwater.sinks.contract import DELETE, OP, TRUNCATE
from headwater.spelling import nearest

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

_ISO: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]")
_TIMES: Final = pa.timestamp("us", "UTC")
_OPS: Final = ("c", "u", "r", DELETE, TRUNCATE)
_SCHEMA_HINT: Final = 'give its columns: hw.testing.topic(rows, schema="id bigint, …")'

Row: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = "Sequence[Row] | pa.Table | pd.DataFrame"


@dataclass(frozen=True)
class Topic:
    """The rows of one topic, as `hw.testing.topic` describes them."""

    rows: Rows
    schema: Schema | None = None
    key: tuple[str, ...] = ()


def topic(rows: Rows, schema: Schema | None = None, *, key: Sequence[str] | str = ()) -> Topic:
    """Rows of a topic, for `run`, where they alone do not say everything.

    `schema`  the columns of a captured table ("id bigint, total decimal(10,2)"); without it they
              are derived from the values. A schema in the pipeline's function has priority
    `key`     the columns that identify a row of a captured table, for `hw.enrich`,
              `hw.join_tables` and `flow.table`
    """
    return Topic(rows, schema, (key,) if isinstance(key, str) else tuple(key))


class TopicRows:
    """One topic of a test. Offsets are the numbers of the rows, in partition 0."""

    def __init__(self, name: str, given: "Rows | tuple[Rows, Schema] | Topic") -> None:
        if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Schema):
            given = Topic(given[0], given[1])
        elif not isinstance(given, Topic):
            given = Topic(cast("Rows", given))
        self.name = name
        self.key = given.key
        self._schema = given.schema
        self._rows, self._table = self._taken(given.rows)

    def __len__(self) -> int:
        return len(self._rows if self._table is None else self._table)

    def _taken(self, rows: Any) -> tuple[list[Row], pa.Table | None]:
        """Either dictionaries, or an Arrow table."""
        if isinstance(rows, pa.Table):
            return [], rows
        if hasattr(rows, "columns") and hasattr(rows, "to_dict"):  # pandas need not be installed
            return [], pa.Table.from_pandas(rows, preserve_index=False)
        is_sequence = isinstance(rows, Sequence) and not isinstance(rows, str | bytes)
        if not is_sequence or not all(isinstance(row, Mapping) for row in rows):
            raise PipelineError(
                f"the rows of {self.name} are {type(rows).__name__}",
                hint='rows are a list of dictionaries [{"id": 1, …}, …], a pandas DataFrame or'
                " an Arrow table",
            )
        return list(rows), None

    @cached_property
    def times(self) -> list[datetime | None]:
        """`_at` of each row; None where it has none."""
        return [self._time(value) for value in self._values(AT)]

    @cached_property
    def latest(self) -> list[datetime | None]:
        """The latest time among the values of each row."""
        columns = [[_moment(value) for value in self._values(name)] for name in self._names()]
        rows = zip(*columns, strict=True) if columns else [()] * len(self)
        return [max((at for at in row if at is not None), default=None) for row in rows]

    def _time(self, value: Any) -> datetime | None:
        try:
            at = datetime.fromisoformat(value) if isinstance(value, str) else value
        except ValueError:
            at = value
        if at is not None and not isinstance(at, datetime):
            raise PipelineError(
                f"{AT} of a row of {self.name} is {value!r}",
                hint='it is a time: datetime(…, tzinfo=UTC), or "2026-03-01T12:00:00Z"',
            )
        return None if at is None else _in_utc(at)

    def _values(self, name: str) -> list[Any]:
        if self._table is None:
            return [row.get(name) for row in self._rows]
        if name in self._table.column_names:
            return cast("list[Any]", self._table[name].to_pylist())
        return [None] * len(self._table)

    def columns(self) -> StructType:
        """Of a captured table: from the given schema, else from the values. Raises PipelineError if
        the values do not say.
        """
        if self._schema is not None:
            return struct_of(self._schema)
        fields = self._inferred.schema
        if not fields.names:
            raise PipelineError(f"the columns of {self.name} are unknown", hint=_SCHEMA_HINT)
        for field in fields:
            if pa.types.is_null(field.type):
                raise PipelineError(
                    f"the type of {field.name} of {self.name} is unknown",
                    detail="none of its rows has a value there",
                    hint=_SCHEMA_HINT,
                )
        try:
            return from_arrow_schema(fields)
        except PySparkException as error:
            raise PipelineError(
                f"{self.name} has a column of a type that Spark does not have",
                detail=str(error),
                hint=_SCHEMA_HINT,
            ) from error

    @cached_property
    def _inferred(self) -> pa.Table:
        if self._table is not None:
            ours = [name for name in (OP, AT) if name in self._table.column_names]
            return self._table.drop_columns(ours)
        arrays = {}
        for name in self._names():
            try:
                arrays[name] = pa.array([row.get(name) for row in self._rows])
            except (pa.ArrowException, OverflowError) as error:
                raise PipelineError(
                    f"the values of {name} of {self.name} have no common type",
                    detail=str(error),
                    hint=_SCHEMA_HINT,
                ) from error
        return pa.table(arrays)

    def _names(self) -> list[str]:
        found = self._rows if self._table is None else [dict.fromkeys(self._table.column_names)]
        names = dict.fromkeys(name for row in found for name in row)
        return [name for name in names if name not in (OP, AT)]

    def table(
        self, columns: StructType, *, op: str, default_at: datetime, unit: str | None
    ) -> pa.Table:
        """All records: these columns, `_op` (`op` where a row has none), `_at` and `_position`.
        `unit` is that of numbers as times, as of JSON. Raises PipelineError for a row that does not
        fit.
        """
        fields = to_arrow_schema(columns, timezone="UTC")
        self._check_names(fields.names)
        ops = [op if value is None else value for value in self._values(OP)]
        for value in ops:
            if value not in _OPS:
                raise PipelineError(
                    f"{OP} of a row of {self.name} is {value!r}", hint="it is " + ", ".join(_OPS)
                )
        data = self._decoded(fields, unit) if self._table is None else self._cast(fields)
        self._check_nulls(data, fields, ops)
        added = {
            OP: pa.array(ops, pa.string()),
            AT: pa.array(self._filled_times(default_at), _TIMES),
            POSITION: self.positions(),
        }
        for name, column in added.items():
            data = data.append_column(name, column)
        return data

    def positions(self) -> pa.StructArray:
        size = len(self)
        return pa.StructArray.from_arrays(
            [
                pa.repeat(pa.scalar(self.name), size),
                pa.repeat(pa.scalar(0, pa.int32()), size),
                pa.array(range(size), pa.int64()),
            ],
            fields=list(POSITION_TYPE),
        )

    def _filled_times(self, default_at: datetime) -> list[datetime]:
        """A row without a time is written when the one before was, and not before any time in it:
        else operators would take that for a wrong clock.
        """
        filled, last = [], default_at
        for at, latest in zip(self.times, self.latest, strict=True):
            last = max(last, latest or last) if at is None else at
            filled.append(last)
        return filled

    def raw(self, *, default_at: datetime, headers: bool) -> pa.Table:
        """Records whose values are bytes: rows have a `key` and a `value`, as bytes or texts."""
        names = ["key", "value", "timestamp", *(["headers"] if headers else [])]
        self._check_names(names)
        pairs = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
        position = self.positions()
        table = pa.table(
            {
                "key": pa.array([_bytes(key) for key in self._values("key")], pa.binary()),
                "value": pa.array([_bytes(value) for value in self._values("value")], pa.binary()),
                "topic": position.field("topic"),
                "partition": position.field("partition"),
                "offset": position.field("offset"),
                "timestamp": pa.array(
                    [
                        self._time(given) or at
                        for given, at in zip(
                            self._values("timestamp"), self._filled_times(default_at), strict=True
                        )
                    ],
                    _TIMES,
                ),
            }
        )
        if headers:
            found = [
                [
                    {"name": name, "value": _bytes(value)}
                    for name, value in dict(given or {}).items()
                ]
                for given in self._values("headers")
            ]
            table = table.append_column("headers", pa.array(found, pairs))
        return table

    def _check_names(self, names: Sequence[str]) -> None:
        for name in self._names():
            if name not in names:
                meant = nearest(name, tuple(names))
                raise PipelineError(
                    f"rows of {self.name} have a column that it does not have: {name}",
                    detail="columns are " + ", ".join(names),
                    hint=f"did you mean {meant}?" if meant else "",
                )

    def _decoded(self, fields: pa.Schema, unit: str | None) -> pa.Table:
        """By the decoder of JSON: "2026-03-01" is a date, "1.10" a decimal."""
        nullable = pa.schema([field.with_nullable(True) for field in fields])
        options = {"timestamp.unit": unit} if unit else {}
        values = [
            json.dumps({name: _plain(row[name]) for name in row if name not in (OP, AT)}).encode()
            for row in self._rows
        ]
        size = len(values)
        records = pa.record_batch(
            {
                "key": pa.nulls(size, pa.binary()),
                "value": pa.array(values, pa.binary()),
                "offset": pa.array(range(size), pa.int64()),
                "timestamp": pa.array([0] * size, pa.int64()),
            }
        )
        try:
            decoded = JsonDecoder(nullable, options).decode(records, self.name, 0)
        except ConfigError as error:
            raise PipelineError(
                f"the schema of {self.name}: {error.what}", detail=error.detail, hint=error.hint
            ) from error
        if decoded.rejected:
            first = decoded.rejected[0]
            raise PipelineError(
                f"row {first.offset} of {self.name} does not fit its columns",
                detail=f"{first.cause}: {dict(self._rows[first.offset])}",
            )
        return pa.Table.from_batches([decoded.rows]).select(fields.names)

    def _cast(self, fields: pa.Schema) -> pa.Table:
        size, columns = len(self), []
        for field in fields:
            if field.name not in self._inferred.column_names:
                columns.append(pa.chunked_array([pa.nulls(size, field.type)]))
                continue
            try:
                columns.append(self._inferred[field.name].cast(field.type))
            except pa.ArrowException as error:
                raise PipelineError(
                    f"{field.name} of {self.name} is {self._inferred[field.name].type}, which does"
                    f" not become {field.type}",
                    detail=str(error),
                ) from error
        return pa.table(columns, schema=pa.schema([f.with_nullable(True) for f in fields]))

    def _check_nulls(self, data: pa.Table, fields: pa.Schema, ops: Sequence[str]) -> None:
        """As decoders do: a delete may have its key only."""
        for field in fields:
            if field.nullable or not data[field.name].null_count:
                continue
            for number, (value, op) in enumerate(zip(data[field.name], ops, strict=True)):
                if not value.is_valid and op not in (DELETE, TRUNCATE):
                    raise PipelineError(
                        f"row {number} of {self.name} has no {field.name}, which is not null"
                    )


def struct_of(schema: Schema) -> StructType:
    """Raises PipelineError for DDL that Spark cannot read."""
    if not isinstance(schema, str):
        return schema
    try:
        return cast("StructType", StructType.fromDDL(schema))
    except PySparkException as error:
        raise PipelineError(
            f"Spark cannot read the schema {schema!r}",
            detail=str(error).strip().splitlines()[0],
            hint='columns are named as in SQL: "id bigint, total decimal(10,2), at timestamp"',
        ) from error


def _moment(value: Any) -> datetime | None:
    """The time that a value is, or that a text has."""
    if isinstance(value, str) and _ISO.match(value):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    return _in_utc(value) if isinstance(value, datetime) else None


def _in_utc(at: datetime) -> datetime:
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(_plain(value)).encode()


def _plain(value: Any) -> Any:
    """As JSON has it, so that its decoder reads the same value."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    return value.item() if hasattr(value, "item") else value  # NumPy's
