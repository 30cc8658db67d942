"""`hw.lookup`: events joined with rows of a live database, as they are when the batch runs."""

import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.errors import PipelineError, SinkError, StoreUnreachable
from headwater.pipelines.operators.joins.join_columns import On, pairs_of
from headwater.pipelines.operators.joins.lookup_queries import (
    MOST_KEYS,
    Database,
    Key,
    Row,
    check_url,
    connect,
)
from headwater.pipelines.operators.runtime.naming import depends_on_when
from headwater.pipelines.operators.time.durations import Duration, microseconds
from headwater.settings import Secret

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_KIND: Final = "lookup"
_MOST_CACHED: Final = 100_000  # rows of a process
_ATTEMPTS: Final = 4
_PAUSE_S: Final = 0.5  # before the second attempt; twice as long before each further one


def lookup(
    events: "DataFrame",
    *,
    url: str,
    table: str,
    on: On,
    columns: "str | StructType",
    how: str = "left",
    cache: Duration = "1 minute",
) -> "DataFrame":
    """The events, each with columns of the row of a database's table that has its key, as it is
    when the batch runs, or was at most `cache` ago. A batch that runs again may find other rows, so
    the result cannot be verified; `hw.enrich` is for what the log has.

    `on`        the event's columns, and the table's if they have other names: pairs
    `columns`   those that are wanted, with their types: "country string, rating int"
    `how`       left: an event without a row has nulls; inner: it is left out
    """
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    pairs = pairs_of(_KIND, on)
    for name, _ in pairs:
        if name not in events.columns:
            raise PipelineError(
                f"{_KIND}: there is no column {name}",
                detail="columns are " + ", ".join(events.columns),
            )
    if how not in ("left", "inner"):
        raise PipelineError(f"how={how!r}", hint="it is left or inner")
    if not isinstance(table, str) or not all(table.split(".")):
        raise PipelineError(f"{_KIND}: table={table!r}", hint='"customers", "public.customers"')
    fields = to_arrow_schema(_kinds(columns), timezone="UTC")
    for name in fields.names:
        if name in events.columns:
            raise PipelineError(
                f"{_KIND}: the events have a column {name} already", hint="rename it first"
            )
    secret = Secret(url)
    check_url(secret)
    output = pa.schema([*to_arrow_schema(events.schema, timezone="UTC"), *fields])
    lookup_join = LookupJoin(
        secret,
        table,
        tuple(one for one, _ in pairs),
        tuple(other for _, other in pairs),
        fields,
        output,
        how == "inner",
        microseconds(cache, "cache") / 1e6,
    )
    depends_on_when("hw.lookup")
    return events.mapInArrow(lookup_join, from_arrow_schema(output))


def _kinds(columns: "str | StructType") -> "StructType":
    from pyspark.errors import ParseException
    from pyspark.sql.types import StructType

    why = ""
    try:
        kinds = StructType.fromDDL(columns) if isinstance(columns, str) else columns
        if isinstance(kinds, StructType) and kinds.names:
            return kinds
    except ParseException as error:
        why = str(error).strip().partition("\n")[0]
    raise PipelineError(
        f"{_KIND}: columns={columns!r} does not name columns and their types",
        detail=why,
        hint='columns="country string, rating int"',
    )


@dataclass(frozen=True)
class LookupJoin:
    """The lookup join. Called by Spark in each task with the task's rows."""

    url: Secret
    table: str
    event_key: tuple[str, ...]
    key: tuple[str, ...]
    fields: pa.Schema
    output: pa.Schema
    is_inner: bool
    cache_s: float

    @property
    def __name__(self) -> str:
        """Spark's name of it in plans, and so a part of the fingerprints of operators behind it:
        another name would be another operator, without its state.
        """
        return "LookingUp"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = _rows_of(self)
        for batch in batches:
            if batch.num_rows:
                yield self._joined(batch, rows)

    def _joined(self, batch: pa.RecordBatch, rows: "CachedRows") -> pa.RecordBatch:
        keys, which = _distinct([batch.column(name) for name in self.event_key])
        wanted_keys = [key for key in keys if None not in key]
        found = rows.get(wanted_keys)
        values = [found.get(key) for key in keys]
        of_events = pa.array(which)
        columns = [
            _typed([None if row is None else row[index] for row in values], field).take(of_events)
            for index, field in enumerate(self.fields)
        ]
        joined = pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=self.output)
        if not self.is_inner:
            return joined
        is_found = np.array([row is not None for row in values], np.bool_)[which]
        return joined.filter(pa.array(is_found))


