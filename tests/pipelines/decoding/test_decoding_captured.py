"""Tables of real databases through a real capture: what comes out is what they hold."""

import re
import sqlite3

import pytest
from support.capture.capture_harness import Running, running
from support.capture.postgres_server import postgres, postgres_server

from headwater.client.reading.fetching import EARLIEST, LATEST, Fetcher
from headwater.errors import ConfigError
from headwater.pipelines.decoding import decoder
from headwater.pipelines.decoding.captured import captured_schema
from headwater.pipelines.reading import LiveReader
from headwater.pipelines.settings import PipelineSettings
from headwater.settings import ClientSettings
from headwater.sinks.contract import Log

__all__ = ["postgres", "postgres_server"]  # fixtures

LOGIN = ClientSettings()
COLUMNS = """
    id integer primary key, small smallint, big bigint, ratio real, exact double precision,
    price numeric(12,3), any_number numeric, cash money, flag boolean, name text, code char(4),
    data bytea, day date, clock time, local timestamp, local_s timestamp(0), instant timestamptz,
    uid uuid, doc jsonb, ints integer[], words text[], prices numeric(6,2)[], days date[],
    address inet, colour colour
"""
ROW = """
    -5, 9223372036854775807, 0.5, 0.1, -123456789.125, 12345678901234567890.123, -12.34, true,
    E'a "b" \\\\ \\n ü😀', 'ab', '\\x00ff10', '2024-02-29', '13:51:30.123456',
    '1969-07-20 20:17:40.000001', '2024-02-29 01:02:03', '2024-02-29 13:51:30.12+02',
    'c6c1b6d8-8ac4-4a3b-9f0e-6a1f3d3b2a10', '{"a": [1, null]}', '{1,NULL,3}', '{a,"b c"}',
    '{1.5,NULL}', '{2024-02-29}', '10.0.0.1', 'red'
"""


def rows_in(bootstrap: str, topic: str) -> tuple[dict, list]:
    """The table that replaying the topic gives, by id, and all changes."""
    schema, key = captured_schema(bootstrap, LOGIN, topic)
    assert key == ("id",)
    one = decoder("debezium", schema, {})
    table, changes = {}, []
    with Fetcher(bootstrap, LOGIN) as fetcher:
        (place,) = [(topic, n) for n in range(fetcher.partitions(topic))]
        start, end = (fetcher.offsets([place], at)[place] for at in (EARLIEST, LATEST))
        for batch in fetcher.read(*place, start, end):
            result = one.decode(batch, *place)
            result.rows.validate(full=True)
            assert result.rejected == []
            changes += result.rows.to_pylist()
    for change in changes:
        if change["_op"] == "d":
            table.pop(change["id"], None)
        else:
            table[change["id"]] = {name: change[name] for name in schema.names}
    return table, changes


def wait_for_changes(capture: Running, topic: str, count: int) -> tuple[dict, list]:
    found: list = [None]

    def are_there() -> bool:
        try:
            fields = captured_schema(capture.bootstrap, LOGIN, topic)
            found[0] = rows_in(capture.bootstrap, topic)
        except ConfigError:  # the table is not stored yet
            return False
        # Columns are asked for first, records then: what changed in between is asked for again.
        is_settled = captured_schema(capture.bootstrap, LOGIN, topic) == fields
        return is_settled and len(found[0][1]) >= count

    capture.wait_until(are_there, f"{count} changes in {topic}")
    return found[0]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"decimals": "precise", "times": "iso", "schemas": True},
    ],
    ids=["default", "precise-iso-schemas"],
)
def test_a_table_of_postgresql(broker_address, postgres, settings):
    name = f"pg{len(settings)}"
    postgres.run("create type colour as enum ('red', 'blue')")
    postgres.run(f"create table things ({COLUMNS})")
    postgres.run(f"insert into things values (1, {ROW})")
    postgres.run("insert into things (id) values (2)")
    topic = f"{name}.public.things"
    with running(broker_address, postgres.url, name, tables=("public.*",), **settings) as capture:
        capture.wait_for_copies("public.things")
        postgres.run(f"insert into things values (3, {ROW})")
        postgres.run("update things set name = 'new', price = 0.001 where id = 1")
        postgres.run("delete from things where id = 2")
        wait_for_changes(capture, topic, 5)
        postgres.run("alter table things add column extra integer, drop column small")
        postgres.run("insert into things (id, extra) values (4, 17)")
        table, changes = wait_for_changes(capture, topic, 6)
    assert [change["_op"] for change in changes] == [*"rrcudc"]
    names = list(table[4])
    assert names[-1] == "extra"
    assert "small" not in names
    shown = ", ".join(
        {"cash": "cash::numeric", "doc": "doc::text", "uid": "uid::text"}.get(column, column)
        for column in names
    )
    rows = postgres.run(f"select {shown} from things order by id")
    assert sorted(table) == [row[0] for row in rows] == [1, 3, 4]
    for row in rows:
        for column, ours, theirs in zip(names, table[row[0]].values(), row, strict=True):
            assert ours == _as_we_have_it(column, theirs), column


