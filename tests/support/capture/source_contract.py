"""What every source promises (capture/contract.py), as tests that each passes on its real database.

A source plugs in with two classes, in tests/capture/<source>/:

    class ShopDatabase(Database): ...              # the adapter: makes tables, writes rows

    class TestPostgresContract(SourceContract):    # the tests
        @pytest.fixture
        def database(self, postgres_server):
            ...
            yield ShopDatabase(...)                # one namespace of its own per test

Tables of the suite have the key `id` (integer), `name` (text) and `amount` (integer). The adapter
says by its flags what the database cannot do; tests of that are then skipped. Everything is read
through contract.Source. `Topic` is the rule by which the runner brings snapshot and stream
together, in its plainest form.
"""

import json
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.capture.contract import (
    Begin,
    Change,
    Chunk,
    Commit,
    Event,
    LogPosition,
    PositionAdvanced,
    Row,
    SchemaChange,
    Source,
    SourcePosition,
    Table,
    TableFailed,
)

TIMEOUT_S = 60.0


class Session(ABC):
    """Writes inside of one transaction. `row` has id, name, amount, and columns added since."""

    @abstractmethod
    def insert(self, table: str, row: Row) -> None: ...

    @abstractmethod
    def update(self, table: str, key: int, **values: object) -> None: ...

    @abstractmethod
    def delete(self, table: str, key: int) -> None: ...

    def change_key(self, table: str, key: int, new_key: int, **values: object) -> None:
        self.update(table, key, id=new_key, **values)

    def truncate(self, table: str) -> None:
        raise NotImplementedError


class Database(ABC):
    """An empty database (or schema) of its own. May be used by several threads."""

    has_transactions = True  # several changes can be one transaction
    has_boundaries = True  # every transaction is sent as one, never two together
    has_key_change = True
    has_truncate = False
    has_keyless = True
    has_columns = True  # a column can be added
    has_exact_images = True  # `after` is the row as the change left it, not as it is when read
    logs_other_tables = True  # the log moves on by changes of tables that are not followed

    @abstractmethod
    def source(self, **options: object) -> Source:
        """A new source that follows all tables here; options as in CaptureSettings. The same
        capture each time: the second one stands for the process after a crash of the first.
        """

    @abstractmethod
    def table_id(self, name: str) -> str:
        """As contract.Table.id has it."""

    @abstractmethod
    def create_table(self, name: str, *, has_key: bool = True) -> None: ...

    @abstractmethod
    def session(self) -> AbstractContextManager[Session]:
        """Commits at the end; rolls back on an exception, and lets it through."""

    @abstractmethod
    def rows(self, table: str) -> list[Row]:
        """What the table has now, as plain rows."""

    def add_column(self, table: str, column: str) -> None:
        """An integer that may be NULL."""
        raise NotImplementedError

    def plain(self, row: Row) -> Row:
        """A row of an event with the suite's names and Python's own integers."""
        return row

    @abstractmethod
    def leftovers(self) -> object:
        """Whatever `remove` has to bring back to what it was before `open`."""

    def has_forgotten(self, source: Source, log_position: LogPosition) -> bool | None:
        """Whether the database no longer retains its log from `log_position` on. None: it never
        retains it for a client.
        """
        return None

    def write_values(self, table: str) -> None:
        """Creates a table with columns of all types and writes rows of ordinary and odd values."""
        raise NotImplementedError


# ---------------------------------------------------------------------------------- reading


@dataclass
class Transaction:
    begin: Begin
    changes: list[Change]
    commit: Commit


