"""Chunks of tables for snapshots: rows and the end of the log, read in one transaction."""

import marshal
import sqlite3
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final

from headwater.capture.contract import Begin, Chunk, LogPosition, Row, Table
from headwater.capture.sqlite.catalog import Definition, quoted
from headwater.capture.sqlite.values import row_maker

_SPOOLED_ROWS: Final = 1_000
_SPOOL_IN_MEMORY_BYTES: Final = 4 << 20


@dataclass(slots=True)
class SqliteChunk(Chunk):
    table: Table
    rows: Any
    after: Any
    last_id: int  # of the log, in the state of the database in which the rows were read

    def contains(self, transaction: Begin) -> bool:
        return bool(transaction.at["id"] <= self.last_id)

    def is_passed(self, position: LogPosition) -> bool:
        return bool(position["id"] >= self.last_id)

    def bounds(self) -> int:
        return self.last_id


def read_rows(
    connection: sqlite3.Connection, definition: Definition, after: Any, limit_rows: int
) -> tuple[list[Row] | Iterator[Row], Any]:
    """The rows behind `after` in the order of the key, and where the next begin; without a key all
    of them, buffered in a file, for the read transaction must not last as long as the reader needs.
    """
    names = tuple(name for name, _, _ in definition.columns)
    select = f"SELECT {', '.join(map(quoted, names))} FROM {quoted(definition.name)}"
    if not definition.key:
        return _spooled(connection.execute(select), names), None
    keys = ", ".join(map(quoted, definition.key))
    order = f" ORDER BY {keys} LIMIT {int(limit_rows)}"
    rows: list[tuple[Any, ...]] = []
    if after is None:
        where = ""
        if definition.nullable_key:
            # NULL is greater than nothing: such rows all come first.
            is_null = " OR ".join(f"{quoted(key)} IS NULL" for key in definition.key)
            rows = connection.execute(f"{select} WHERE {is_null}").fetchall()
            where = f" WHERE NOT ({is_null})"
        found = connection.execute(select + where + order).fetchall()
    else:
        marks = ", ".join("?" * len(definition.key))
        sql = f"{select} WHERE ({keys}) > ({marks}){order}"
        found = connection.execute(sql, [_from_json(value) for value in after]).fetchall()
    if len(found) < limit_rows:
        next_after = None
    else:
        key_at = [names.index(key) for key in definition.key]
        next_after = [_to_json(found[-1][i]) for i in key_at]
    rows += found
    make_row = row_maker(rows)
    return [make_row(names, row) for row in rows], next_after


def _spooled(rows: sqlite3.Cursor, names: tuple[str, ...]) -> Iterator[Row]:
    spool = tempfile.SpooledTemporaryFile(max_size=_SPOOL_IN_MEMORY_BYTES)  # noqa: SIM115
    while batch := rows.fetchmany(_SPOOLED_ROWS):
        marshal.dump(batch, spool)  # ours alone, and read back by this process
    spool.seek(0)
    return _unspooled(spool, names)


def _unspooled(spool: IO[bytes], names: tuple[str, ...]) -> Iterator[Row]:
    with spool:
        while True:
            try:
                batch: Sequence[tuple[Any, ...]] = marshal.load(spool)  # noqa: S302
            except EOFError:
                return
            make_row = row_maker(batch)
            for row in batch:
                yield make_row(names, row)


def _to_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"blob": b64encode(value).decode()}
    if isinstance(value, float):  # JSON has no infinity
        return {"real": value.hex()}
    return value


def _from_json(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return b64decode(value["blob"]) if "blob" in value else float.fromhex(value["real"])