class CachedRows:
    """A cache of rows by key, with a time to live, one per process. None: there is no such row."""

    def __init__(self, settings: LookupJoin) -> None:
        self._settings = settings
        self._database: Database | None = None
        self._cache: OrderedDict[Key, tuple[float, Row | None]] = OrderedDict()  # since when

    def get(self, keys: Sequence[Key]) -> dict[Key, Row | None]:
        oldest_s = time.monotonic() - self._settings.cache_s
        found: dict[Key, Row | None] = {}
        missing = []
        for key in keys:
            cached = self._cache.get(key)
            if cached is None or cached[0] <= oldest_s:
                missing.append(key)
            else:
                found[key] = cached[1]
        for first in range(0, len(missing), MOST_KEYS):
            found |= self._ask(missing[first : first + MOST_KEYS])
        return found

    def _ask(self, keys: Sequence[Key]) -> dict[Key, Row | None]:
        rows = self._with_retries(keys)
        width = len(self._settings.key)
        answered: dict[Key, Row | None] = dict.fromkeys(keys)
        for key, row in zip(self._keys_of(rows), rows, strict=True):
            # char(n) comes with blanks behind it
            trimmed = tuple(value.rstrip(" ") if isinstance(value, str) else value for value in key)
            which = key if key in answered else trimmed
            if which in answered:
                answered[which] = row[width:]
        now_s = time.monotonic()
        for key, answer in answered.items():
            self._cache.pop(key, None)
            self._cache[key] = now_s, answer
        while len(self._cache) > _MOST_CACHED:
            self._cache.popitem(last=False)
        return answered

    def _keys_of(self, rows: Sequence[Row]) -> list[Key]:
        """By the types of the events: a driver may have its own."""
        columns = [
            _typed([row[index] for row in rows], self._settings.output.field(name)).to_pylist()
            for index, name in enumerate(self._settings.event_key)
        ]
        return list(zip(*columns, strict=True))

    def _with_retries(self, keys: Sequence[Key]) -> list[Row]:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                if self._database is None:
                    settings = self._settings
                    self._database = connect(
                        settings.url, settings.table, settings.key, settings.fields.names
                    )
                return self._database.rows(keys)
            except SinkError as error:
                self._disconnect()
                if attempt == _ATTEMPTS or not isinstance(error, StoreUnreachable):
                    raise PipelineError(
                        f"{_KIND}: {self._settings.table} cannot be read: {error.what}",
                        detail=error.detail,
                        hint=error.hint,
                    ) from error
                time.sleep(_PAUSE_S * 2 ** (attempt - 1))
        raise AssertionError("unreachable")

    def _disconnect(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


# A worker process serves many tasks: connections and rows outlive them.
_caches: dict[tuple[Any, ...], CachedRows] = {}


def _rows_of(settings: LookupJoin) -> CachedRows:
    kinds = tuple(str(settings.output.field(name).type) for name in settings.event_key)
    names = tuple(settings.fields.names)
    what = (settings.url, settings.table, settings.key, kinds, names, settings.cache_s)
    if what not in _caches:
        _caches[what] = CachedRows(settings)
    return _caches[what]


def _distinct(columns: Sequence[pa.Array]) -> tuple[list[Key], npt.NDArray[np.int64]]:
    """The keys, and which of them each row has."""
    encoded = [column.dictionary_encode(null_encoding="encode") for column in columns]
    codes = np.zeros(len(columns[0]), np.int64)
    for column in encoded:
        codes = codes * len(column.dictionary) + column.indices.to_numpy(zero_copy_only=False)
        _, first, codes = np.unique(codes, return_index=True, return_inverse=True)
    values = [column.take(pa.array(first)).to_pylist() for column in columns]
    return list(zip(*values, strict=True)), codes


def _typed(values: list[Any], field: pa.Field) -> pa.Array:
    """Drivers have types of their own, or give texts."""
    why = ""
    for read in (pa.array, _from_texts, _from_texts_in_utc):
        try:
            return read(values, field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            why = str(error)
    raise PipelineError(f"{_KIND}: {field.name} is not of the type in columns", detail=why)


def _from_texts(values: list[Any], kind: pa.DataType) -> pa.Array:
    texts = [None if value is None else str(value) for value in values]
    return pa.array(texts, pa.string()).cast(kind)


def _from_texts_in_utc(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Of times without a zone."""
    is_time = pa.types.is_timestamp(kind)
    return _from_texts(values, pa.timestamp("us") if is_time else kind).cast(kind)
