"""Tables of MySQL (8.0.17 and newer) and MariaDB (10.6 and newer), InnoDB.

One transaction has a batch's rows and its position; everything else that changes is DDL, which
commits by itself, and is made so that a crash between any two statements is found and mended:

- **Which version a table is stands in its comment**, and goes with it when it is renamed. `promote`
  is one RENAME TABLE; nothing else says what is live. The column is_live of the positions is only
  the wish, for servers whose RENAME of two tables can stop between them.
- A table is made before its position; one without a position is empty, and is made anew. A version
  is dropped in three steps: its position says so (fields is empty), the table goes, the row goes.
- Columns are added before the transaction of the batch that has them.

A writer's first statements on the table take its metadata lock and then read the comment: until the
transaction ends nobody can rename it.
"""

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pymysql

from headwater.errors import RowRefused, SinkError, StoreRefused, StoreUnreachable
from headwater.sinks import sql
from headwater.sinks.contract import (
    OP,
    Batch,
    Contents,
    Log,
    Position,
    Refuse,
    Store,
    Target,
    Version,
    Writer,
    fields_to_text,
    is_applied,
    name_of,
)
from headwater.sinks.evolving import evolved, fitted, plain
from headwater.sinks.mysql_session import LOCKED, NoSuchTable, Session, address_of, code_of
from headwater.sinks.mysql_table import Table, table_of
from headwater.sinks.mysql_types import RowTexts, checked, column_types, from_stored
from headwater.sinks.reducing import reduce
from headwater.sinks.settings import SinkSettings
from headwater.sinks.sql import POSITIONS, Stored

OPTIONS: Final = ()
TARGET_OPTIONS: Final = ()

_READ_ROWS: Final = 10_000
_TEXT_ROWS: Final = 20_000  # turned into text at a time
_STATEMENT_BYTES: Final = 1 << 20
_STATEMENT_ROWS: Final = 5_000
_DELETED_KEYS: Final = 500  # more in one statement, and MariaDB makes a join of it
_HEAD_BYTES: Final = 64 * 1024  # of a statement, beside its rows
_ATTEMPTS: Final = 10  # to find a table that is being renamed
_NULL: Final = 1048
_TWICE: Final = 1062
_TOO_LARGE: Final = 1153
_WHERE: Final = " WHERE owner = %s AND target = %s AND version = %s"
# Exact, also about case and spaces at the end ("PAD SPACE" would take 'a' and 'a ' for the same).
_COLLATIONS: Final = ("utf8mb4_nopad_bin", "utf8mb4_0900_bin")  # MariaDB, MySQL


