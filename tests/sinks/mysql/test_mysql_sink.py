"""Specific to MySQL: its types as readers see them, its locks, its indexes."""

import dataclasses
import gc
import math
import random
import struct
import threading
from contextlib import closing
from datetime import UTC, date, datetime, time
from decimal import Decimal

import pyarrow as pa
import pytest
from support.sinks.sink_rows import batch, contents, position, rows_of, table
from test_mysql_sink_contract import MariaDb

from headwater.errors import ConfigError, Fenced, RowRefused, StoreRefused
from headwater.settings import Secret
from headwater.sinks.contract import Log, Target
from headwater.sinks.mysql import session
from headwater.sinks.settings import SinkSettings
from headwater.sinks.stores import store_of

ID = pa.schema([("id", pa.int64()), ("v", pa.string())])
ORDERS = Target("shop", "orders", ("id",))


@pytest.fixture
def backend(server, shop):
    backend = MariaDb(server, shop)
    backend.allow()
    return backend


def written(backend, fields, rows, target=ORDERS):
    store = backend.store(target)
    with store.writer(1, fields) as writer:
        writer.apply(batch(0, table(fields, rows)))
    return store


def test_values_as_an_application_reads_them(backend):
    fields = pa.schema(
        [
            ("id", pa.int64()), ("yes", pa.bool_()), ("price", pa.decimal128(20, 9)),
            ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("noon", pa.time64("us")),
            ("took", pa.duration("us")), ("tags", pa.list_(pa.string())), ("raw", pa.binary()),
        ]
    )  # fmt: skip
    row = {
        "id": 1, "yes": True, "price": Decimal("0.000000001"), "day": date(2024, 2, 29),
        "at": datetime(2024, 2, 29, 12, 0, 0, 5, UTC), "noon": time(12, 0, 0, 1),
        "took": pa.scalar(90, pa.duration("us")).as_py(), "tags": ["a", "b"], "raw": b"\0\xff'\\",
    }  # fmt: skip
    store = written(backend, fields, [row])
    [found] = backend.live_rows("orders")
    assert found["at"] == row["at"].replace(tzinfo=None)
    assert found["price"] == Decimal("0.000000001")
    assert (found["took"], found["yes"], found["raw"]) == (90, 1, b"\0\xff'\\")
    assert backend.ask("SELECT JSON_VALUE(tags, '$[0]') AS first FROM orders") == [{"first": "a"}]
    types = {row["Field"]: row["Type"] for row in backend.ask("DESCRIBE orders")}
    bigint, json = ("bigint(20)", "longtext") if backend.server.is_mariadb else ("bigint", "json")
    assert types == {
        "id": bigint, "yes": "tinyint(1)", "price": "decimal(20,9)", "day": "date",
        "at": "datetime(6)", "noon": "time(6)", "took": bigint, "tags": json,
        "raw": "longblob",
    }  # fmt: skip
    assert contents(store)[1].to_pylist() == [row]


def test_doubles_are_read_back_to_the_last_bit(backend):
    rng = random.Random(7)
    bits = [struct.unpack("<d", rng.randbytes(8))[0] for _ in range(3000)]
    values = [value for value in bits if math.isfinite(value)]
    values += [0.1, 1e22, 123456789012345680000.0]
    fields = pa.schema([("id", pa.int64()), ("v", pa.float64())])
    store = written(backend, fields, [{"id": n, "v": value} for n, value in enumerate(values)])
    found = contents(store)[1].sort_by("id")["v"].to_pylist()
    assert [struct.pack("<d", value) for value in found] == [struct.pack("<d", v) for v in values]


def test_keys_of_text_are_compared_exactly_and_have_a_length(backend):
    fields = pa.schema([("name", pa.string()), ("raw", pa.binary()), ("n", pa.int64())])
    names = ["a", "A", "a ", "ä", "", " ", "\U0001f60a"]
    rows = [{"name": text, "raw": b"\0", "n": 1} for text in names]
    target = Target("shop", "named", ("name", "raw"))
    store = written(backend, fields, rows, target)
    assert contents(store)[1].num_rows == len(names)
    types = {row["Field"]: row["Type"] for row in backend.ask("DESCRIBE named")}
    assert (types["name"], types["raw"]) == ("varchar(384)", "varbinary(1536)")
    with store.writer(1, fields) as writer:
        long = [{"name": "ä" * 384, "raw": b"x" * 1536, "n": 2}]
        writer.apply(batch(1, table(fields, long)))
        for row, column in [({"name": "x" * 385}, "name"), ({"raw": b"x" * 1537}, "raw")]:
            with pytest.raises(RowRefused, match="longer than a key") as caught:
                writer.apply(batch(2, table(fields, [{**long[0], **row}])))
            assert caught.value.column == column


