"""Specific to SQLite: its file, its types as readers see them, its settings."""

import sqlite3
from contextlib import closing
from datetime import UTC, date, datetime, time
from decimal import Decimal

import pyarrow as pa
import pytest
from support.sinks.sink_rows import batch, contents, rows_of, table
from test_sqlite_sink_contract import Sqlite

from headwater.errors import ConfigError, RowRefused, StoreRefused, StoreUnreachable
from headwater.settings import Secret
from headwater.sinks.contract import Log, Target
from headwater.sinks.settings import SinkSettings
from headwater.sinks.sqlite import database
from headwater.sinks.stores import store_of

ID = pa.schema([("id", pa.int64()), ("v", pa.string())])
ORDERS = Target("shop", "orders", ("id",))
LOCAL = datetime(2024, 2, 29, 12, 0, 0, 5, UTC).replace(tzinfo=None)


@pytest.fixture
def backend(tmp_path):
    return Sqlite(tmp_path / "cache.db")


def written(backend, fields, rows, target=ORDERS):
    store = backend.store(target)
    with store.writer(1, fields) as writer:
        writer.apply(batch(0, table(fields, rows)))
    return store


def test_values_as_an_application_reads_them(backend):
    fields = pa.schema(
        [
            ("id", pa.int64()), ("yes", pa.bool_()), ("price", pa.decimal128(20, 9)),
            ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us")),
            ("noon", pa.time64("us")), ("took", pa.duration("us")), ("tags", pa.list_(pa.string())),
            ("raw", pa.binary()),
        ]
    )  # fmt: skip
    row = {
        "id": 1, "yes": True, "price": Decimal("0.000000001"), "day": date(2024, 2, 29),
        "at": datetime(2024, 2, 29, 12, tzinfo=UTC), "local": LOCAL,
        "noon": time(12, 0, 0, 1), "took": pa.scalar(90, pa.duration("us")).as_py(),
        "tags": ["a", "b"], "raw": b"\0\xff",
    }  # fmt: skip
    store = written(backend, fields, [row])
    assert backend.live_rows("orders") == [
        {
            "id": 1, "yes": 1, "price": "0.000000001", "day": "2024-02-29",
            "at": "2024-02-29 12:00:00.000000Z", "local": "2024-02-29 12:00:00.000005",
            "noon": "12:00:00.000001", "took": 90, "tags": '["a","b"]', "raw": b"\0\xff",
        }
    ]  # fmt: skip
    assert contents(store)[1].to_pylist() == [row]
    [found] = backend.ask("SELECT unixepoch(at) AS s, tags ->> 0 AS first FROM orders")
    assert found == {"s": 1709208000, "first": "a"}


def test_views_of_readers_follow_the_live_version(backend):
    store = written(backend, ID, [{"id": 1, "v": "one"}])
    backend.ask("CREATE VIEW seen AS SELECT v FROM orders")
    with store.writer(2, ID) as writer:
        writer.apply(batch(0, table(ID, [{"id": 1, "v": "two"}])))
    store.promote(2)
    assert backend.ask("SELECT * FROM seen") == [{"v": "two"}]
    store.drop(1)
    assert backend.ask("SELECT * FROM seen") == [{"v": "two"}]


def test_indexes_and_triggers_stay_with_the_live_name(backend):
    store = written(backend, ID, [{"id": 1, "v": "one"}])
    backend.ask("CREATE UNIQUE INDEX by_v ON orders (v)")
    backend.ask("CREATE TABLE log (v TEXT)")
    backend.ask(
        "CREATE TRIGGER noted AFTER INSERT ON orders BEGIN INSERT INTO log VALUES (NEW.v); END"
    )
    with store.writer(2, ID) as writer:
        writer.apply(batch(0, table(ID, [{"id": 1, "v": "two"}])))
    for live, other in ((2, 1), (1, 2)):
        store.promote(live)
        where = "SELECT DISTINCT tbl_name FROM sqlite_master WHERE name IN ('by_v', 'noted')"
        assert backend.ask(where) == [{"tbl_name": "orders"}]
        with store.writer(live, ID) as writer:
            writer.apply(batch(1, table(ID, [{"id": 9, "v": f"into {live}"}])))
        assert backend.ask("SELECT v FROM log")[-1] == {"v": f"into {live}"}
        [plan] = backend.ask("EXPLAIN QUERY PLAN SELECT * FROM orders WHERE v = 'x'")
        assert "by_v" in plan["detail"]
        assert contents(store, other)[1].num_rows


def test_a_version_that_breaks_a_unique_index_is_not_promoted(backend):
    store = written(backend, ID, [{"id": 1, "v": "one"}])
    backend.ask("CREATE UNIQUE INDEX by_v ON orders (v)")
    with store.writer(2, ID) as writer:
        writer.apply(batch(0, table(ID, [{"id": 1, "v": "x"}, {"id": 2, "v": "x"}])))
    with pytest.raises(StoreRefused, match="UNIQUE"):
        store.promote(2)
    assert [version.is_live for version in store.versions()] == [True, False]
    assert backend.live_rows("orders") == [{"id": 1, "v": "one"}]