class MySqlStore(Store):
    def __init__(self, settings: SinkSettings, target: Target, log: Log) -> None:
        self.address = address_of(sql.url_of(settings), settings.name)
        self.target = target
        self._name = f"{self.address.database} {target.name}"

    def unchanging(self, session: Session) -> AbstractContextManager[None]:
        """Nobody else makes, renames, changes or drops its tables meanwhile."""
        return session.lock(self._name)

    def check(self) -> None:
        with closing(Session(self.address)) as session:
            _collation(session)
            if not self._stored(session):
                self._check_free(session, self.target.name)

    def versions(self) -> list[Version]:
        with closing(Session(self.address)) as session:
            return [each.described() for each in self._stored(session).values()]

    # ------------------------------------------------------------------- making a writer

    def writer(self, version: int, fields: pa.Schema) -> Writer:
        session = Session(self.address)
        try:
            with self.unchanging(session):
                stored = self._begin(session, version, plain(fields))
            return _MySqlWriter(self, session, stored)
        except BaseException:
            session.close()
            raise

    def _begin(self, session: Session, version: int, fields: pa.Schema) -> Stored:
        sql.check_names(fields)
        collation = _collation(session)
        self._make_positions(session, collation)
        self._finish_drop(session, version)
        self._finish_promote(session)
        found = self._stored(session)
        if version in found:
            old = found[version]
            is_live = old.is_live
            table = self._table_of(session, old)
            table.check_engine()
            sql.check_key(table.name, table.key, self.target)
            fields = self.evolve(session, table, old.fields, fields)
        else:
            is_live = version == 1 and not any(each.is_live for each in found.values())
            self._create(session, version, is_live, fields, collation)
        return self._take_over(session, version, is_live, fields)

    def _make_positions(self, session: Session, collation: str) -> None:
        session.run(
            f"CREATE TABLE IF NOT EXISTS {POSITIONS} (owner varchar(255) NOT NULL,"
            " target varchar(64) NOT NULL, version int NOT NULL, is_live tinyint(1) NOT NULL,"
            " epoch bigint NOT NULL, position longtext, fields longtext NOT NULL,"
            " PRIMARY KEY (owner, target, version))"
            f" ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = {collation}"
        )
        positions = table_of(session, POSITIONS)
        assert positions is not None
        positions.check_engine()

    def _create(
        self, session: Session, version: int, is_live: bool, fields: pa.Schema, collation: str
    ) -> None:
        table = name_of(self.target, version, is_live=is_live)
        types = column_types(fields, self.target.key)
        if self._has(session, table, version):  # a crash came before its position
            if session.ask(f"SELECT 1 FROM {_quoted(table)} LIMIT 1"):
                raise sql.not_ours(table, self.target)
            session.run(f"DROP TABLE {_quoted(table)}")
        self._check_free(session, table)
        columns = [f"{_quoted(name)} {type_}" for name, type_ in types.items()]
        if self.target.key:
            columns.append(f"PRIMARY KEY ({_names(self.target.key)})")
        session.run(
            f"CREATE TABLE {_quoted(table)} ({', '.join(columns)}) ENGINE = InnoDB"
            f" ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = {collation}"
            f" COMMENT = '{self._marker(version)}'"
        )

    def _check_free(self, session: Session, table: str) -> None:
        if table_of(session, table) is not None:
            raise sql.not_ours(table, self.target)

    def _take_over(
        self, session: Session, version: int, is_live: bool, fields: pa.Schema
    ) -> Stored:
        """Counts the epoch up. A writer that holds the row for too long (a process that was stopped
        in the midst of a batch) loses its connection.
        """
        for is_last in (False, True):
            try:
                session.run(
                    f"INSERT INTO {POSITIONS} VALUES (%s, %s, %s, %s, 1, NULL, %s)"
                    " ON DUPLICATE KEY UPDATE epoch = epoch + 1, fields = VALUES(fields)",
                    [*self._identity(version), int(is_live), fields_to_text(fields)],
                )
                break
            except StoreUnreachable as error:
                if is_last or code_of(error.__cause__) != LOCKED:
                    raise
                epoch = self._stored(session)[version].epoch
                session.end_holder(self._writer_lock(version, epoch))
        stored = self._stored(session)[version]
        session.try_lock(self._writer_lock(version, stored.epoch))
        return stored

    def evolve(
        self, session: Session, table: Table, known: pa.Schema, fields: pa.Schema
    ) -> pa.Schema:
        """All columns. Those that are new are added, also if a crash came after some of them."""
        changed = evolved(known, fields)
        sql.check_names(changed.fields)
        if not changed.added and not changed.widened:
            return changed.fields
        types = column_types(changed.fields, self.target.key)
        steps = [
            f"{'MODIFY' if field.name.lower() in table.columns else 'ADD'} COLUMN"
            f" {_quoted(field.name)} {types[field.name]}"
            for field in (*changed.added, *changed.widened)
        ]
        session.run(f"ALTER TABLE {_quoted(table.name)} {', '.join(steps)}")
        return changed.fields

    # ------------------------------------------------------------------- versions

    def promote(self, version: int) -> None:
        with closing(Session(self.address)) as session, self.unchanging(session):
            self._finish_promote(session)
            found = self._stored(session)
            if version not in found:
                raise sql.unknown_version(self.target, version)
            if found[version].is_live:
                return
            plain_name = name_of(self.target, version, is_live=True)
            steps = [
                (plain_name, name_of(self.target, each.version, is_live=False))
                for each in found.values()
                if each.is_live
            ]
            if not steps:
                self._check_free(session, plain_name)
            steps.append((self._table_of(session, found[version]).name, plain_name))
            session.run(
                f"UPDATE {POSITIONS} SET is_live = (version = %s) WHERE owner = %s AND target = %s",
                [version, self.target.owner, self.target.name],
            )
            _rename(session, steps)

    def _finish_promote(self, session: Session) -> None:
        """If a RENAME of two tables has stopped between them, no version is live; the one that
        should be is made so.
        """
        rows = session.ask(
            f"SELECT version FROM {POSITIONS} WHERE owner = %s AND target = %s AND is_live"
            " AND fields <> ''",
            [self.target.owner, self.target.name],
        )
        for (number,) in rows:
            table = name_of(self.target, int(number), is_live=False)
            if table_of(session, self.target.name) is None and self._has(
                session, table, int(number)
            ):
                _rename(session, [(table, self.target.name)])

    def drop(self, version: int) -> None:
        with closing(Session(self.address)) as session, self.unchanging(session):
            found = self._stored(session)
            if version not in found:
                raise sql.unknown_version(self.target, version)
            if found[version].is_live:
                raise sql.still_live(self.target, version)
            session.run(
                f"UPDATE {POSITIONS} SET fields = '', epoch = epoch + 1{_WHERE}",
                self._identity(version),
            )
            self._finish_drop(session, version)

    def _finish_drop(self, session: Session, version: int) -> None:
        dropped = session.ask(
            f"SELECT 1 FROM {POSITIONS}{_WHERE} AND fields = ''", self._identity(version)
        )
        if dropped:
            table = name_of(self.target, version, is_live=False)
            if self._has(session, table, version):
                session.run(f"DROP TABLE {_quoted(table)}")
            session.run(f"DELETE FROM {POSITIONS}{_WHERE}", self._identity(version))

    # ------------------------------------------------------------------- reading

    @contextmanager
    def read(self, version: int) -> Iterator[Contents]:
        with closing(Session(self.address)) as session:
            found = self._stored(session).get(version)
            if found is None:
                raise sql.unknown_version(self.target, version)
            table = None
            for _ in range(_ATTEMPTS):
                # The snapshot is that of the first row that is read: of the position, when the
                # table is locked already and cannot change any more.
                session.run("START TRANSACTION")
                table = self.locked_table(session, version)
                if table is not None:
                    break
                session.run("ROLLBACK")
            found = self.stored(session, version)
            if table is None or found is None:
                raise sql.gone(name_of(self.target, version, is_live=False))
            names = _names(found.fields.names)
            pieces = session.stream(f"SELECT {names} FROM {_quoted(table.name)}", _READ_ROWS)
            yield Contents(found.position, _batches(pieces, found.fields))

    # ------------------------------------------------------------------- positions

    def _stored(self, session: Session) -> dict[int, Stored]:
        if table_of(session, POSITIONS) is None:
            return {}
        rows = session.ask(
            f"SELECT version, epoch, position, fields FROM {POSITIONS}"
            " WHERE owner = %s AND target = %s AND fields <> '' ORDER BY version",
            [self.target.owner, self.target.name],
        )
        live = table_of(session, self.target.name) if rows else None
        comment = live.comment if live else ""
        return {
            int(number): Stored.from_row(
                int(number), comment == self._marker(int(number)), int(epoch), position, fields
            )
            for number, epoch, position, fields in rows
        }

    def stored(self, session: Session, version: int, *, locks: bool = False) -> Stored | None:
        """One row, without asking what is live."""
        rows = session.ask(
            f"SELECT epoch, position, fields FROM {POSITIONS}{_WHERE} AND fields <> ''"
            + (" FOR UPDATE" if locks else ""),
            self._identity(version),
        )
        if not rows:
            return None
        [(epoch, position, fields)] = rows
        return Stored.from_row(version, False, int(epoch), position, fields)

    def save(self, session: Session, version: int, position: Position, fields: pa.Schema) -> None:
        session.run(
            f"UPDATE {POSITIONS} SET position = %s, fields = %s{_WHERE}",
            [position.to_json().decode(), fields_to_text(fields), *self._identity(version)],
        )

    def _table_of(self, session: Session, stored: Stored) -> Table:
        name = stored.table(self.target)
        table = table_of(session, name)
        if table is None or table.comment != self._marker(stored.version):
            raise sql.gone(name)
        return table

    def _has(self, session: Session, name: str, version: int) -> bool:
        """Whether the table of that name is that version."""
        table = table_of(session, name)
        return table is not None and table.comment == self._marker(version)

    def locked_table(self, session: Session, version: int) -> Table | None:
        """The version's table, of which nobody can change the name until the transaction ends.
        None: it has just been renamed, or is gone.
        """
        for is_live in (True, False):
            name = name_of(self.target, version, is_live=is_live)
            if self._has(session, name, version):
                with contextlib.suppress(NoSuchTable):
                    session.ask(f"SELECT 1 FROM {_quoted(name)} LIMIT 0")  # takes the lock
                    table = table_of(session, name)
                    if table is not None and table.comment == self._marker(version):
                        return table
        return None

    def _marker(self, version: int) -> str:
        # Of characters that a server shows as they are.
        name, owner = quote(self.target.name), quote(self.target.owner)
        return f"headwater: version {version} of {name}, by {owner}"

    def _writer_lock(self, version: int, epoch: int) -> str:
        return f"{self._name} {self.target.owner} {version} {epoch}"

    def _identity(self, version: int) -> list[Any]:
        return [self.target.owner, self.target.name, version]


