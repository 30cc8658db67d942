"""The source itself, with Debezium's connector for PostgreSQL and a real PostgreSQL."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.capture.debezium_reader import missing, settings_of
from support.capture.postgres_server import Database
from support.wire import wait_until
from tiers import long

from headwater.capture.contract import (
    Begin,
    Commit,
    LogPosition,
    PositionAdvanced,
    Record,
    SourcePosition,
)
from headwater.capture.debezium import transactions
from headwater.capture.debezium.source import DebeziumSource
from headwater.errors import PositionLost, SourceRefused, SourceUnreachable
from headwater.settings import Secret

TIMEOUT_S = 60

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]


@pytest.fixture
def options(postgres: Database) -> dict[str, str]:
    return {
        "database.hostname": "127.0.0.1",
        "database.port": str(postgres.server.port),
        "database.user": "postgres",
        "database.password": "secret",
        "database.dbname": postgres.name,
        "slot.name": f"slot_{postgres.name}",  # slots are the server's, not the database's
    }


class Follower:
    """What came, in groups: records with the log_position of their Begin."""

    def __init__(self, source: DebeziumSource, after: SourcePosition | None) -> None:
        self.source = source
        self.position: LogPosition = source.open(after, {})
        self._events = source.changes(after or SourcePosition(self.position))

    def groups(self, records: int) -> list[tuple[Begin, list[Record]]]:
        """As many whole groups as have so many records."""
        found: list[tuple[Begin, list[Record]]] = []
        deadline_s = time.monotonic() + TIMEOUT_S
        for event in self._events:
            match event:
                case Begin():
                    found.append((event, []))
                case Record():
                    found[-1][1].append(event)
                case Commit():
                    self.position = found[-1][0].at
                case PositionAdvanced():
                    self.position = event.at
            total = sum(len(changes) for _begin, changes in found)
            if isinstance(event, Commit) and total >= records:
                assert total == records
                return found
            assert time.monotonic() < deadline_s, found
        raise AssertionError

    def events(self) -> Iterator[object]:
        return self._events


@contextmanager
def following(
    options: dict[str, str], after: SourcePosition | None = None, **given: object
) -> Iterator[Follower]:
    source = DebeziumSource(settings_of(options, **given))
    try:
        yield Follower(source, after)
    finally:
        source.close()


def test_snapshot_then_changes_in_debeziums_own_envelope(
    postgres: Database, options: dict[str, str]
) -> None:
    postgres.run("CREATE TABLE t (id int PRIMARY KEY, name text, price numeric(10, 2))")
    postgres.run("CREATE TABLE other (id int PRIMARY KEY)")
    postgres.run("INSERT INTO t VALUES (1, 'öäü \U0001f600', 1.50), (2, E'two\\nlines', NULL)")
    with following(options, exclude=("public.other",)) as follower:
        rows = [record for _begin, records in follower.groups(2) for record in records]
        assert [row.topic for row in rows] == ["legacy.public.t"] * 2
        values = [json.loads(row.value) for row in rows]
        assert [value["op"] for value in values] == ["r", "r"]
        assert values[0]["after"] == {"id": 1, "name": "öäü \U0001f600", "price": "1.50"}
        assert values[1]["after"]["name"] == "two\nlines"
        assert rows[0].key == b'{"id":1}'
        postgres.transaction(
            "INSERT INTO t VALUES (3)",
            "INSERT INTO other VALUES (3)",
            "UPDATE t SET id = 4 WHERE id = 3",
            "DELETE FROM t WHERE id = 1",
        )
        ((begin, records),) = follower.groups(6)
        assert begin.id
        assert abs(begin.ts_ms - time.time() * 1000) < TIMEOUT_S * 1000
        ops = [json.loads(record.value)["op"] if record.value else None for record in records]
        assert ops == ["c", "d", None, "c", "d", None]
        assert [dict(record.headers) for record in records[1:4]] == [
            {"__debezium.newkey": b'{"id":4}'},
            {"__debezium.newkey": b'{"id":4}'},
            {"__debezium.oldkey": b'{"id":3}'},
        ]


def test_it_goes_on_where_the_position_says(postgres: Database, options: dict[str, str]) -> None:
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)")
    postgres.run("INSERT INTO t VALUES (0)")
    with following(options) as follower:
        follower.groups(1)
        for number in range(1, 4):
            postgres.run("INSERT INTO t VALUES (%s)", number)
        groups = follower.groups(3)
    for passed, (begin, _records) in enumerate(groups, start=1):
        postgres.run("INSERT INTO t VALUES (%s)", 3 + passed)
        with following(options, SourcePosition(json.loads(json.dumps(begin.at)))) as follower:
            again = follower.groups(3)
        keys = [record.key for _begin, records in again for record in records]
        assert keys == [b'{"id":%d}' % number for number in range(passed + 1, passed + 4)]


def test_the_database_forgets_only_what_was_acknowledged(
    postgres: Database, options: dict[str, str]
) -> None:
    def confirmed() -> int:
        ((lsn,),) = postgres.run(
            "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots"
            " WHERE database = %s",
            postgres.name,
        )
        return int(lsn)

    postgres.run("CREATE TABLE t (id int PRIMARY KEY)")
    postgres.run("INSERT INTO t VALUES (0)")
    with following(options) as follower:
        events = follower.events()
        follower.groups(1)
        began = confirmed()
        postgres.run("INSERT INTO t VALUES (1)")
        ((begin, _records),) = follower.groups(1)
        ((_partition, offset),) = begin.at["offsets"]
        quiet_until_s = time.monotonic() + 1.5
        while time.monotonic() < quiet_until_s:
            next(events)
        assert confirmed() == began < offset["lsn"]
        follower.source.acknowledge(begin.at)
        deadline_s = time.monotonic() + TIMEOUT_S
        while confirmed() < offset["lsn"]:
            next(events)
            assert time.monotonic() < deadline_s


@long
def test_a_transaction_too_large_to_be_held_goes_on_exactly(
    postgres: Database, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "HELD_BYTES", 20_000)
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)")
    postgres.run("INSERT INTO t VALUES (0)")
    with following(options) as follower:
        follower.groups(1)
        postgres.run("INSERT INTO t SELECT generate_series(1, 500)")
        ((begin, _records),) = follower.groups(500)
        assert begin.at["transaction"] == begin.id
    postgres.run("INSERT INTO t VALUES (1000)")
    with following(options, SourcePosition(begin.at, 124)) as follower:
        groups = follower.groups(378)
        assert groups[0][1][0].key == b'{"id":124}'
        assert groups[-1][1][0].key == b'{"id":1000}'
    with following(options, SourcePosition(begin.at)) as follower:
        ((_begin, records),) = follower.groups(1)
        assert records[0].key == b'{"id":1000}'


def test_schemas_and_transactions_can_be_had(postgres: Database, options: dict[str, str]) -> None:
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)")
    with following(options, schemas=True, transactions=True, snapshot="never") as follower:
        assert isinstance(next(follower.events()), PositionAdvanced | None)  # it follows
        postgres.run("INSERT INTO t VALUES (1)")
        ((_begin, records),) = follower.groups(3)
    assert [record.topic for record in records] == [
        "legacy.transaction", "legacy.public.t", "legacy.transaction"
    ]  # fmt: skip
    value = json.loads(records[1].value)
    assert value["schema"]["type"] == "struct"
    assert value["payload"]["transaction"]["total_order"] == 1
    assert json.loads(records[2].value)["payload"]["event_count"] == 1


def test_transforms_are_applied(postgres: Database, options: dict[str, str]) -> None:
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)")
    postgres.run("INSERT INTO t VALUES (1)")
    options |= {
        "transforms": "flat",
        "transforms.flat.type": "io.debezium.transforms.ExtractNewRecordState",
    }
    with following(options) as follower:
        ((_begin, (record,)),) = follower.groups(1)
    assert json.loads(record.value) == {"id": 1}


def test_what_is_wrong_is_reported_by_check(postgres: Database, options: dict[str, str]) -> None:
    assert DebeziumSource(settings_of(options)).check() == []
    (error,) = DebeziumSource(settings_of({**options, "database.password": "wrong"})).check()
    assert "password authentication failed" in str(error)
    without = {name: value for name, value in options.items() if name != "database.user"}
    assert "database.user" in str(DebeziumSource(settings_of(without)).check()[0])


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("cassandra", None),
        ("db2", "database.hostname"),
        ("mongodb", "mongodb.connection.string"),
        ("mysql", "database.hostname"),
        ("oracle", "database.hostname"),
        ("spanner", "gcp.spanner.project.id"),
        ("sqlserver", "database.hostname"),
        ("vitess", "vitess.keyspace"),
    ],
)
def test_connectors_of_other_databases_say_what_they_miss(name: str, wanted: str | None) -> None:
    errors = DebeziumSource(settings_of({}, source=Secret(f"debezium:{name}"))).check()
    if wanted is not None:
        assert wanted in {error.what.removeprefix("legacy: ") for error in errors}
    assert all(isinstance(error, SourceRefused) for error in errors)


def test_a_connector_that_no_jar_has_is_refused(options: dict[str, str]) -> None:
    source = DebeziumSource(settings_of(options, source=Secret("debezium:informix")))
    (error,) = source.check()
    assert isinstance(error, SourceRefused)
    assert "InformixConnector" in str(error)
    assert "jvm.jars" in error.hint


def test_a_database_that_does_not_answer_is_unreachable(options: dict[str, str]) -> None:
    source = DebeziumSource(settings_of({**options, "database.port": "1"}))
    with pytest.raises(SourceUnreachable, match="does not start"):
        for _event in source.changes(SourcePosition(source.open(None, {}))):
            pass
    source.close()


def test_a_slot_that_was_created_again_is_a_lost_position(
    postgres: Database, options: dict[str, str]
) -> None:
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)")
    postgres.run("INSERT INTO t VALUES (1)")
    with following(options) as follower:
        follower.groups(1)
        postgres.run("INSERT INTO t VALUES (2)")
        ((begin, _records),) = follower.groups(1)
    is_active = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
    wait_until(lambda: postgres.run(is_active, options["slot.name"]) == [(False,)])
    postgres.run("SELECT pg_drop_replication_slot(%s)", options["slot.name"])
    postgres.run("INSERT INTO t VALUES (3)")
    postgres.run("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", options["slot.name"])
    with pytest.raises(PositionLost), following(options, SourcePosition(begin.at)) as follower:
        follower.groups(1)


def test_the_slot_can_be_removed(postgres: Database, options: dict[str, str]) -> None:
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)")
    postgres.run("INSERT INTO t VALUES (1)")
    with following(options) as follower:
        follower.groups(1)
    slots = "SELECT slot_name FROM pg_replication_slots WHERE database = %s"
    assert postgres.run(slots, postgres.name) != []
    DebeziumSource(settings_of(options)).remove()
    wait_until(lambda: postgres.run(slots, postgres.name) == [], what="the end of the slot")
