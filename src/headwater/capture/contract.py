"""The contract of a source of changes: its events, its promises, its positions in the log.

A source turns a database's own log into a stream of events:

    Begin, Change, Change, …, Commit      one committed transaction, whole, in commit order
    PositionAdvanced                      nothing happened up to this position in the log
    None                                  nothing for now (at least every IDLE_S)

and reads tables in chunks for snapshots. Everything else (envelope, topics, exactly once, filters,
outbox, snapshots' order) is done once, for all sources, by the rest of this package.

**Positions.** A `LogPosition` is where a transaction stands in the database's log: a dict that JSON
can hold, made and understood by its source only. A `SourcePosition` is a log position, and how many
of that transaction's changes are in the topics. It is stored in the same Kafka transaction as the
changes; `Source.changes(after)` goes on right behind it: nothing is left out and nothing repeated.

**Ordinals.** The changes of a transaction are numbered 0, 1, 2 … before anything is filtered out,
and have the same numbers when the transaction is read again.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from headwater.errors import CaptureError, HeadwaterError

IDLE_S: Final = 0.1  # a source gives sign of life at least this often
UNAVAILABLE: Final = "__debezium_unavailable_value"  # a value that the database's log leaves out
LEFT_SHARE: Final = 0.25  # of the log that a database may retain for us: with less left, we warn
UNLIMITED_BYTES: Final = 10 << 30  # the same, if there is no limit

LogPosition: TypeAlias = Mapping[str, Any]
Row: TypeAlias = dict[str, Any]  # column to value as JSON shall have it, in the columns' order

_QUOTED: Final = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)


def without_values(error: Exception) -> str:
    """The text of an error, without what it quotes. A value that cannot be read may be of a column
    that a rule hides, and errors are logged, stored and shown, where no rule reaches.
    """
    return _QUOTED.sub("…", str(error))


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """How far the topics are: all transactions up to `at`, and of that one itself the changes with
    ordinals below `changes`, or all of them if that is None.
    """

    at: LogPosition
    changes: int | None = None


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str  # as the database writes it: "numeric(10,2)", "text[]", "varchar(20)"
    # Its type as Kafka Connect writes it in a schema, without `field` and `optional`:
    # {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "version": 1}
    connect: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})
    optional: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """A table (collection) as it was when its changes were made. Equal means equal in all columns;
    a source hands out the same object as long as nothing changes.
    """

    schema: str  # PostgreSQL's schema, MySQL's and MongoDB's database, "main" in SQLite
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]  # columns of the primary key, in its order; () without one
    # Rows are documents: a Row has the fields that this one document has, with values as extended
    # JSON writes them; `columns` names the key only. The envelope holds them as JSON texts
    # (capture/mongo/shape.py).
    documents: bool = False

    @property
    def id(self) -> str:
        return f"{self.schema}.{self.name}"


def no_temporary_space(table: Table, error: OSError) -> CaptureError:
    return CaptureError(
        f"{table.id} cannot be copied: its rows and changes wait in a temporary file",
        detail=str(error),
        hint="make room in the directory for temporary files, or name another one in TMPDIR",
    )


@dataclass(slots=True)
class Begin:
    """A transaction that is committed begins."""

    at: LogPosition
    id: str  # as Debezium's `transaction.id` has it
    ts_ms: int  # when it was committed, by the database's clock
    source: dict[str, Any]  # what Debezium's `source` has for every change of it: txId, gtid, …


@dataclass(slots=True)
class Change:
    """One change of one row (or of a whole table: "t").

    op: "c" created, "u" updated, "d" deleted, "t" truncated (no rows). `before` is what the
    database logs: everything, the key's columns only (the others are absent), or None. A change
    of the primary key is a "u" whose `before` has the old key. `source` has what Debezium's
    `source` adds for this one change: lsn, pos, row, …

    Of documents (MongoDB) a "u" may have no `after`, if the document was deleted since; its
    `before` then has at least the key. `extra` has what the envelope adds:
    {"updateDescription": {"updatedFields": {path: value}, "removedFields": [path, …], …}}, not yet
    filtered, and not yet texts.
    """

    table: Table
    op: str
    before: Row | None
    after: Row | None
    ordinal: int
    source: dict[str, Any]
    extra: dict[str, Any] | None = None


@dataclass(slots=True)
class Message:
    """A message that an application put into the database's log (op "m"), in or outside of a
    transaction. Outside, the source wraps it into a Begin and a Commit of its own.
    """

    prefix: str
    content: bytes
    ordinal: int
    source: dict[str, Any]


@dataclass(slots=True)
class Record:
    """A record that needs no shaping, for sources that bring their own envelope."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    ordinal: int