class _MySqlWriter(Writer):
    def __init__(self, store: MySqlStore, session: Session, stored: Stored) -> None:
        self._store = store
        self._key = store.target.key
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
            self._apply(batch, refuse)
        except StoreUnreachable:
            self._check_fenced()
            raise

    def _apply(self, batch: Batch, refuse: Refuse | None) -> None:
        refused: list[RowRefused] | None = None if refuse is None else []
        self._add_columns(batch)
        with self._session.transaction():
            position = self._current(locks=True).position
            if not is_applied(position, batch):
                position = batch.position()
                self._write(self._table(), batch, refused)
                if refuse is not None and refused:
                    refuse(refused)
                self._store.save(self._session, self._version, position, self._fields)
        self.position = position

    def _add_columns(self, batch: Batch) -> None:
        """Before the transaction, because it would end it; for a batch that is new."""
        fields = pa.schema([field for field in batch.rows.schema if field.name != OP])
        changed = evolved(self._fields, fields)
        if changed.added or changed.widened:
            with self._store.unchanging(self._session):
                stored = self._current()
                if not is_applied(stored.position, batch):
                    self._fields = self._store.evolve(
                        self._session, self._table(), stored.fields, fields
                    )

    def _current(self, *, locks: bool = False) -> Stored:
        stored = self._store.stored(self._session, self._version, locks=locks)
        if stored is None or stored.epoch != self._epoch:
            raise sql.fenced(self._store.target, self._version)
        return stored

    def _check_fenced(self) -> None:
        """Who takes over may have to end our connection."""
        with contextlib.suppress(SinkError), closing(Session(self._store.address)) as session:
            stored = self._store.stored(session, self._version)
            if stored is None or stored.epoch != self._epoch:
                raise sql.fenced(self._store.target, self._version)

    def _table(self) -> Table:
        for _ in range(_ATTEMPTS):
            if (table := self._store.locked_table(self._session, self._version)) is not None:
                table.check_engine()
                return table
        raise sql.gone(name_of(self._store.target, self._version, is_live=False))

    def _write(self, table: Table, batch: Batch, refused: list[RowRefused] | None) -> None:
        reduced = reduce(batch.rows, self._key, refused)
        types = column_types(self._fields, self._key)
        name = _quoted(table.name)
        if reduced.clears:
            self._session.run(f"DELETE FROM {name}")
        if len(reduced.deletes):
            key = pa.schema([self._fields.field(column) for column in self._key])
            rows = checked(fitted(reduced.deletes, key), types, refused)
            labels = [_quoted(column).encode() for column in self._key]
            statement = _Statement(f"DELETE FROM {name} WHERE ", "", labels, _DELETED_KEYS)
            self._send(statement, rows, table, refused)
        rows = checked(fitted(reduced.upserts, self._fields), types, refused)
        head = f"INSERT INTO {name} ({_names(rows.column_names)}) VALUES "
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
        """A statement changes all of its rows or none, so a bad one is found by halves."""
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
            told = _refusal(error, rows.slice(begin, 1).to_pylist()[0], table, self._key)
            if refused is None:
                raise told from error
            refused.append(told)

    def close(self) -> None:
        self._session.close()