def _as_we_have_it(column: str, value):
    if value is None:
        return None
    if column == "any_number":
        return str(value)
    if column == "clock":
        return value.isoformat("microseconds")
    if column == "data":
        return bytes(value)
    return value


def test_a_table_of_postgresql_with_rules(broker_address, postgres):
    postgres.run(
        "create table people (id integer primary key, age integer, phone bigint, pin text)"
    )
    postgres.run("insert into people values (1, 40, 12345, 'secret')")
    rules = {"*.age": "hash:salt", "*.pin": "drop"}
    settings = {"tables": ("public.*",), "columns": rules}
    with running(broker_address, postgres.url, "ruled", **settings) as capture:
        table, _ = wait_for_changes(capture, "ruled.public.people", 1)
    (row,) = table.values()
    assert list(row) == ["id", "age", "phone"]
    assert re.fullmatch("[0-9a-f]{64}", row["age"])  # a text where the table has a number
    assert row["phone"] == 12345


def test_a_table_of_sqlite(broker_address, tmp_path):
    path = tmp_path / "shop.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("create table items (id integer primary key, name text, price real, data blob)")
    db.execute("insert into items values (1, 'ü', 1.5, x'00ff'), (2, null, null, null)")
    with running(broker_address, f"sqlite:///{path}", "lite", tables=("main.*",)) as capture:
        capture.wait_for_copies("main.items")
        db.execute("update items set price = 2 where id = 2")
        db.execute("delete from items where id = 1")
        table, _ = wait_for_changes(capture, "lite.main.items", 4)
    rows = db.execute("select * from items").fetchall()
    db.close()
    assert [tuple(row.values()) for row in table.values()] == rows == [(2, None, 2.0, None)]


def test_a_topic_without_a_capture_is_an_error(broker_address):
    with pytest.raises(ConfigError, match="are unknown"):
        captured_schema(broker_address, LOGIN, "nothing.at.all")


def test_a_captured_table_as_a_dataframe(broker_address, postgres, spark):
    """The readers inside of Spark get the settings by which a capture writes values."""
    postgres.run(
        "create table times (id int primary key, t time(3), s timestamp(0), n numeric(9,2))"
    )
    row = "13:51:30.5", "2024-02-29 13:51:30", "1234567.89"
    postgres.run("insert into times values (1, %s, %s, %s), (2, null, null, null)", *row)
    settings = {"tables": ("public.*",), "decimals": "precise"}
    with running(broker_address, postgres.url, "framed", **settings) as capture:
        capture.wait_for_copies("public.times")
        postgres.run("delete from times where id = 2")
        wait_for_changes(capture, "framed.public.times", 3)
    log = Log(broker_address)
    reader = LiveReader(spark, log, PipelineSettings(name="framed", file="x.py"))
    (found,) = reader.table("framed.public.times", None, "debezium", {}).toArrow().to_pylist()
    shown = {name: str(found[name]) for name in ("id", "t", "s", "n")}
    assert shown == {"id": "1", "t": "13:51:30.500000", "s": row[1], "n": row[2]}
