"""The contract of a database: one connection with transactions, and how it waits for news.

Statements are the same for both databases, with `?` for each value. A write transaction holds the
store's one append lock from its beginning to the end of its commit. That is what makes positions
gap-free (a rollback takes its positions back before anyone else can continue) and visible in their
order (position n is visible before the transaction of n + 1 can begin).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

Row = tuple[Any, ...]
# position, id, category, stream, version, type, schema version, payload, tags, metadata, command
# id, time: a row of headwater_events.
EVENT_COLUMNS = (
    "position", "id", "aggregatetype", "aggregateid", "version", "type", "schema_version",
    "payload", "tags", "metadata", "command_id", "at_ms",
)  # fmt: skip

# id, first and last position, versions, time
INSERT_COMMAND = "INSERT INTO headwater_commands VALUES (?, ?, ?, ?, ?)"
PAYLOAD = 6  # its index in the rows of a page


class PageStatement(NamedTuple):
    """A SELECT of events, of which rows are taken up to a number of bytes of their payloads."""

    text: str
    values: Sequence[Any]
    order: str  # what it is ordered by, as the columns of its result have it


class Session(Protocol):
    """One connection. Errors are EventStoreError. Not safe for several threads at once."""

    is_usable: bool  # False: the connection is lost
    now_sql: str  # the server's time in milliseconds; NULL: the time of this machine counts

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Row]: ...

    def run_often(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """As `run`, of one of few statements: the database plans it once for a connection."""
        ...

    def run_page(self, page: PageStatement, max_bytes: int) -> tuple[list[Row], bool]:
        """Rows until their payloads have so many bytes, at least one if there is one; and whether
        more may follow for that reason.
        """
        ...

    def run_users(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """A statement in the database's own style of placeholders."""
        ...

    def begin_write(self) -> None:
        """Begins a transaction that holds the append lock."""
        ...

    def insert_events(self, rows: Sequence[Row], tags: Sequence[tuple[str, int]]) -> None:
        """What the database refuses of this and of `insert_command` may be raised by the next
        statement, or by `commit`.
        """
        ...

    def insert_command(self, row: Row) -> None: ...

    def commit(self) -> None: ...

    def roll_back(self) -> None:
        """Never raises."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Until another append may have been committed, or the time is over."""
        ...

    def close(self) -> None: ...


class EventDatabase(Protocol):
    """Where a store is."""

    shown: str  # its address without a password

    @property
    def unlocking(self) -> Sequence[str]:
        """Statements that let events be changed, until those of `locking` or a rollback."""
        ...

    @property
    def locking(self) -> Sequence[str]: ...

    def connect(self) -> Session: ...

    def connect_waiting(self) -> Session:
        """A connection for `wait`."""
        ...

    def exists(self) -> bool:
        """Whether there is a store."""
        ...

    def create(self) -> None:
        """Creates the tables and triggers that are missing. Raises EventStoreRefused."""
        ...

    def rewrite(self) -> None:
        """Copies the tables: what was changed or deleted is in none of the files afterwards."""
        ...
