"""Specific to PostgreSQL: what a promote carries over, schemas, refusals."""

import random
import threading
import time
from contextlib import closing

import psycopg2
import pyarrow as pa
import pytest
from support.sinks.sink_contract import ID, ID_N, RefusalRecorder
from support.sinks.sink_rows import batch, contents, position, rows_of, table

from headwater.errors import ConfigError, RowRefused, StoreRefused
from headwater.settings import Secret
from headwater.sinks.contract import Log, Target
from headwater.sinks.postgres.connection import Session
from headwater.sinks.settings import SinkSettings
from headwater.sinks.stores import store_of

ORDERS = Target("shop", "orders", ("id",))


@pytest.fixture(scope="module")
def warehouse(postgres_server):
    with postgres_server.database() as database:
        yield database


@pytest.fixture
def database(warehouse):
    warehouse.run("CREATE SCHEMA IF NOT EXISTS public")
    yield warehouse
    warehouse.run("DROP SCHEMA public CASCADE; DROP SCHEMA IF EXISTS sales CASCADE")


@pytest.fixture
def store(database):
    with closing(made(database)) as store:
        yield store


def made(database, target=ORDERS, **settings):
    url = settings.pop("url", database.url)
    return store_of(SinkSettings("dwh", "postgres", Secret(url), **settings), target, Log(""))


def fill(store, version, value, fields=ID, key=1):
    row = {"id": key, "v": value, "n": version}
    with store.writer(version, fields) as writer:
        rows = table(fields, [{name: row[name] for name in fields.names}])
        writer.apply(batch(0, rows))


def run_as(database, role, statement):
    connection = psycopg2.connect(database.server.url(database.name, role, "secret"))
    with closing(connection), connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


def test_views_privileges_and_indexes_follow_the_live_name(database, store):
    fill(store, 1, "one")
    database.run("DROP ROLE IF EXISTS reader")
    database.run("CREATE ROLE reader LOGIN PASSWORD 'secret'")
    try:
        database.run("GRANT SELECT ON orders TO reader; GRANT UPDATE (v) ON orders TO reader")
        database.run(
            "CREATE VIEW newest WITH (security_barrier) AS SELECT v, id FROM orders WHERE id > 0"
        )
        database.run("CREATE VIEW above AS SELECT v FROM newest")
        database.run("GRANT SELECT ON above TO reader")
        database.run("CREATE INDEX by_v ON orders (lower(v)) WHERE v <> ''")
        database.run('CREATE UNIQUE INDEX "Odd ON name" ON orders (v, id)')
        fill(store, 2, "two", ID_N)
        for version, value in ((2, "two"), (1, "one"), (2, "two")):
            store.promote(version)
            assert run_as(database, "reader", "SELECT id, v FROM orders") == [(1, value)]
            assert database.run("SELECT v FROM newest") == [(value,)]
            assert run_as(database, "reader", "SELECT v FROM above") == [(value,)]
            assert database.run(
                "SELECT indexname FROM pg_indexes WHERE tablename = 'orders' ORDER BY 1"
            ) == [("Odd ON name",), ("by_v",), ("orders_pkey",)]
            assert database.run("SELECT has_column_privilege('reader', 'orders', 'v', 'UPDATE')")[
                0
            ] == (True,)
        assert database.run("SELECT indexdef FROM pg_indexes WHERE indexname = 'by_v__v1'")
        assert database.run("SELECT reloptions FROM pg_class WHERE relname = 'newest'") == [
            (["security_barrier=true"],)
        ]
        store.drop(1)
        with store.writer(2, ID_N) as writer:
            writer.apply(batch(1, table(ID_N, [{"id": 2, "v": "b", "n": 2}])))
    finally:
        database.run("DROP OWNED BY reader; DROP ROLE reader")


@pytest.mark.parametrize(
    ("thing", "name"),
    [
        ("CREATE MATERIALIZED VIEW sums AS SELECT count(*) FROM orders", "materialized view sums"),
        ("CREATE TABLE lines (o bigint REFERENCES orders (id))", "foreign key lines_o_fkey"),
        ("ALTER TABLE orders ADD CONSTRAINT short CHECK (length(v) < 9)", "constraint short"),
    ],
)
def test_what_cannot_be_carried_over_stands_in_the_way(database, store, thing, name):
    fill(store, 1, "one")
    fill(store, 2, "two")
    database.run(thing)
    with pytest.raises(StoreRefused) as caught:
        store.promote(2)
    assert name in caught.value.detail
    assert database.run("SELECT v FROM orders") == [("one",)]
    if "constraint" in name:
        database.run(thing.replace("orders", "orders__v2"))
        store.promote(2)
        assert database.run("SELECT v FROM orders") == [("two",)]