@dataclass
class Reader:
    """Reads a source's stream and checks its grammar: Begin, changes, Commit, in their order."""

    source: Source
    after: SourcePosition
    position: LogPosition = field(init=False)
    schema_changes: list[SchemaChange] = field(default_factory=list)
    failed: list[TableFailed] = field(default_factory=list)
    _events: Iterator[Event] = field(init=False)

    def __post_init__(self) -> None:
        self.position = self.after.at
        self._events = self.source.changes(self.after)

    def next(self, timeout_s: float = TIMEOUT_S) -> Transaction | PositionAdvanced | None:
        """The next whole transaction, or PositionAdvanced, or None if nothing happens for now."""
        deadline_s = time.monotonic() + timeout_s
        begin: Begin | None = None
        changes: list[Change] = []
        for event in self._events:
            match event:
                case Begin():
                    assert begin is None, "a transaction begins inside of another"
                    begin = event
                case Change():
                    assert begin is not None, "a change outside of a transaction"
                    changes.append(event)
                case Commit():
                    assert begin is not None, "nothing has begun"
                    self.position = begin.at
                    first = changes[0].ordinal if changes else event.changes
                    assert [change.ordinal for change in changes] == list(
                        range(first, event.changes)
                    )
                    return Transaction(begin, changes, event)
                case PositionAdvanced():
                    assert begin is None, "PositionAdvanced inside of a transaction"
                    self.position = event.at
                    return event
                case SchemaChange():
                    self.schema_changes.append(event)
                case TableFailed():
                    self.failed.append(event)
                case None if begin is None:
                    return None
            assert time.monotonic() < deadline_s, f"a transaction without an end: {begin}"
        raise AssertionError("the stream ended")

    def until(self, is_enough: Callable[[list[Transaction]], bool]) -> list[Transaction]:
        """Transactions until there are enough. Fails if that takes too long."""
        found: list[Transaction] = []
        deadline_s = time.monotonic() + TIMEOUT_S
        while not is_enough(found):
            event = self.next()
            if isinstance(event, Transaction):
                found.append(event)
            assert time.monotonic() < deadline_s, f"only {len(found)} transactions: {found[-3:]}"
        return found

    def changes(self, number: int) -> list[Transaction]:
        """Transactions until so many changes were in them."""
        found = self.until(
            lambda found: sum(len(transaction.changes) for transaction in found) >= number
        )
        assert sum(len(transaction.changes) for transaction in found) == number
        return found

    def close(self) -> None:
        self._events.close()  # type: ignore[attr-defined]
        self.source.close()


def flat(transactions: Sequence[Transaction]) -> list[Change]:
    return [change for transaction in transactions for change in transaction.changes]


# ----------------------------------------------------------- the rule of snapshot and stream


@dataclass
class Topic:
    """What a topic with the latest record per key has, fed by stream and chunks of one table.

    The watermark rule: a chunk is published between two transactions, as soon as the stream has
    passed everything that the chunk contains. Rows whose key was changed meanwhile by a transaction
    that the chunk does not contain are left out: the topic has them newer. (So may the change of a
    transaction that it contains, if the database looks `after` up when the change is read.) A
    chunk that does not contain a transaction which was sent before it was read is read again.
    """

    database: Database
    table_id: str
    rows: dict[int, Row] = field(default_factory=dict)
    chunk: Chunk | None = None
    sent: list[Begin] = field(default_factory=list)
    newer: set[int] = field(default_factory=set)

    def offer(self, chunk: Chunk) -> bool:
        """Takes a chunk that was read just now, or not: then it has to be read again."""
        if not all(chunk.contains(begin) for begin in self.sent):
            return False
        self.chunk, self.newer = chunk, set()
        return True

    def apply(self, transaction: Transaction) -> None:
        self.sent = [*self.sent[-1000:], transaction.begin]
        is_newer = self.chunk is not None and not (
            self.database.has_exact_images and self.chunk.contains(transaction.begin)
        )
        for change in transaction.changes:
            if change.table.id != self.table_id:
                continue
            for key in self._apply(change):
                if is_newer:
                    self.newer.add(key)

    def _apply(self, change: Change) -> Iterator[int]:
        before = self.database.plain(change.before) if change.before else None
        after = self.database.plain(change.after) if change.after else None
        if change.op == "t":
            yield from self.rows
            self.rows.clear()
        if before is not None:
            self.rows.pop(before["id"], None)
            yield before["id"]
        if after is not None:
            previous = self.rows.get(after["id"])
            assert previous is None or previous["amount"] <= after["amount"], "the stream went back"
            self.rows[after["id"]] = after
            yield after["id"]

    def publish(self, log_position: LogPosition) -> Chunk | None:
        """The chunk that was published because the stream has come to `log_position`."""
        chunk = self.chunk
        if chunk is None or not chunk.is_passed(log_position):
            return None
        for row in map(self.database.plain, chunk.rows):
            if row["id"] not in self.newer:
                previous = self.rows.get(row["id"])
                assert previous is None or previous["amount"] <= row["amount"], (
                    "the chunk went back"
                )
                self.rows[row["id"]] = row
        self.chunk = None
        return chunk