def test_a_row_that_meets_another_key_in_a_unique_index_changes_nothing(backend):
    store = written(backend, ID, [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    backend.ask("CREATE UNIQUE INDEX once ON orders (v)")
    with store.writer(1, ID) as writer:
        with pytest.raises(RowRefused) as caught:
            writer.apply(batch(1, table(ID, [{"id": 3, "v": "a"}])))
        assert caught.value.column == "v"
        assert rows_of(store) == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]


def test_a_reader_does_not_wait_for_a_writer_nor_the_writer_for_it(backend):
    store = written(backend, ID, [{"id": 1, "v": "a"}])
    with closing(sqlite3.connect(backend.path, timeout=0)) as reader, store.writer(1, ID) as writer:
        reader.execute("BEGIN")
        assert reader.execute("SELECT v FROM orders").fetchall() == [("a",)]
        writer.apply(batch(1, table(ID, [{"id": 1, "v": "b"}])))
        assert reader.execute("SELECT v FROM orders").fetchall() == [("a",)]
        reader.execute("COMMIT")
        assert reader.execute("SELECT v FROM orders").fetchall() == [("b",)]


def test_a_database_that_another_client_has_locked(backend, monkeypatch):
    monkeypatch.setattr(database, "_BUSY_TIMEOUT_S", 0.05)
    store = written(backend, ID, [{"id": 1, "v": "a"}])
    other = sqlite3.connect(backend.path, isolation_level=None)
    with closing(other), store.writer(1, ID) as writer:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnreachable, match="locked"):
            writer.apply(batch(1, table(ID, [{"id": 1, "v": "b"}])))
        other.execute("COMMIT")
        writer.apply(batch(1, table(ID, [{"id": 1, "v": "b"}])))
    assert rows_of(store) == [{"id": 1, "v": "b"}]


def test_a_trigger_that_ends_the_transaction(backend):
    store = written(backend, ID, [{"id": 1, "v": "a"}])
    backend.ask(
        "CREATE TRIGGER no BEFORE INSERT ON orders WHEN NEW.v = 'x'"
        " BEGIN SELECT RAISE(ROLLBACK, 'all of it'); END"
    )
    with store.writer(1, ID) as writer:
        rows = table(ID, [{"id": 2, "v": "b"}, {"id": 3, "v": "x"}])
        with pytest.raises(StoreRefused, match="all of it"):
            writer.apply(batch(1, rows), lambda refused: None)
    assert rows_of(store) == [{"id": 1, "v": "a"}]


def test_another_key_needs_another_version(backend):
    written(backend, ID, [{"id": 1, "v": "a"}])
    store = backend.store(Target("shop", "orders", ("v",)))
    with pytest.raises(StoreRefused, match="another key") as caught:
        store.writer(1, ID)
    assert "id" in caught.value.detail
    with store.writer(2, ID) as writer:
        writer.apply(batch(0, table(ID, [{"id": 1, "v": "a"}, {"id": 2, "v": "a"}])))
    assert rows_of(store, 2) == [{"id": 2, "v": "a"}]


def test_a_table_that_was_dropped_by_hand(backend):
    store = written(backend, ID, [{"id": 1, "v": "a"}])
    backend.ask("DROP TABLE orders")
    with pytest.raises(StoreRefused, match="is missing") as caught:
        store.writer(1, ID)
    assert caught.value.hint


def test_columns_that_differ_in_case_only(backend):
    fields = pa.schema([("id", pa.int64()), ("Name", pa.string()), ("name", pa.string())])
    with pytest.raises(StoreRefused, match="case only"):
        backend.store(ORDERS).writer(1, fields)


@pytest.mark.parametrize("url", [None, "sqlite://x.db", "sqlite:///", "postgresql://x/y"])
def test_an_address_that_is_none(url):
    settings = SinkSettings("cache", kind="sqlite", url=url and Secret(url))
    with pytest.raises(ConfigError, match="sink cache") as caught:
        store_of(settings, ORDERS, Log(""))
    assert "sqlite:///" in caught.value.hint


def test_what_stands_in_the_way_is_said_before_anything_starts(tmp_path):
    def store(path):
        settings = SinkSettings("cache", kind="sqlite", url=Secret(f"sqlite:///{path}"))
        return store_of(settings, ORDERS, Log(""))

    with pytest.raises(StoreRefused, match="directory"):
        store(tmp_path / "missing" / "cache.db").check()
    (tmp_path / "text").write_text("no database at all, but long enough to be looked at" * 10)
    with pytest.raises(StoreRefused, match="no SQLite database"):
        store(tmp_path / "text").check()
    with pytest.raises(StoreRefused, match="no SQLite database"):
        store(tmp_path / "text").writer(1, ID)
    good = store(tmp_path / "new.db")
    good.check()
    assert not (tmp_path / "new.db").exists(), "a check changes nothing"
    assert good.versions() == []


def test_how_much_of_a_power_cut_is_survived_can_be_chosen(backend):
    settings = SinkSettings("cache", "sqlite", backend.settings.url, None, {"synchronous": "off"})
    with pytest.raises(ConfigError, match="synchronous"):
        store_of(settings, ORDERS, Log(""))
    settings = SinkSettings(
        "cache", "sqlite", backend.settings.url, None, {"synchronous": "normal"}
    )
    with store_of(settings, ORDERS, Log("")).writer(1, ID) as writer:
        writer.apply(batch(0, table(ID, [{"id": 1, "v": "a"}])))
    assert backend.live_rows("orders") == [{"id": 1, "v": "a"}]