@dataclass(slots=True)
class SchemaChange:
    """Something other than rows changed. `table` is how it is now, None if it was dropped. May
    stand inside and outside of transactions. Sources need not send it for what a Change's table
    shows.
    """

    table_id: str
    table: Table | None
    ddl: str | None = None


@dataclass(slots=True)
class StorageChange:
    """The database holds the rows of a table otherwise than before. Between transactions only.

    `is_rewritten`: values of rows changed without being logged, so the table is to be copied
    again; `is_reduced`: rows may be deleted, too, so what the topic has of it no longer counts.
    `storage` (JSON) is stored with the table, for `Source.storages` of the next run.
    """

    table_id: str
    storage: Any
    is_rewritten: bool = False
    is_reduced: bool = False


@dataclass(slots=True)
class TableFailed:
    """A table that cannot be followed on (and why); the other tables go on. From here the source
    may leave out its changes or send them: they are dropped until a new snapshot of the table.
    """

    table_id: str
    error: HeadwaterError


@dataclass(slots=True)
class Commit:
    """The transaction that began last is whole."""

    changes: int  # how many raw changes it had


@dataclass(slots=True)
class PositionAdvanced:
    """All that was committed in front of this position has been sent. Between transactions only."""

    at: LogPosition


Event: TypeAlias = (
    Begin
    | Change
    | Message
    | Record
    | SchemaChange
    | StorageChange
    | TableFailed
    | Commit
    | PositionAdvanced
    | None
)


class Chunk(ABC):
    """Rows of one table as one consistent read saw them, and which transactions that read saw.

    How snapshot and stream are brought together (the watermark method of DBLog): the chunk is
    published between two transactions, when the stream has passed it; rows whose key was changed
    meanwhile are left out, for the topic has them as new or newer. So the topic never goes back in
    time.
    """

    table: Table
    rows: Iterable[Row]  # with a key: a list; without: may be an iterator over the whole table
    after: Any  # where the next chunk begins: JSON; None: this was the last

    @abstractmethod
    def contains(self, transaction: Begin) -> bool:
        """Whether the rows show what this transaction did."""

    @abstractmethod
    def is_passed(self, position: LogPosition) -> bool:
        """Whether a stream that has come to `position` has sent everything the chunk contains."""

    def bounds(self) -> Any:
        """What both go by, as JSON: a chunk of a whole table is published at once, and another run
        may have to know what it contained. None from sources whose tables all have a key.
        """
        return None


@dataclass(frozen=True, slots=True)
class Lag:
    """How far the database is ahead of what was acknowledged."""

    size_bytes: int | None = None  # of its log
    retained_bytes: int | None = None  # log that it retains for us alone
    left_bytes: int | None = (
        None  # by how much that may grow: its own limit, or its disk, if reported
    )

    @property
    def is_running_out(self) -> bool:
        """Whether the database will soon have to give up that log, or a full disk stop it."""
        if self.retained_bytes is None:
            return False
        if self.left_bytes is None:
            return self.retained_bytes > UNLIMITED_BYTES
        return self.left_bytes <= LEFT_SHARE * (self.retained_bytes + self.left_bytes)