# ------------------------------------------------------------------------------------ tests


def _row(key: int, amount: int = 0) -> Row:
    return {"id": key, "name": f"name {key}", "amount": amount}


class SourceContract:
    """Subclass it with a fixture `database`, see above."""

    @pytest.fixture
    def opened(self, database: Database) -> Iterator[tuple[Source, LogPosition]]:
        database.create_table("t")
        source = database.source()
        log_position = source.open(None, {})
        yield source, log_position
        source.close()

    def test_a_good_database_has_nothing_wrong(self, database):
        database.create_table("t")
        assert database.source().check() == []

    def test_tables_have_their_columns_and_key(self, database, opened):
        source, _ = opened
        tables = {table.id: table for table in source.tables()}
        table = tables[database.table_id("t")]
        assert len(table.key) == 1
        if not table.documents:
            assert table.key == ("id",)
            assert [column.name for column in table.columns] == ["id", "name", "amount"]

    def test_changes_come_in_commit_order_with_what_they_did(self, database, opened):
        source, log_position = opened
        with database.session() as session:
            session.insert("t", _row(1))
        with database.session() as session:
            session.insert("t", _row(2))
        with database.session() as session:
            session.update("t", 1, amount=5)
        with database.session() as session:
            session.delete("t", 2)
        transactions = Reader(source, SourcePosition(log_position)).changes(4)
        changes = flat(transactions)
        assert [change.op for change in changes] == ["c", "c", "u", "d"]
        assert {change.table.id for change in changes} == {database.table_id("t")}
        assert [database.plain(change.after) if change.after else None for change in changes] == [
            _row(1), _row(2), _row(1, 5), None,
        ]  # fmt: skip
        assert changes[0].before is None
        assert database.plain(changes[3].before)["id"] == 2
        if database.has_boundaries:
            assert [len(transaction.changes) for transaction in transactions] == [1, 1, 1, 1]
        begins = [transaction.begin for transaction in transactions]
        assert len({begin.id for begin in begins}) == len(begins)
        assert all(abs(begin.ts_ms / 1000 - time.time()) < 3600 for begin in begins)

    def test_a_transaction_is_whole_and_its_changes_are_numbered(self, database, opened):
        if not database.has_transactions:
            pytest.skip("this database has no transactions")
        source, log_position = opened
        with database.session() as session:
            for key in range(5):
                session.insert("t", _row(key))
            session.update("t", 3, amount=7)
            session.delete("t", 4)
        [transaction] = Reader(source, SourcePosition(log_position)).changes(7)
        assert [change.op for change in transaction.changes] == ["c"] * 5 + ["u", "d"]
        assert [change.ordinal for change in transaction.changes] == list(range(7))
        assert transaction.commit.changes == 7

    def test_what_was_rolled_back_is_not_sent(self, database, opened):
        if not database.has_transactions:
            pytest.skip("this database has no transactions")
        source, log_position = opened

        def fail() -> None:
            with database.session() as session:
                session.insert("t", _row(1))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        with database.session() as session:
            session.insert("t", _row(2))
        [change] = flat(Reader(source, SourcePosition(log_position)).changes(1))
        assert database.plain(change.after) == _row(2)

    def test_a_change_of_the_key_reports_the_old_one(self, database, opened):
        if not database.has_key_change:
            pytest.skip("keys do not change in this database")
        source, log_position = opened
        with database.session() as session:
            session.insert("t", _row(1))
            session.change_key("t", 1, 9)
        _, change = flat(Reader(source, SourcePosition(log_position)).changes(2))
        assert change.op == "u"
        assert database.plain(change.before)["id"] == 1
        assert database.plain(change.after)["id"] == 9

    def test_a_truncated_table(self, database, opened):
        if not database.has_truncate:
            pytest.skip("this database does not log truncates")
        source, log_position = opened
        with database.session() as session:
            session.insert("t", _row(1))
        with database.session() as session:
            session.truncate("t")
        changes = flat(Reader(source, SourcePosition(log_position)).changes(2))
        assert [change.op for change in changes] == ["c", "t"]
        assert changes[1].before is changes[1].after is None

    def test_a_large_transaction(self, database, opened):
        source, log_position = opened
        with database.session() as session:
            for key in range(3000):
                session.insert("t", _row(key))
        transactions = Reader(source, SourcePosition(log_position)).changes(3000)
        changes = flat(transactions)
        assert [database.plain(change.after)["id"] for change in changes] == list(range(3000))
        if database.has_transactions:
            assert len(transactions) == 1

    # ------------------------------------------------------------------------- resuming

    def test_reading_goes_on_behind_every_position(self, database, opened):
        source, log_position = opened
        for first in (0, 10, 20):
            with database.session() as session:
                session.insert("t", _row(first))
                session.insert("t", _row(first + 1))
                session.update("t", first, amount=first + 1)
        reader = Reader(source, SourcePosition(log_position))
        transactions = reader.changes(9)
        reader.close()
        for number, transaction in enumerate(transactions):
            rest = transactions[number + 1 :]
            if rest:
                _expect_after(database, SourcePosition(transaction.begin.at), [], rest)
            for sent in range(len(transaction.changes) + 1):
                position = SourcePosition(transaction.begin.at, sent)
                _expect_after(database, position, transaction.changes[sent:], rest)

    def test_reading_goes_on_behind_any_position(self, database, opened):
        """The same with random transactions, one after the other in one database."""
        source, log_position = opened
        Reader(source, SourcePosition(log_position)).close()
        keys = count()

        @settings(
            max_examples=8,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(
            st.lists(st.integers(1, 4), min_size=1, max_size=4),
            st.integers(0, 10**9),
            st.integers(0, 10**9),
        )
        def check(sizes: list[int], at: int, sent: int) -> None:
            nonlocal log_position
            for size in sizes:
                with database.session() as session:
                    for _ in range(size):
                        session.insert("t", _row(next(keys)))
            again = database.source()
            assert again.open(SourcePosition(log_position), {}) == log_position
            reader = Reader(again, SourcePosition(log_position))
            transactions = reader.changes(sum(sizes))
            reader.close()
            at %= len(transactions)
            sent %= len(transactions[at].changes) + 1
            position = SourcePosition(transactions[at].begin.at, sent)
            rest = transactions[at].changes[sent:]
            _expect_after(database, position, rest, transactions[at + 1 :])
            log_position = transactions[-1].begin.at

        check()

    def test_nothing_is_lost_or_repeated_over_crashes(self, database, opened):
        source, log_position = opened
        source.close()
        position = SourcePosition(log_position)
        seen: list[int] = []
        keys = count()
        rng = random.Random(5)
        written = 0
        for _ in range(8):
            for _ in range(3):
                with database.session() as session:
                    for _ in range(rng.randint(1, 4)):
                        session.insert("t", _row(next(keys)))
                        written += 1
            source = database.source()
            source.open(position, {})
            events = source.changes(position)
            begin: Begin | None = None
            # Stops at any event, as a process does that is killed.
            for _ in range(rng.randint(3, 14)):
                event = next(events)
                match event:
                    case Begin():
                        begin = event
                    case Change():
                        assert begin is not None
                        seen.append(database.plain(event.after)["id"])
                        position = SourcePosition(begin.at, event.ordinal + 1)
                    case Commit():
                        assert begin is not None
                        position = SourcePosition(begin.at)
                        source.acknowledge(begin.at)
                    case PositionAdvanced():
                        position = SourcePosition(event.at)
            events.close()  # type: ignore[attr-defined]
            source.close()
        source = database.source()
        source.open(position, {})
        reader = Reader(source, position)
        transactions = reader.until(lambda found: len(flat(found)) + len(seen) >= written)
        reader.close()
        seen += [database.plain(change.after)["id"] for change in flat(transactions)]
        assert seen == list(range(written))

    def test_opening_twice_does_no_harm(self, database, opened):
        source, log_position = opened
        with database.session() as session:
            session.insert("t", _row(1))
        source.close()
        again = database.source()
        assert again.open(SourcePosition(log_position), {}) == log_position
        again.close()
        assert again.open(SourcePosition(log_position), {}) == log_position
        [change] = flat(Reader(again, SourcePosition(log_position)).changes(1))
        assert database.plain(change.after) == _row(1)
        again.close()

    # ----------------------------------------------------------- idle, acknowledged, removed

    def test_an_idle_source_gives_sign_of_life(self, database, opened):
        source, log_position = opened
        events = source.changes(SourcePosition(log_position))
        next(events)
        started_s = time.monotonic()
        for _ in range(5):
            assert isinstance(next(events), PositionAdvanced | None)
        assert time.monotonic() - started_s < 30  # a lock would be waited for for longer0

    def test_an_awaited_source_reports_its_position_at_once(self, database, opened):
        source, log_position = opened
        with database.session() as session:
            session.insert("t", _row(1))
        reader = Reader(source, SourcePosition(log_position))
        reader.changes(1)
        table = next(table for table in source.tables() if table.id == database.table_id("t"))
        source.is_awaited = True
        chunk = source.read_chunk(table, None, 100)
        deadline_s = time.monotonic() + 2
        while not chunk.is_passed(reader.position):
            assert time.monotonic() < deadline_s, "the chunk is not passed"
            reader.next()

    def test_changes_of_other_tables_move_the_position(self, database):
        if not database.logs_other_tables:
            pytest.skip("other tables leave nothing in the log")
        database.create_table("t")
        database.create_table("other")
        source = database.source(exclude=(database.table_id("other"),))
        log_position = source.open(None, {})
        reader = Reader(source, SourcePosition(log_position))
        with database.session() as session:
            session.insert("other", _row(1))
        deadline_s = time.monotonic() + TIMEOUT_S
        while reader.position == log_position:
            event = reader.next()
            assert not isinstance(event, Transaction) or not event.changes
            assert time.monotonic() < deadline_s, "the position does not move"
        reader.close()

    def test_what_is_acknowledged_may_be_forgotten(self, database, opened):
        source, log_position = opened
        for first in range(0, 300, 100):
            with database.session() as session:
                for key in range(first, first + 100):
                    session.insert("t", _row(key))
        reader = Reader(source, SourcePosition(log_position))
        end = reader.changes(300)[-1].begin.at
        source.acknowledge(end)
        deadline_s = time.monotonic() + TIMEOUT_S
        while database.has_forgotten(source, end) is False:
            reader.next()
            assert time.monotonic() < deadline_s, "the database retains its log"
        lag = source.lag(end)
        assert lag.size_bytes is None or lag.size_bytes >= 0
        with database.session() as session:
            session.insert("t", _row(1000))
        reader.close()
        again = database.source()
        assert again.open(SourcePosition(end), {}) == end
        [change] = flat(Reader(again, SourcePosition(end)).changes(1))
        assert database.plain(change.after) == _row(1000)
        again.close()

    def test_removing_leaves_nothing(self, database):
        database.create_table("t")
        before = database.leftovers()
        source = database.source()
        log_position = source.open(None, {})
        with database.session() as session:
            session.insert("t", _row(1))
        Reader(source, SourcePosition(log_position)).changes(1)
        source.close()
        database.source().remove()
        assert database.leftovers() == before
        with database.session() as session:
            session.insert("t", _row(2))

    # -------------------------------------------------------------------------- snapshots

    def test_chunks_have_every_row_once_in_the_order_of_the_key(self, database, opened):
        source, log_position = opened
        keys = random.Random(1).sample(range(-50, 1000), 57)
        with database.session() as session:
            for key in keys:
                session.insert("t", _row(key))
        end = Reader(source, SourcePosition(log_position)).changes(57)[-1]
        table = _table(source, database, "t")
        found: list[int] = []
        after, chunks = None, 0
        while True:
            chunk = source.read_chunk(table, after, 10)
            assert chunk.table == table
            rows = [database.plain(row) for row in chunk.rows]
            assert all(row == _row(row["id"]) for row in rows)
            found += [row["id"] for row in rows]
            assert chunk.contains(end.begin)
            chunks += 1
            after = chunk.after
            if after is None:
                break
        assert found == sorted(keys)
        assert chunks in (6, 7)
        if database.has_keyless:  # it had no key when it was asked for, and was given one since
            whole = source.read_chunk(replace(table, key=()), None, 10)
            assert sorted(database.plain(row)["id"] for row in whole.rows) == sorted(keys)
            assert whole.after is None

    def test_an_empty_table_has_one_empty_chunk(self, database, opened):
        source, _ = opened
        chunk = source.read_chunk(_table(source, database, "t"), None, 10)
        assert list(chunk.rows) == []
        assert chunk.after is None
        estimate = source.estimate_rows(_table(source, database, "t"))
        assert estimate is None or estimate >= 0

    def test_a_chunk_reports_exactly_what_it_contains(self, database, opened):
        source, log_position = opened
        table = _table(source, database, "t")
        chunks = []
        for key in range(4):
            chunks.append(source.read_chunk(table, None, 100))
            with database.session() as session:
                session.insert("t", _row(key))
        transactions = Reader(source, SourcePosition(log_position)).changes(4)
        assert len(transactions) == 4  # a chunk's read is a boundary, for every source
        for chunk_number, chunk in enumerate(chunks):
            assert [row["id"] for row in map(database.plain, chunk.rows)] == list(
                range(chunk_number)
            )
            for number, transaction in enumerate(transactions):
                assert chunk.contains(transaction.begin) is (number < chunk_number)
                if number < chunk_number - 1:
                    assert not chunk.is_passed(transaction.begin.at)
                if number >= chunk_number:
                    assert chunk.is_passed(transaction.begin.at)
            if chunk.bounds() is None:
                continue
            again = source.bounded(table, json.loads(json.dumps(chunk.bounds())))
            for begin in (
                transaction.begin for transaction in transactions
            ):  # as another run will have it
                assert again.contains(begin) is chunk.contains(begin)
                assert again.is_passed(begin.at) is chunk.is_passed(begin.at)

    def test_snapshot_and_stream_give_the_table_while_writers_write(self, database, opened):
        source, log_position = opened
        amounts = count(1)
        with database.session() as session:
            for key in range(60):
                session.insert("t", _row(key, next(amounts)))
        is_over = threading.Event()
        writers = [
            threading.Thread(target=_write_randomly, args=(database, amounts, seed, is_over))
            for seed in (0, 1)
        ]
        for writer in writers:
            writer.start()
        try:
            reader = Reader(source, SourcePosition(log_position))
            topic = Topic(database, database.table_id("t"))
            table = _table(source, database, "t")
            for _ in range(2):  # the second time while the topic has it all
                _take_snapshot(source, reader, topic, table)
        finally:
            is_over.set()
            for writer in writers:
                writer.join()
        rows = {row["id"]: row for row in database.rows("t")}
        deadline_s = time.monotonic() + TIMEOUT_S
        while topic.rows != rows:
            event = reader.next()
            if isinstance(event, Transaction):
                topic.apply(event)
            assert time.monotonic() < deadline_s, _difference(topic.rows, rows)

    def test_a_chunk_that_was_read_locks_nothing(self, database, opened):
        source, _ = opened
        with database.session() as session:
            for key in range(50):
                session.insert("t", _row(key))
        chunk = source.read_chunk(_table(source, database, "t"), None, 10)
        started_s = time.monotonic()
        with database.session() as session:
            session.update("t", 1, amount=1)
        if database.has_columns:
            database.add_column("t", "extra")
        assert time.monotonic() - started_s < 30  # a lock would be waited for for longer
        assert len(list(chunk.rows)) == 10

    def test_a_table_without_a_key(self, database):
        if not database.has_keyless:
            pytest.skip("every table here has a key")
        database.create_table("keyless", has_key=False)
        source = database.source()
        log_position = source.open(None, {})
        table = _table(source, database, "keyless")
        assert table.key == ()
        with database.session() as session:
            session.insert("keyless", _row(1))
            session.insert("keyless", _row(1))
            session.insert("keyless", _row(2))
        changes = flat(Reader(source, SourcePosition(log_position)).changes(3))
        assert [database.plain(change.after)["id"] for change in changes] == [1, 1, 2]
        chunk = source.read_chunk(table, None, 1)
        assert chunk.after is None
        assert sorted(row["id"] for row in map(database.plain, chunk.rows)) == [1, 1, 2]
        source.close()

    def test_values_are_the_same_in_snapshot_and_stream(self, database, opened):
        source, log_position = opened
        try:
            database.write_values("v")
        except NotImplementedError:
            pytest.skip("the adapter has no table of values")
        reader = Reader(source, SourcePosition(log_position))
        deadline_s = time.monotonic() + TIMEOUT_S
        # Where new tables are noticed later, their rows come with the snapshot only.
        while not any(table.id == database.table_id("v") for table in source.tables()):
            reader.next()
            assert time.monotonic() < deadline_s
        reader.next()
        table = _table(source, database, "v")
        rows = list(source.read_chunk(table, None, 1000).rows)
        assert rows
        database.write_values("v")  # the same rows again, with other keys
        streamed: dict[object, Row] = {}
        while not all(_without_key(row, table) in map_values(streamed, table) for row in rows):
            event = reader.next()
            if isinstance(event, Transaction):
                for change in event.changes:
                    if change.table.id == table.id and change.after is not None:
                        streamed[repr([change.after[key] for key in table.key])] = change.after
            assert time.monotonic() < deadline_s, (rows, streamed)
        again = list(source.read_chunk(table, None, 1000).rows)
        keys = {repr([row[key] for key in table.key]): row for row in again}
        assert all(keys[key] == row for key, row in streamed.items())

    # -------------------------------------------------------------------- changes of schema

    def test_a_new_column_is_followed(self, database, opened):
        if not database.has_columns:
            pytest.skip("there are no columns")
        source, log_position = opened
        with database.session() as session:
            session.insert("t", _row(1))
        database.add_column("t", "extra")
        with database.session() as session:
            session.insert("t", _row(2) | {"extra": 42})
        reader = Reader(source, SourcePosition(log_position))
        wanted = _row(2) | {"extra": 42}
        transactions = reader.until(
            lambda found: any(
                change.after and database.plain(change.after) == wanted for change in flat(found)
            )
        )
        last = flat(transactions)[-1]
        assert [column.name for column in last.table.columns] == ["id", "name", "amount", "extra"]
        assert _table(source, database, "t") == last.table
        chunk = source.read_chunk(last.table, None, 10)
        assert [database.plain(row) for row in chunk.rows] == [
            _row(1) | {"extra": None}, wanted,
        ]  # fmt: skip

    def test_a_new_table_is_followed(self, database, opened):
        source, log_position = opened
        reader = Reader(source, SourcePosition(log_position))
        database.create_table("later")
        keys = count()
        later = database.table_id("later")
        deadline_s = time.monotonic() + TIMEOUT_S
        found: list[Transaction] = []
        # Either its changes show it, or a SchemaChange does; from then on changes are sent.
        while not any(change.table.id == later for change in flat(found)):
            with database.session() as session:
                session.insert("later", _row(next(keys)))
            event = reader.next()
            if isinstance(event, Transaction):
                found.append(event)
            assert time.monotonic() < deadline_s
        assert _table(source, database, "later").id == later


# ---------------------------------------------------------------------------------- helpers


def _expect_after(
    database: Database, position: SourcePosition, rest: list[Change], others: list[Transaction]
) -> None:
    """That a source opened at `position` sends the rest of its transaction, with the same ordinals,
    and then the others.
    """
    source = database.source()
    assert source.open(position, {}) == position.at
    reader = Reader(source, position)
    wanted = rest + flat(others)
    transactions = reader.until(lambda found: len(flat(found)) >= len(wanted))
    reader.close()
    assert [_comparable(change) for change in flat(transactions)] == [
        _comparable(change) for change in wanted
    ]
    if rest:
        first = transactions[0]
        assert first.begin.at == position.at
        assert [change.ordinal for change in first.changes] == [change.ordinal for change in rest]


def _comparable(change: Change) -> tuple[object, ...]:
    return change.op, change.table.id, change.before, change.after


def _table(source: Source, database: Database, name: str) -> Table:
    return next(table for table in source.tables() if table.id == database.table_id(name))


def _without_key(row: Row, table: Table) -> Row:
    return {name: value for name, value in row.items() if name not in table.key}


def map_values(rows: dict[object, Row], table: Table) -> list[Row]:
    return [_without_key(row, table) for row in rows.values()]


def _write_randomly(
    database: Database, amounts: Iterator[int], seed: int, is_over: threading.Event
) -> None:
    """Each writer has the keys of one remainder to itself, so that amounts only grow per key."""
    rng = random.Random(seed)
    mine = {key for key in range(60) if key % 2 == seed}
    while not is_over.is_set():
        with database.session() as session:
            for _ in range(rng.randint(1, 3)):
                key, other = (rng.randrange(50) * 2 + seed for _ in range(2))
                if key not in mine:
                    session.insert("t", _row(key, next(amounts)))
                    mine.add(key)
                elif rng.random() < 0.3:
                    session.delete("t", key)
                    mine.discard(key)
                elif rng.random() < 0.3 and other not in mine and database.has_key_change:
                    session.change_key("t", key, other, amount=next(amounts))
                    mine.discard(key)
                    mine.add(other)
                else:
                    session.update("t", key, amount=next(amounts))
        time.sleep(0.001)


def _take_snapshot(source: Source, reader: Reader, topic: Topic, table: Table) -> None:
    after = None
    deadline_s = time.monotonic() + TIMEOUT_S

    def stream() -> None:
        assert time.monotonic() < deadline_s, "the snapshot does not end"
        event = reader.next()
        if isinstance(event, Transaction):
            topic.apply(event)

    for number in count():
        while not topic.offer(source.read_chunk(table, after, 7)):
            assert time.monotonic() < deadline_s, "no chunk contains what was sent before it"
        # Every other one is published late: the stream then has changes that it does not contain.
        for _ in range(number % 2 * 3):
            stream()
        source.is_awaited = True
        while (chunk := topic.publish(reader.position)) is None:
            stream()
        source.is_awaited = False
        stream()
        after = chunk.after
        if after is None:
            return


def _difference(found: dict[int, Row], wanted: dict[int, Row]) -> str:
    return "\n".join(
        f"{key}: {found.get(key)} instead of {wanted.get(key)}"
        for key in sorted(found.keys() | wanted.keys())
        if found.get(key) != wanted.get(key)
    )
