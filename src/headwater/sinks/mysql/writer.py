"""Writes batches into a table of MySQL or MariaDB."""

import contextlib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pymysql

from headwater.databases.mysql import Address
from headwater.errors import RowRefused, SinkError, StoreUnreachable
from headwater.sinks import sql_positions
from headwater.sinks.contract import OP, Batch, Refuse, Writer, is_applied
from headwater.sinks.mysql.session import Session, code_of
from headwater.sinks.mysql.tables import Table, Tables, names, quoted
from headwater.sinks.mysql.values import RowTexts, checked, column_types
from headwater.sinks.rows.last_by_key import reduce
from headwater.sinks.rows.row_validation import shown
from headwater.sinks.rows.schema_evolution import evolved, fitted
from headwater.sinks.sql_positions import StoredVersion

_TEXT_ROWS: Final = 20_000  # turned into text at a time
_STATEMENT_BYTES: Final = 1 << 20
_STATEMENT_ROWS: Final = 5_000
_DELETED_KEYS: Final = 500  # more in one statement, and MariaDB makes a join of it
_HEAD_BYTES: Final = 64 * 1024  # of a statement, beside its rows
_NULL: Final = 1048
_TWICE: Final = 1062
_TOO_LARGE: Final = 1153


class MySqlWriter(Writer):
    def __init__(
        self, address: Address, tables: Tables, session: Session, stored: StoredVersion
    ) -> None:
        self._address = address
        self._tables = tables
        self._key = tables.target.key
        self._session = session
        self._version = stored.version
        self._epoch = stored.epoch
        self._fields = stored.fields
        self.position = stored.position
        [(limit,)] = session.ask("SELECT @@max_allowed_packet")
        self._row_bytes = int(limit) - _HEAD_BYTES
        self._piece_bytes = min(_STATEMENT_BYTES, self._row_bytes)

    def apply(self, batch: Batch, refuse: Refuse | None = None) -> None:
        try:
            self._add_columns(batch)
            self._tables.retried(self._session, self._version, lambda: self._apply(batch, refuse))
        except StoreUnreachable:
            self._check_fenced()
            raise

    def _apply(self, batch: Batch, refuse: Refuse | None) -> None:
        refused: list[RowRefused] | None = None if refuse is None else []
        with self._session.transaction():
            stored = self._own(self._tables.stored(self._session, self._version, locks=True))
            position = stored.position
            if not is_applied(position, batch):
                position = batch.position()
                table = self._tables.locked_table(self._session, self._version)
                self._write(table, batch, refused)
                if refuse is not None and refused:
                    refuse(refused)
                self._tables.save(self._session, self._version, position, self._fields)
        self.position = position

    def _add_columns(self, batch: Batch) -> None:
        """Before the transaction, because it would end it; for a batch that is new."""
        fields = pa.schema([field for field in batch.rows.schema if field.name != OP])
        changed = evolved(self._fields, fields)
        if changed.added or changed.widened:
            with self._tables.unchanging(self._session):
                stored = self._own(self._tables.all_stored(self._session).get(self._version))
                if not is_applied(stored.position, batch):
                    self._fields = self._tables.evolve(self._session, stored, fields)

    def _own(self, stored: StoredVersion | None) -> StoredVersion:
        if stored is None or stored.epoch != self._epoch:
            raise sql_positions.fenced(self._tables.target, self._version)
        return stored

    def _check_fenced(self) -> None:
        """Raises Fenced if a new writer has ended this connection."""
        with contextlib.suppress(SinkError), closing(Session(self._address)) as session:
            self._own(self._tables.stored(session, self._version))

    def _write(self, table: Table, batch: Batch, refused: list[RowRefused] | None) -> None:
        table.check_engine()
        reduced = reduce(batch.rows, self._key, refused)
        types = column_types(self._fields, self._key)
        name = quoted(table.name)
        if reduced.clears:
            self._session.run(f"DELETE FROM {name}")
        if len(reduced.deletes):
            key = pa.schema([self._fields.field(column) for column in self._key])
            rows = checked(fitted(reduced.deletes, key), types, refused)
            labels = [quoted(column).encode() for column in self._key]
            statement = _Statement(f"DELETE FROM {name} WHERE ", "", labels, _DELETED_KEYS)
            self._send(statement, rows, table, refused)
        rows = checked(fitted(reduced.upserts, self._fields), types, refused)
        head = f"INSERT INTO {name} ({names(rows.column_names)}) VALUES "
        tail = _on_duplicate(rows.column_names, self._key, is_guarded=bool(table.uniques))
        self._send(_Statement(head, tail, [], _STATEMENT_ROWS), rows, table, refused)

    def _send(
        self,
        statement: "_Statement",
        rows: pa.Table,
        table: Table,
        refused: list[RowRefused] | None,
    ) -> None:
        if self._key:  # the order in which the table's pages lie
            rows = rows.sort_by([(column, "ascending") for column in self._key])
        for piece in rows.combine_chunks().to_batches(max_chunksize=_TEXT_ROWS):
            texts = RowTexts(piece, statement.labels)
            for begin, end in texts.pieces(self._piece_bytes, statement.rows):
                self._send_run(statement, piece, texts, begin, end, table, refused)

    def _send_run(
        self,
        statement: "_Statement",
        rows: pa.RecordBatch,
        texts: RowTexts,
        begin: int,
        end: int,
        table: Table,
        refused: list[RowRefused] | None,
    ) -> None:
        """A statement changes all of its rows or none, so a bad row is found by bisection."""
        run = texts.of(begin, end)
        try:
            if len(run) > self._row_bytes:
                raise pymysql.err.DataError(_TOO_LARGE, "longer than max_allowed_packet")
            self._session.send(b"".join((statement.head.encode(), run, statement.tail.encode())))
        except pymysql.err.MySQLError as error:
            if end - begin > 1:
                middle = (begin + end) // 2
                self._send_run(statement, rows, texts, begin, middle, table, refused)
                self._send_run(statement, rows, texts, middle, end, table, refused)
                return
            refusal = _refusal(error, shown(rows.slice(begin, 1))[0], table, self._key)
            if refused is None:
                raise refusal from error
            refused.append(refusal)

    def close(self) -> None:
        self._session.close()


