"""What a query gives over tables as they are, by DuckDB, to compare the rows of a view with.

Both systems have values of their own types in places. A division, an average or a percentile is a
decimal in Spark and a double in DuckDB: the double is right if it rounds to the decimal. Sums of
doubles depend on the order in DuckDB, so doubles are compared by 9 digits. NaN equals NaN, -0.0
equals 0.0.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Self

import duckdb
import pyarrow as pa

from support.pipelines.view_driver import Table

_TYPES = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "double": pa.float64(),
    "date": pa.date32(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
}


class Oracle:
    """A database in memory that has the tables' rows of now."""

    def __init__(self, tables: Mapping[str, Table]) -> None:
        self._tables = tables
        self._rows: dict[str, dict[tuple, dict]] = {name: {} for name in tables}
        self._loaded: set[str] = set()
        self.has_begun = False  # whether there was any change
        self._database = duckdb.connect()
        self._database.execute("SET TimeZone = 'UTC'")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def apply(self, changes: Mapping[str, Sequence[dict]]) -> None:
        """As ViewDriver.batch: "_op" of a row is "d" or "t", or it is written."""
        self.has_begun |= any(changes.values())
        for name, table in self._tables.items():
            rows = self._rows[name]
            for change in changes.get(name, ()):
                key = tuple(change.get(column) for column in table.key) or (len(rows),)
                if change.get("_op") == "t":
                    rows.clear()
                elif change.get("_op") == "d":
                    rows.pop(key, None)
                else:
                    rows[key] = change
            if changes.get(name) or name not in self._loaded:
                self._load(name, list(rows.values()))

    def _load(self, name: str, rows: list[dict]) -> None:
        given = pa.Table.from_pylist(rows, schema=_arrow_schema(self._tables[name].schema))
        self._database.register("given", given)
        self._database.execute(f'CREATE OR REPLACE TABLE "{name}" AS SELECT * FROM given')
        self._database.unregister("given")
        self._loaded.add(name)

    def rows(self, query: str) -> list[tuple]:
        found = self._database.sql(query).to_arrow_table()
        columns = [column.to_pylist() for column in found.columns]
        return list(zip(*columns, strict=True))


def _arrow_schema(schema: str) -> pa.Schema:
    fields = []
    for column in schema.replace(", ", "\n").splitlines():
        name, kind = column.split()
        if kind.startswith("decimal"):
            precision, scale = kind[len("decimal(") : -1].split(",")
            fields.append((name, pa.decimal128(int(precision), int(scale))))
        else:
            fields.append((name, _TYPES[kind]))
    return pa.schema(fields)


def difference(found: Iterable[tuple], wanted: Iterable[tuple]) -> str:
    """What differs between two results, whatever the order of their rows; "" if nothing does."""
    ours = [tuple(map(_plain, row)) for row in found]
    theirs = [tuple(map(_plain, row)) for row in wanted]
    by_text: dict[tuple, list[tuple]] = defaultdict(list)
    for row in theirs:
        by_text[_exact_part(row)].append(row)
    more = []
    for row in ours:
        candidates = by_text[_exact_part(row)]
        same = next((one for one in candidates if _rows_equal(row, one)), None)
        if same is None:
            more.append(row)
        else:
            candidates.remove(same)
    less = [row for rows in by_text.values() for row in rows]
    if not more and not less:
        return ""
    lines = [f"the view has {len(ours)} rows, DuckDB {len(theirs)}"]
    lines += [f"  view   {row}" for row in more[:9]]
    lines += [f"  DuckDB {row}" for row in less[:9]]
    return "\n".join(lines)


def _exact_part(row: tuple) -> tuple:
    """Of the values that both systems give alike: not of numbers, which may be rounded."""
    return tuple(
        None if isinstance(value, float | Decimal | int | tuple) else value for value in row
    )


def _rows_equal(row: tuple, other: tuple) -> bool:
    return len(row) == len(other) and all(map(_is_same, row, other))


def _plain(value: object) -> object:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    if isinstance(value, date):  # an interval makes a timestamp of a date in DuckDB
        return datetime(value.year, value.month, value.day)  # noqa: DTZ001
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    if isinstance(value, dict):
        return tuple(map(_plain, value.values()))
    return value


def _is_same(one: object, other: object) -> bool:
    numbers = (int, float, Decimal)
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one is other
    if isinstance(one, tuple) and isinstance(other, tuple):
        return _rows_equal(one, other)
    if isinstance(one, numbers) and isinstance(other, numbers):
        if isinstance(one, float) and isinstance(other, float):
            if math.isnan(one) or math.isnan(other):
                return math.isnan(one) and math.isnan(other)
            return one == other or math.isclose(one, other, rel_tol=1e-9)
        if isinstance(one, float) or isinstance(other, float):
            exact, rounded = (other, one) if isinstance(one, float) else (one, other)
            unit = 10.0 ** Decimal(exact).as_tuple().exponent
            return abs(float(exact) - float(rounded)) <= max(0.51 * unit, 1e-9 * abs(rounded))
        return one == other
    return one == other
