"""The versions of a target in MySQL or MariaDB."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from headwater.errors import ConfigError, StoreRefused, StoreUnreachable
from headwater.sinks import sql_positions
from headwater.sinks.contract import (
    Contents,
    Log,
    Target,
    Version,
    Writer,
    fields_to_text,
    name_of,
)
from headwater.sinks.mysql.session import (
    LOCKED,
    Session,
    address_of,
    code_of,
)
from headwater.sinks.mysql.tables import WHERE, Table, Tables, describe, names, quoted
from headwater.sinks.mysql.values import DIALECT, column_types, from_stored
from headwater.sinks.mysql.writer import MySqlWriter
from headwater.sinks.rows.schema_evolution import evolved, plain
from headwater.sinks.selection import SelectableStore, Selection, clause
from headwater.sinks.settings import SinkSettings, with_password
from headwater.sinks.sql_positions import POSITIONS, StoredVersion

OPTIONS: Final = ()
TARGET_OPTIONS: Final = ()

_NAME_CHARACTERS: Final = 64
_READ_ROWS: Final = 10_000
# Exact, also about case and spaces at the end ("PAD SPACE" would take 'a' and 'a ' for the same).
_COLLATIONS: Final = ("utf8mb4_nopad_bin", "utf8mb4_0900_bin")  # MariaDB, MySQL


class MySqlStore(SelectableStore):
    def __init__(self, settings: SinkSettings, target: Target, log: Log) -> None:
        self._address = address_of(with_password(settings))
        if len(name_of(target, 999, is_live=False)) > _NAME_CHARACTERS:
            raise ConfigError(
                f"{target.name} is too long for a table of MySQL",
                detail=f"names have {_NAME_CHARACTERS} characters, and versions need some of them",
            )
        self._target = target
        self._tables = Tables(self._address.database, target)

    def check(self) -> None:
        with closing(Session(self._address)) as session:
            _collation(session)
            if not self._tables.all_stored(session):
                self._check_free(session, self._target.name)

    def versions(self) -> list[Version]:
        with closing(Session(self._address)) as session:
            return [stored.described() for stored in self._tables.all_stored(session).values()]

    # ------------------------------------------------------------------- making a writer

    def writer(self, version: int, fields: pa.Schema) -> Writer:
        session = Session(self._address)
        try:
            with self._tables.unchanging(session):
                stored = self._begin(session, version, plain(fields))
            return MySqlWriter(self._address, self._tables, session, stored)
        except BaseException:
            session.close()
            raise

    def _begin(self, session: Session, version: int, fields: pa.Schema) -> StoredVersion:
        sql_positions.check_names(fields)
        collation = _collation(session)
        self._make_positions(session, collation)
        self._finish_drop(session, version)
        self._finish_promote(session)
        found = self._tables.all_stored(session)
        if version not in found:
            is_live = version == 1 and not any(stored.is_live for stored in found.values())
            self._create(session, version, is_live, fields, collation)
            return self._take_over(session, version, is_live, fields)
        old = found[version]
        table = self._tables.table_of(session, old)
        table.check_engine()
        sql_positions.check_key(table.name, table.key, self._target)
        evolved(old.fields, fields)  # may refuse, before the earlier writer is fenced
        # This comes first, because a writer that hangs has a lock on the table.
        stored = self._take_over(session, version, old.is_live, old.fields)
        return replace(stored, fields=self._tables.evolve(session, stored, fields))

    def _make_positions(self, session: Session, collation: str) -> None:
        session.run(
            f"CREATE TABLE IF NOT EXISTS {POSITIONS} (owner varchar(255) NOT NULL,"
            " target varchar(64) NOT NULL, version int NOT NULL, is_live tinyint(1) NOT NULL,"
            " epoch bigint NOT NULL, position longtext, fields longtext NOT NULL,"
            " PRIMARY KEY (owner, target, version))"
            f" ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = {collation}"
        )
        positions = describe(session, POSITIONS)
        assert positions is not None
        positions.check_engine()

    def _create(
        self, session: Session, version: int, is_live: bool, fields: pa.Schema, collation: str
    ) -> None:
        table = name_of(self._target, version, is_live=is_live)
        types = column_types(fields, self._target.key)
        if self._tables.has(session, table, version):  # a crash came before its position
            if session.ask(f"SELECT 1 FROM {quoted(table)} LIMIT 1"):
                raise sql_positions.not_ours(table, self._target)
            session.change(f"DROP TABLE {quoted(table)}")
        self._check_free(session, table)
        columns = [f"{quoted(name)} {type_}" for name, type_ in types.items()]
        if self._target.key:
            columns.append(f"PRIMARY KEY ({names(self._target.key)})")
        session.run(
            f"CREATE TABLE {quoted(table)} ({', '.join(columns)}) ENGINE = InnoDB"
            f" ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = {collation}"
            f" COMMENT = '{self._tables.marker(version)}'"
        )

    def _check_free(self, session: Session, table: str) -> None:
        if describe(session, table) is not None:
            raise sql_positions.not_ours(table, self._target)

    def _take_over(
        self, session: Session, version: int, is_live: bool, fields: pa.Schema
    ) -> StoredVersion:
        """Increments the epoch. A writer that holds the row for too long (a process stopped within
        a batch) loses its connection.
        """
        for is_last in (False, True):
            try:
                session.run(
                    f"INSERT INTO {POSITIONS} VALUES (%s, %s, %s, %s, %s, NULL, %s)"
                    " ON DUPLICATE KEY UPDATE epoch = epoch + 1",
                    [
                        *self._tables.identity(version),
                        int(is_live),
                        sql_positions.first_epoch(),
                        fields_to_text(fields),
                    ],
                )
                break
            except StoreUnreachable as error:
                if is_last or code_of(error.__cause__) != LOCKED:
                    raise
                epoch = self._tables.all_stored(session)[version].epoch
                session.end_holder(self._tables.writer_lock(version, epoch))
        stored = self._tables.all_stored(session)[version]
        session.try_lock(self._tables.writer_lock(version, stored.epoch))
        return stored

    # ------------------------------------------------------------------- versions

    def promote(self, version: int) -> None:
        with closing(Session(self._address)) as session, self._tables.unchanging(session):
            self._finish_promote(session)
            found = self._tables.all_stored(session)
            if version not in found:
                raise sql_positions.unknown_version(self._target, version)
            if found[version].is_live:
                return
            table = self._tables.table_of(session, found[version])
            steps = [(table.name, self._target.name)]
            if live := describe(session, self._target.name):
                old = next((stored.version for stored in found.values() if stored.is_live), None)
                if old is None:
                    raise sql_positions.not_ours(live.name, self._target)
                _carry_over(session, live, table)
                steps.insert(0, (live.name, name_of(self._target, old, is_live=False)))
            session.run(
                f"UPDATE {POSITIONS} SET is_live = (version = %s) WHERE owner = %s AND target = %s",
                [version, self._target.owner, self._target.name],
            )
            _rename(session, steps)

    def _finish_promote(self, session: Session) -> None:
        """If a RENAME of two tables has stopped between them, no version is live; the intended one
        is renamed now.
        """
        if describe(session, POSITIONS) is None:
            return
        rows = session.ask(
            f"SELECT version FROM {POSITIONS} WHERE owner = %s AND target = %s AND is_live"
            " AND fields <> ''",
            [self._target.owner, self._target.name],
        )
        for (number,) in rows:
            table = name_of(self._target, int(number), is_live=False)
            if describe(session, self._target.name) is None and self._tables.has(
                session, table, int(number)
            ):
                _rename(session, [(table, self._target.name)])

    def drop(self, version: int) -> None:
        with closing(Session(self._address)) as session, self._tables.unchanging(session):
            self._finish_promote(session)
            found = self._tables.all_stored(session)
            if version not in found:
                raise sql_positions.unknown_version(self._target, version)
            if found[version].is_live:
                raise sql_positions.still_live(self._target, version)
            session.run(
                f"UPDATE {POSITIONS} SET fields = '', epoch = epoch + 1{WHERE}",
                self._tables.identity(version),
            )
            self._finish_drop(session, version)

    def _finish_drop(self, session: Session, version: int) -> None:
        dropped = session.ask(
            f"SELECT 1 FROM {POSITIONS}{WHERE} AND fields = ''", self._tables.identity(version)
        )
        if dropped:
            table = name_of(self._target, version, is_live=False)
            if self._tables.has(session, table, version):
                session.change(f"DROP TABLE {quoted(table)}")
            session.run(f"DELETE FROM {POSITIONS}{WHERE}", self._tables.identity(version))

    # ------------------------------------------------------------------- reading

    def read(self, version: int) -> AbstractContextManager[Contents]:
        return self._reading(version, None)

    def select(self, version: int, selection: Selection) -> AbstractContextManager[Contents]:
        return self._reading(version, selection)

    @contextmanager
    def _reading(self, version: int, selection: Selection | None) -> Iterator[Contents]:
        with closing(Session(self._address)) as session:
            found = self._tables.all_stored(session).get(version)
            if found is None:
                raise sql_positions.unknown_version(self._target, version)
            table, found = self._tables.retried(
                session, version, lambda: self._snapshot(session, version)
            )
            query = f"SELECT {names(found.fields.names)} FROM {quoted(table.name)}"
            if selection is not None:
                query += clause(selection, found.fields, self._target.key, DIALECT)[0]
            pieces = session.stream(query, _READ_ROWS)
            yield Contents(found.position, _batches(pieces, found.fields))

    def _snapshot(self, session: Session, version: int) -> tuple[Table, StoredVersion]:
        """Begins a transaction. Its snapshot is taken when it reads the first row: that of the
        position, when the table is locked already and can no longer change.
        """
        session.run("START TRANSACTION")
        table = self._tables.locked_table(session, version)
        found = self._tables.stored(session, version)
        if found is None:
            raise sql_positions.unknown_version(self._target, version)
        return table, found


def _batches(
    pieces: Iterator[Sequence[tuple[Any, ...]]], fields: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for rows in pieces:
        columns = [
            from_stored(column, field.type)
            for column, field in zip(zip(*rows, strict=True), fields, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=fields)


def _carry_over(session: Session, live: Table, table: Table) -> None:
    """Creates the indexes that users added to the live table on its successor. What cannot be
    carried over, and would silently stay with the old table, is StoreRefused.
    """
    rows = session.ask(
        "SELECT CONCAT('trigger ', trigger_name) FROM information_schema.triggers"
        " WHERE event_object_schema = DATABASE() AND event_object_table = %s"
        " UNION SELECT CONCAT('foreign key ', constraint_name, ' of ', table_name)"
        " FROM information_schema.key_column_usage"
        " WHERE referenced_table_schema = DATABASE() AND referenced_table_name = %s",
        [live.name, live.name],
    )
    bound = [f"constraint {name}" for name in live.constraints if name not in table.constraints]
    bound += [str(what) for (what,) in rows]
    if bound:
        raise StoreRefused(
            f"what was added to table {live.name} cannot be carried over to its new version",
            detail=", ".join(bound),
            hint=f"drop it, promote, create it again (constraints: also on {table.name} before)",
        )
    new = [f"ADD {how}" for name, how in live.indexes.items() if name not in table.indexes]
    if new:
        session.change(f"ALTER TABLE {quoted(table.name)} {', '.join(new)}")


def _rename(session: Session, steps: Sequence[tuple[str, str]]) -> None:
    renamed = ", ".join(f"{quoted(old)} TO {quoted(new)}" for old, new in steps)
    session.change(f"RENAME TABLE {renamed}")


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