class Source(ABC):
    """One database. All methods but `read_chunk`, `estimate_rows` and `lag` are called by one
    thread; these by others too, while `changes` runs, so they use connections of their own.

    Raises errors.CaptureError and its kinds: SourceUnreachable (tried again with growing pauses),
    SourceRefused (rights, settings: with the SQL that fixes it), TableRefused (the same, of one
    table), PositionLost (the log no longer goes back to the position; with the command that repairs
    it). From `read_chunk` everything but SourceUnreachable stops that table only.
    """

    connector: str  # Debezium's name for it: "postgresql", "mysql", "mongodb", "sqlite"
    database: str  # Debezium's `source.db`
    snapshots_itself = False  # True: the stream begins with the snapshot; `read_chunk` is not used
    # Set by the runner while a table is copied, whose chunks wait for the stream to pass them: an
    # idle source then asks its database where it stands, and gives sign of life every few
    # milliseconds instead of IDLE_S.
    is_awaited = False
    # How the database held each table's rows (JSON, by table) when the topics last had them
    # all; see StorageChange. Set by the runner before `open`; the source adds tables that
    # are new.
    storages: Mapping[str, Any] = MappingProxyType({})

    @abstractmethod
    def check(self) -> list[HeadwaterError]:
        """All that is wrong with the database's settings, rights and tables, for `doctor` and
        before the start. Each names the SQL that fixes it. Changes nothing. A TableRefused does
        not prevent the start: the stream has a TableFailed for it.
        """

    def advice(self) -> list[CaptureError]:
        """What does not prevent the capture from running but will hurt later, for `doctor`. Each
        names the fix. Changes nothing.
        """
        return []

    @abstractmethod
    def open(self, after: SourcePosition | None, stored: Mapping[str, Table]) -> LogPosition:
        """Makes ready what capture needs in the database (slot, publication, triggers) and returns
        the position from which nothing will be missed: that of `after`, else that of now. `stored`
        are the tables as they were at `after`, as far as the stream has shown them. Doing it twice
        does no harm.
        """

    def check_position(self, after: SourcePosition) -> bool:
        """Raises PositionLost if the log no longer goes back to `after`, which `open` would find
        too. False if that cannot be determined without opening. For `doctor`; changes nothing.
        """
        return False

    @abstractmethod
    def tables(self) -> list[Table]:
        """The tables that the settings name, as they are now."""

    def is_streamed(self, table: Table) -> bool:
        """Whether the stream, where it stands, has the table as `tables` showed it. False if the
        table may have been altered in between, in a log that does not contain its columns.
        """
        return True

    @abstractmethod
    def changes(self, after: SourcePosition) -> Iterator[Event]:
        """Everything behind `after`, indefinitely. The transaction of `after` itself is sent
        (Begin, the changes with ordinals from `after.changes` on, Commit) only if it was not whole.
        """

    @abstractmethod
    def acknowledge(self, position: LogPosition) -> None:
        """Everything up to here is durable in the topics: the database may forget it."""

    def stay_connected(self) -> None:
        """Called now and then by the thread that reads `changes` while it waits for the topics,
        for databases that drop connections that are silent.
        """
        return

    @abstractmethod
    def read_chunk(self, table: Table, after: Any, limit_rows: int) -> Chunk:
        """The next rows of a table in the order of its key, behind `after` (None: from the start).
        If `table` has no key (the database's may have one): all rows. No lock outlives the call.
        """

    def bounded(self, table: Table, bounds: Any) -> Chunk:
        """A chunk without rows that contains what the one with these bounds did. Called between
        `open` and `changes`.
        """
        raise NotImplementedError

    def estimate_rows(self, table: Table) -> int | None:
        """For the progress bar."""
        return None

    @abstractmethod
    def lag(self, acknowledged: LogPosition) -> Lag: ...

    @abstractmethod
    def close(self) -> None:
        """Ends all connections; the source may be opened again by another process."""

    @abstractmethod
    def remove(self) -> None:
        """Takes away everything that `open` made in the database."""