def test_a_view_that_the_new_columns_do_not_fit_is_a_refusal(database, store):
    fill(store, 1, "one")
    database.run("CREATE VIEW texts AS SELECT v FROM orders")
    other = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    with store.writer(2, other) as writer:
        writer.apply(batch(0, table(other, [{"id": 1, "n": 2}])))
    with pytest.raises(StoreRefused):
        store.promote(2)
    assert database.run("SELECT v FROM texts") == [("one",)]
    assert [version.is_live for version in store.versions()] == [True, False]


def test_an_index_whose_name_leaves_no_room_for_versions(database, store):
    fill(store, 1, "one")
    database.run(f"CREATE INDEX {'i' * 62} ON orders (v)")
    fill(store, 2, "two")
    with pytest.raises(StoreRefused, match="iii"):
        store.promote(2)
    assert database.run("SELECT v FROM orders") == [("one",)]


def test_a_long_query_delays_a_promote_and_no_other_client(database, store):
    fill(store, 1, "one")
    fill(store, 2, "two")
    with closing(database.connect()) as long, long.cursor() as cursor:
        cursor.execute("SELECT * FROM orders")
        promotes = threading.Thread(target=store.promote, args=(2,))
        promotes.start()
        try:
            slowest_s = 0.0
            for _ in range(20):
                began_s = time.monotonic()
                assert database.run("SELECT v FROM orders") == [("one",)]
                slowest_s = max(slowest_s, time.monotonic() - began_s)
            assert promotes.is_alive()
            assert slowest_s < 5
        finally:
            long.rollback()
            promotes.join()
    assert database.run("SELECT v FROM orders") == [("two",)]


def test_a_table_in_a_schema_by_name_and_by_option(database):
    database.run("CREATE SCHEMA sales")
    with closing(made(database, Target("a", "sales.orders", ("id",)))) as store:
        fill(store, 1, "by name")
    options = {"schema": "sales"}
    with closing(made(database, Target("b", "other", ("id",)), options=options)) as store:
        fill(store, 1, "by option")
    assert database.run("SELECT v FROM sales.orders UNION SELECT v FROM sales.other") == [
        ("by name",),
        ("by option",),
    ]
    with closing(made(database, Target("a", "nowhere.orders", ("id",)))) as store:
        for ask in (store.check, lambda: store.writer(1, ID)):
            with pytest.raises(StoreRefused, match="no schema nowhere"):
                ask()


def test_a_role_without_rights(database):
    database.run("DROP ROLE IF EXISTS guest")
    database.run("CREATE ROLE guest LOGIN PASSWORD 'secret'")
    try:
        url = database.server.url(database.name, "guest", "secret")
        with closing(made(database, url=url)) as store:
            with pytest.raises(StoreRefused, match="may not create tables") as caught:
                store.check()
            assert "GRANT" in caught.value.hint
    finally:
        database.run("DROP ROLE guest")


def test_the_password_comes_from_its_file(database, tmp_path):
    file = tmp_path / "password"
    file.write_text("secret\n")
    url = database.url.replace(":secret@", "@")
    with closing(made(database, url=url, password_file=str(file))) as store:
        store.check()
    with pytest.raises(ConfigError, match=r"sink\.dwh\.password_file"):
        made(database, url=url, password_file=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="no address"):
        made(database, url="postgresql://a:secret@[x").check()


def test_names_that_are_too_long(database, store):
    with pytest.raises(ConfigError, match="too long"):
        made(database, Target("shop", "x" * 60, ("id",))).check()
    fields = ID.append(pa.field("c" * 70, pa.string()))
    with pytest.raises(StoreRefused, match="cccc"):
        store.writer(1, fields)
    with store.writer(1, ID) as writer, pytest.raises(StoreRefused, match="cccc"):
        writer.apply(batch(0, table(fields, [])))


def test_a_table_that_was_dropped_by_hand(database, store):
    fill(store, 1, "one")
    database.run("DROP TABLE orders")
    for ask in (store.check, lambda: store.writer(1, ID), lambda: contents(store)):
        with pytest.raises(StoreRefused, match="is missing"):
            ask()