@dataclass(frozen=True, slots=True)
class _Statement:
    """The text around the rows of a statement, and how many rows it has at most."""

    head: str
    tail: str
    labels: Sequence[bytes]
    rows: int


def _on_duplicate(columns: Sequence[str], key: Sequence[str], *, is_guarded: bool) -> str:
    """An upsert by our key only. Where a further unique index finds a row of another key, that row
    must not be overwritten: its key becomes null, which is an error.
    """
    if not key:
        return ""
    own = [f"{name} = IF({name} <=> VALUES({name}), {name}, NULL)" for name in map(quoted, key)]
    others = [
        f"{quoted(column)} = VALUES({quoted(column)})" for column in columns if column not in key
    ]
    sets = (own if is_guarded else []) + others or [f"{quoted(key[0])} = {quoted(key[0])}"]
    return f" ON DUPLICATE KEY UPDATE {', '.join(sets)}"


def _refusal(error: Any, row: dict[str, Any], table: Table, key: Sequence[str]) -> RowRefused:
    code, text = code_of(error), str(error.args[1])
    column = next((name for name in row if f"olumn '{name}'" in text), "")
    if (code == _NULL and column in key) or code == _TWICE:  # see _on_duplicate
        uniques = [first for index, first in table.uniques.items() if index in text]
        uniques = uniques or list(table.uniques.values())
        column = uniques[0] if len(uniques) == 1 else ""
        text = "another row has the same in a unique index"
    return sql_positions.refusal(
        row, column, f"table {table.name} does not take a row", f"{text} ({code})"
    )