def test_a_row_that_meets_another_key_in_a_unique_index_changes_nothing(backend):
    fields = pa.schema([*ID, pa.field("n", pa.int64())])
    rows = [{"id": 1, "v": "a", "n": 1}, {"id": 2, "v": "b", "n": 2}]
    store = written(backend, fields, rows)
    backend.ask("CREATE UNIQUE INDEX once ON orders (n)")
    with store.writer(1, fields) as writer:
        for wrong in ({"id": 3, "v": "c", "n": 1}, {"id": 2, "v": "c", "n": 1}):
            with pytest.raises(RowRefused) as caught:
                writer.apply(batch(1, table(fields, [wrong])))
            assert caught.value.column == "n"
            assert rows_of(store) == rows
        refusals = []
        more = [{"id": 2, "v": "new", "n": 2}, {"id": 3, "v": "c", "n": 1}]
        writer.apply(batch(1, table(fields, more)), refusals.extend)
        assert [error.row["id"] for error in refusals] == [3]
    assert rows_of(store) == [rows[0], more[0]]


def test_indexes_views_and_rights_stay_with_the_live_name(backend):
    fields = pa.schema([*ID, pa.field("n", pa.int64())])
    store = written(backend, fields, [{"id": 1, "v": "one", "n": 1}])
    backend.ask("ALTER TABLE orders ADD UNIQUE by_n (n), ADD FULLTEXT KEY words (v)")
    backend.ask("CREATE VIEW seen AS SELECT v FROM orders")
    with store.writer(2, fields) as writer:
        writer.apply(batch(0, table(fields, [{"id": 1, "v": "two", "n": 1}])))
    store.promote(2)
    assert backend.ask("SELECT * FROM seen") == [{"v": "two"}]
    for name in ("orders", "orders__v1"):
        keys = {row["Key_name"] for row in backend.ask(f"SHOW KEYS FROM {name}")}
        assert keys == {"PRIMARY", "by_n", "words"}
    store.promote(1)
    store.drop(2)
    assert backend.ask("SELECT * FROM seen") == [{"v": "one"}]


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("CREATE TABLE items (id bigint, FOREIGN KEY up (id) REFERENCES orders (id))", "items"),
        ("ALTER TABLE orders ADD CONSTRAINT small CHECK (id < 10)", "small"),
        ("CREATE TRIGGER noted BEFORE INSERT ON orders FOR EACH ROW SET NEW.v = 'x'", "noted"),
    ],
)
def test_what_would_stay_with_the_old_version_stands_in_the_way(backend, statement, named):
    store = written(backend, ID, [{"id": 1, "v": "one"}])
    with store.writer(2, ID) as writer:
        writer.apply(batch(0, table(ID, [{"id": 1, "v": "two"}])))
    backend.ask(statement)
    with pytest.raises(StoreRefused, match=named) as caught:
        store.promote(2)
    assert caught.value.hint
    assert backend.live_rows("orders") == [{"id": 1, "v": "one"}]


def test_deletes_of_many_rows_by_several_columns(backend):
    fields = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.float64())])
    rows = [{"a": n % 7, "b": f"it's {n}", "c": n / 3} for n in range(3000)]
    target = Target("shop", "many", ("a", "b", "c"))
    store = written(backend, fields, rows, target)
    with store.writer(1, fields) as writer:
        writer.apply(batch(1, table(fields, rows[:2500], ["d"] * 2500)))
    assert contents(store)[1].num_rows == 500


def test_a_writer_that_holds_its_row_loses_its_connection(backend, monkeypatch):
    """As a process does that was stopped in the midst of a batch."""
    monkeypatch.setattr(session, "LOCK_TIMEOUT_S", 1)
    fields = pa.schema([("id", pa.int64()), ("v", pa.float64())])
    store = backend.store(ORDERS)
    held, goes_on, ended = threading.Event(), threading.Event(), []
    old = store.writer(1, fields)
    old.apply(batch(0, table(fields, [{"id": 1, "v": 1.0}])))

    def hold(refused):
        held.set()
        goes_on.wait(60)

    def work():
        try:
            rows = [{"id": 1, "v": 2.0}, {"id": 2, "v": float("nan")}]
            old.apply(batch(1, table(fields, rows)), hold)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert held.wait(60)
    try:
        more = fields.append(pa.field("n", pa.int64()))  # the table is locked as well
        with store.writer(1, more) as writer:
            assert writer.position == position(0)
            assert store.versions()[0].fields == more
            writer.apply(batch(1, table(fields, [{"id": 1, "v": 3.0}])))
            goes_on.set()
            thread.join()
            assert [type(error) for error in ended] == [Fenced]
            writer.apply(batch(2, table(fields, [{"id": 3, "v": 3.0}])))
    finally:
        goes_on.set()
        thread.join()
        old.close()
    assert rows_of(store) == [{"id": 1, "v": 3.0, "n": None}, {"id": 3, "v": 3.0, "n": None}]


def test_a_slow_reader_delays_no_other_client(backend):
    store = written(backend, ID, [{"id": n, "v": "x" * 1000} for n in range(20_000)])
    with store.read(1) as read:
        first = next(read.rows)
        with store.writer(1, ID) as writer:
            writer.apply(batch(1, table(ID, [{"id": n, "v": "new"} for n in range(20_000)])))
        rest = list(read.rows)
        assert read.position == position(0)
        values = {value for piece in (first, *rest) for value in piece["v"].to_pylist()}
        assert values == {"x" * 1000}
    assert sum(map(len, rest)) + len(first) == 20_000