def test_another_key_is_refused(database, store):
    fill(store, 1, "one")
    with (
        closing(made(database, Target("shop", "orders", ("v",)))) as other,
        pytest.raises(StoreRefused, match="another key"),
    ):
        other.writer(1, ID)


def test_a_key_that_is_too_large_for_an_index(database):
    with closing(made(database, Target("shop", "by_v", ("v",)))) as store:
        with store.writer(1, ID) as writer:
            long = random.Random(1).randbytes(10_000).hex()  # nothing that can be compressed
            rows = [{"id": n, "v": f"k{n}"} for n in range(100)] + [{"id": 100, "v": long}]
            refusals = RefusalRecorder(store)
            writer.apply(batch(0, table(ID, rows)), refusals)
            assert [(error.row["id"], error.column) for error in refusals.refused] == [(100, "v")]
        assert len(rows_of(store)) == 100


def test_many_rows_with_some_that_do_not_fit(database, store):
    fill(store, 1, "one", ID_N, key=-1)
    database.run("ALTER TABLE orders ADD CHECK (n % 1000 <> 0), ADD UNIQUE (v)")
    rows = [{"id": n, "v": str(n), "n": n} for n in range(1, 5_001)]
    with store.writer(1, ID_N) as writer:
        with pytest.raises(RowRefused) as caught:
            writer.apply(batch(1, table(ID_N, rows)))
        assert caught.value.row["id"] == 1000
        refusals = RefusalRecorder(store)
        writer.apply(batch(1, table(ID_N, rows)), refusals)
        assert [error.row["id"] for error in refusals.refused] == [1000, 2000, 3000, 4000, 5000]
        assert {error.column for error in refusals.refused} == {"n"}
        assert writer.position == position(1)
    assert len(rows_of(store)) == 4_996


def test_constraints_that_are_checked_at_the_commit(database, store):
    fill(store, 1, "one", ID_N)
    database.run("CREATE TABLE known (n bigint PRIMARY KEY); INSERT INTO known VALUES (1), (2)")
    database.run(
        "ALTER TABLE orders ADD FOREIGN KEY (n) REFERENCES known DEFERRABLE INITIALLY DEFERRED"
    )
    rows = [{"id": 10, "v": "a", "n": 2}, {"id": 11, "v": "b", "n": 9}]
    with store.writer(1, ID_N) as writer:
        with pytest.raises(RowRefused) as caught:
            writer.apply(batch(1, table(ID_N, rows)))
        assert (caught.value.row["id"], caught.value.column) == (11, "n")
        refusals = RefusalRecorder(store)
        writer.apply(batch(1, table(ID_N, rows)), refusals)
        assert refusals.batch_then == [0]
    assert [row["id"] for row in rows_of(store)] == [1, 10]


def test_a_version_that_was_dropped_under_its_writer(store):
    fill(store, 1, "one")
    with store.writer(2, ID) as writer:
        store.drop(2)
        with pytest.raises(Exception, match="another process"):
            writer.apply(batch(0, table(ID, [])))


def test_positions_can_be_read_by_anybody(database, store):
    fill(store, 1, "one")
    [(owner, target, version, is_live, number, offsets)] = database.run(
        "SELECT owner, target, version, is_live, batch, offsets FROM __headwater_positions"
    )
    assert (owner, target, version, is_live, number) == ("shop", "orders", 1, True, 0)
    assert offsets == {"shop.public.orders": {"0": 10, "1": 20}}


def test_who_has_read_enough_may_leave(database, store):
    fields = pa.schema([("id", pa.int64()), ("v", pa.string())])
    rows = pa.table({"id": pa.array(range(60_000)), "v": pa.array(["x" * 300] * 60_000)})
    with store.writer(1, fields) as writer:
        writer.apply(batch(0, rows))
    for _ in range(4):
        with store.read(1) as read:
            assert next(read.rows).num_rows > 0
        # The server's part of it ends as well, and its lock: TCP's own timers would take longer.
        database.transaction(
            "SET LOCAL lock_timeout = '60s'", "LOCK TABLE orders IN ACCESS EXCLUSIVE MODE"
        )
    with store.read(1) as read:
        assert read.position == position(0)


def test_what_is_committed_is_on_disk_whatever_the_role_has_set(database):
    database.run("ALTER ROLE CURRENT_USER SET synchronous_commit = off")
    try:
        with closing(Session(Secret(database.url), "test")) as session:
            assert session.run("SHOW synchronous_commit") == [("on",)]
    finally:
        database.run("ALTER ROLE CURRENT_USER RESET synchronous_commit")
