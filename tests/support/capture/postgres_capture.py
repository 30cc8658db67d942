"""A PostgresSource under test, seen only through the contract."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from headwater.capture.contract import (
    Begin,
    Change,
    Commit,
    Event,
    Message,
    PositionAdvanced,
    Row,
    SourcePosition,
    Table,
    TableFailed,
)
from headwater.capture.postgres import PostgresSource
from headwater.capture.settings import CaptureSettings
from headwater.settings import Secret
from support.capture.postgres_server import Database


@dataclass
class Transaction:
    begin: Begin
    events: list[Event] = field(default_factory=list)
    commit: Commit | None = None

    @property
    def changes(self) -> list[Change]:
        return [event for event in self.events if isinstance(event, Change)]

    @property
    def messages(self) -> list[Message]:
        return [event for event in self.events if isinstance(event, Message)]


class Capture:
    """A source with its stream. What it sends is gathered by `until`."""

    def __init__(self, database: Database, **settings) -> None:
        self.database = database
        defaults = {"name": database.name, "source": Secret(database.url), "heartbeat_s": 1000.0}
        self.settings = CaptureSettings(**{**defaults, **settings})
        self.source = PostgresSource(self.settings)
        self.stream: Iterator[Event] | None = None
        self.loose: list[Event] = []  # events outside of transactions
        self.position = None

    def open(self, after: SourcePosition | None = None, stored: dict[str, Table] | None = None):
        self.position = self.source.open(after, stored or {})
        self.stream = self.source.changes(after or SourcePosition(self.position))
        return self.position

    def until(self, enough: Callable[[list[Transaction]], bool]) -> list[Transaction]:
        """Whole transactions, until there are enough."""
        transactions: list[Transaction] = []
        current: Transaction | None = None
        deadline = time.monotonic() + 30
        for event in self.stream:
            if isinstance(event, Begin):
                assert current is None
                current = Transaction(event)
            elif isinstance(event, Commit):
                current.commit = event
                transactions.append(current)
                current = None
                self.position = transactions[-1].begin.at
            elif current is not None and event is not None:
                current.events.append(event)
            elif event is not None:
                self.loose.append(event)
                if isinstance(event, PositionAdvanced):
                    self.position = event.at
            if current is None and enough(transactions):
                return transactions
            assert time.monotonic() < deadline, f"only {len(transactions)} transactions"
        raise AssertionError("the stream ended")

    def transactions(self, count: int) -> list[Transaction]:
        return self.until(lambda seen: len(seen) >= count)

    def changes(self, count: int) -> list[Change]:
        """The next changes, and nothing behind them."""
        seen = self.until(lambda seen: sum(len(t.events) for t in seen) >= count)
        failed = [e.error for t in seen for e in t.events if isinstance(e, TableFailed)]
        assert not failed, str(failed[0])
        return [change for transaction in seen for change in transaction.changes]

    def until_loose(self, kind: type) -> Event:
        """An event outside of transactions."""
        self.until(lambda _: any(isinstance(event, kind) for event in self.loose))
        return next(event for event in self.loose if isinstance(event, kind))

    def table(self, name: str) -> Table:
        return next(table for table in self.source.tables() if table.name == name)

    def rows(self, name: str, limit_rows: int = 1000) -> list[Row]:
        """A whole table, chunk by chunk."""
        rows: list[Row] = []
        after = None
        while True:
            chunk = self.source.read_chunk(self.table(name), after, limit_rows)
            rows += chunk.rows
            after = chunk.after
            if after is None:
                return rows


@contextmanager
def capturing(database: Database, **settings) -> Iterator[Capture]:
    """Opened, and following."""
    capture = Capture(database, **settings)
    try:
        capture.open()
        yield capture
    finally:
        capture.source.close()