def test_a_read_that_ends_early(backend):
    store = written(backend, ID, [{"id": n, "v": "x" * 100} for n in range(30_000)])
    with store.read(1) as read:
        assert len(next(read.rows)) < 30_000
    del read
    gc.collect()  # what is left of the result is not waited for, nor complained about
    assert rows_of(store)[0] == {"id": 0, "v": "x" * 100}


def test_structs_that_grow_change_no_table(backend):
    fields = pa.schema([("id", pa.int64()), ("s", pa.struct([("a", pa.int32())]))])
    wider = pa.schema(
        [("id", pa.int64()), ("s", pa.struct([("a", pa.int64()), ("b", pa.date32())]))]
    )
    store = written(backend, fields, [{"id": 1, "s": {"a": 1}}])
    with store.writer(1, wider) as writer:
        rows = [{"id": 2, "s": {"a": 2**40, "b": date(2024, 2, 29)}}]
        writer.apply(batch(1, table(wider, rows)))
    assert rows_of(store) == [{"id": 1, "s": {"a": 1, "b": None}}, *rows]


@pytest.mark.parametrize("table_name", ["orders", "__headwater_positions"])
def test_only_an_engine_with_transactions(backend, table_name):
    store = written(backend, ID, [{"id": 1, "v": "a"}])
    writer = store.writer(1, ID)
    if table_name == "orders":
        backend.ask("ALTER TABLE orders ENGINE = MyISAM")
        with pytest.raises(StoreRefused, match="InnoDB"):
            writer.apply(batch(1, table(ID, [{"id": 2, "v": "b"}])))
    else:
        if not backend.server.is_mariadb:
            pytest.skip("no other engine of MySQL takes this key")
        backend.ask("ALTER TABLE __headwater_positions ENGINE = Aria")
    writer.close()
    with pytest.raises(StoreRefused, match="InnoDB") as caught:
        store.writer(1, ID)
    assert "ALTER TABLE" in caught.value.hint


def test_no_mode_of_the_server_cuts_values(backend):
    with backend.server.globals(sql_mode="NO_BACKSLASH_ESCAPES"):
        store = written(backend, ID, [{"id": 1, "v": "a\\'b"}])
        backend.ask("ALTER TABLE orders MODIFY v varchar(4)")
        with store.writer(1, ID) as writer, pytest.raises(RowRefused):
            writer.apply(batch(1, table(ID, [{"id": 2, "v": "longer"}])))
    assert rows_of(store) == [{"id": 1, "v": "a\\'b"}]


@pytest.mark.parametrize(
    "type_", [pa.decimal256(66, 0), pa.decimal128(38, 31), pa.time64("ns")], ids=str
)
def test_types_that_would_lose_something_are_refused(backend, type_):
    fields = pa.schema([("id", pa.int64()), ("odd", type_)])
    with pytest.raises(StoreRefused, match="odd"):
        backend.store(ORDERS).writer(1, fields)
    assert backend.store(ORDERS).versions() == []


def test_a_wider_key(backend):
    narrow = pa.schema([("id", pa.int32()), ("v", pa.string())])
    written(backend, narrow, [{"id": 1, "v": "a"}])
    with backend.store(ORDERS).writer(1, ID) as writer:
        writer.apply(batch(1, table(ID, [{"id": 2**40, "v": "b"}])))
    assert [row["id"] for row in rows_of(backend.store(ORDERS))] == [1, 2**40]


def test_a_password_from_a_file(backend, tmp_path):
    (tmp_path / "password").write_text(backend.password + "\n")
    url = f"mysql://writer@127.0.0.1:{backend.server.port}/{backend.database}"
    file = str(tmp_path / "password")
    settings = SinkSettings("shop", kind="mysql", url=Secret(url), password_file=file)
    store_of(settings, ORDERS, Log("")).check()


def test_a_user_without_rights(backend):
    backend.server.execute(
        "DROP USER IF EXISTS reader@'%'",
        "CREATE USER reader@'%' IDENTIFIED BY 'x'",
        f"GRANT SELECT ON {backend.database}.* TO reader@'%'",
    )
    url = f"mysql://reader:x@127.0.0.1:{backend.server.port}/{backend.database}"
    settings = dataclasses.replace(backend.settings, url=Secret(url))
    with closing(store_of(settings, ORDERS, Log(""))) as store:
        with pytest.raises(StoreRefused, match="right") as caught:
            store.writer(1, ID)
        assert "GRANT" in caught.value.hint


@pytest.mark.parametrize(
    "url", [None, "mysql://root@h", "mysql://root@h:x/y", "mysql://r@h/y?odd=1", "sqlite:///x"]
)
def test_an_address_that_is_none(url):
    settings = SinkSettings("shop", kind="mysql", url=url and Secret(url))
    with pytest.raises(ConfigError, match="sink shop") as caught:
        store_of(settings, ORDERS, Log(""))
    assert "mysql://" in caught.value.hint