@dataclass(frozen=True, slots=True)
class _Statement:
    """What stands around rows, and how many of them."""

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
    own = [f"{each} = IF({each} <=> VALUES({each}), {each}, NULL)" for each in map(_quoted, key)]
    others = [
        f"{_quoted(column)} = VALUES({_quoted(column)})" for column in columns if column not in key
    ]
    sets = (own if is_guarded else []) + others or [f"{_quoted(key[0])} = {_quoted(key[0])}"]
    return f" ON DUPLICATE KEY UPDATE {', '.join(sets)}"


def _batches(
    pieces: Iterator[Sequence[tuple[Any, ...]]], fields: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for rows in pieces:
        columns = [
            from_stored(column, field.type)
            for column, field in zip(zip(*rows, strict=True), fields, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=fields)


def _refusal(error: Any, row: dict[str, Any], table: Table, key: Sequence[str]) -> RowRefused:
    code, text = code_of(error), str(error.args[1])
    column = next((each for each in row if f"olumn '{each}'" in text), "")
    if (code == _NULL and column in key) or code == _TWICE:  # see _on_duplicate
        uniques = [each for index, each in table.uniques.items() if index in text]
        uniques = uniques or list(table.uniques.values())
        column = uniques[0] if len(uniques) == 1 else ""
        text = "another row has the same in a unique index"
    return sql.refusal(row, column, f"table {table.name} does not take a row", f"{text} ({code})")


def _rename(session: Session, steps: Sequence[tuple[str, str]]) -> None:
    renamed = ", ".join(f"{_quoted(old)} TO {_quoted(new)}" for old, new in steps)
    session.run(f"RENAME TABLE {renamed}")


def _collation(session: Session) -> str:
    rows = session.ask(
        "SELECT collation_name FROM information_schema.collations WHERE collation_name IN (%s, %s)",
        _COLLATIONS,
    )
    if not rows:
        [(version,)] = session.ask("SELECT VERSION()")
        raise StoreRefused(
            "this server is too old",
            detail=f"{version} has no binary collation of utf8mb4 that counts spaces",
            hint="MySQL 8.0.17, MariaDB 10.6, or newer",
        )
    return str(rows[0][0])


def _quoted(name: str) -> str:
    return sql.quoted(name, "`")


def _names(columns: Sequence[str]) -> str:
    return sql.names(columns, "`")
