"""From a database's table to a derived one: by a capture, a topic and a pipeline."""

import json
import random
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.capture.capture_harness import Running, read, running
from support.capture.postgres_server import Database
from support.pipelines.project import Project, wait_for
from tiers import long

from headwater.inspect.pipelines import verify_captured_topic
from headwater.pipelines.verification.stores import verify
from headwater.schema_lookup.lookup import SchemaLookup
from headwater.schema_lookup.sources import TopicSource
from headwater.settings import ClientSettings

# Of PostgreSQL: the type, values besides NULL, and when a value is the same in both tables.
SAME_TEXT = "s.{0}::text IS NOT DISTINCT FROM c.{0}::text"
COLUMNS = {
    "b": ("boolean", ["true", "false"], SAME_TEXT),
    "i2": ("smallint", ["-32768", "32767"], SAME_TEXT),
    "i8": ("bigint", ["9223372036854775807"], SAME_TEXT),
    "f4": ("real", ["1.5", "3.4e38", "'-Infinity'", "'NaN'"], SAME_TEXT),
    "f8": ("double precision", ["0.1", "1e-308", "'Infinity'", "'NaN'"], SAME_TEXT),
    "n": ("numeric(12,4)", ["12345678.1234", "-0.0001"], SAME_TEXT),
    "big": ("numeric(50,10)", ["1234567890123456789012345678901234567890.0123456789"], SAME_TEXT),
    "any": ("numeric", ["1e40", "-0.00000000000000000000001", "'NaN'"], SAME_TEXT),
    "m": ("money", ["'-92233720368547758.08'"], "s.{0}::numeric IS NOT DISTINCT FROM c.{0}"),
    "t": ("text", ["''", "'\u00e9\u4e2d\U0001f600'", "E'a\\tb\\nc\\\\d\"e'", "repeat('x', 9000)"],
          SAME_TEXT),
    "c": ("char(5)", ["'ab'"], "rpad(s.{0}, 5) IS NOT DISTINCT FROM c.{0}"),
    "by": ("bytea", ["'\\x00ff10'", "''"], SAME_TEXT),
    "d": ("date", ["'2026-02-28'", "'0001-01-01'", "'9999-12-31'"], SAME_TEXT),
    "ts": ("timestamp", ["'2026-02-28 13:14:15.123456'", "'1969-12-31 23:59:59.999999'"],
           SAME_TEXT),
    "tz": ("timestamptz", ["'2026-02-28 13:14:15.123456+05:30'", "'1900-01-01 00:00:00+00'"],
           SAME_TEXT),
    "ti": ("time", ["'13:14:15.123456'", "'00:00'"], "s.{0} IS NOT DISTINCT FROM c.{0}::time"),
    "iv": ("interval", ["'1 day 2 hours 3.5 seconds'"],
           "extract(epoch FROM s.{0}) * 1000000 IS NOT DISTINCT FROM c.{0}"),
    "u": ("uuid", ["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"], SAME_TEXT),
    "j": ("json", ["'{\"a\": [1, null, \"x\"]}'", "'null'"], SAME_TEXT),
    "jb": ("jsonb", ["'{\"b\": 1.50}'", "'\"text\"'"], SAME_TEXT),
    "e": ("mood", ["'sad'", "'ok'"], SAME_TEXT),
    "ai": ("integer[]", ["'{1,NULL,3}'", "'{}'"], "to_jsonb(s.{0}) IS NOT DISTINCT FROM c.{0}"),
    "an": ("numeric(8,2)[]", ["'{1.50,-2.00}'"],
           "to_jsonb(s.{0}::text[]) IS NOT DISTINCT FROM c.{0}"),
    "ip": ("inet", ["'10.0.0.1/24'"], SAME_TEXT),
    "p": ("point", ["'(1.5,-2)'"],
          "s.{0}[1] IS NOT DISTINCT FROM (c.{0}->>'y')::double precision"),
}  # fmt: skip

# Of MariaDB: the type, a value, and what SQLite has of it.
MARIADB = {
    "ti": ("tinyint unsigned", "255", 255),
    "bo": ("boolean", "1", 1),
    "ub": ("bigint unsigned", "18446744073709551615", "18446744073709551615"),
    "fl": ("float", "1.5", 1.5),
    "du": ("double", "0.1", 0.1),
    "nu": ("decimal(38,10)", "1234567890123456789012345678.0123456789",
           "1234567890123456789012345678.0123456789"),
    "bn": ("decimal(60,20)", "-1234567890123456789012345678901234567890.00000000000000000001",
           "-1234567890123456789012345678901234567890.00000000000000000001"),
    "vc": ("varchar(20)", "'\u00e9\U0001f600'", "\u00e9\U0001f600"),
    "bl": ("blob", "X'00ff'", b"\x00\xff"),
    "bi": ("binary(4)", "X'01'", b"\x01\x00\x00\x00"),
    "da": ("date", "'2026-02-28'", "2026-02-28"),
    "dt": ("datetime(6)", "'2026-02-28 13:14:15.123456'", "2026-02-28 13:14:15.123456"),
    "ts": ("timestamp(3) NULL", "'2026-02-28 13:14:15.123'", "2026-02-28 13:14:15.123000Z"),
    "tm": ("time(6)", "'-838:14:15.5'", "-838:14:15.500000"),
    "ye": ("year", "2026", 2026),
    "en": ("enum('a','b')", "'b'", "b"),
    "se": ("set('x','y')", "'x,y'", "x,y"),
    "bt": ("bit(12)", "b'101010101010'", b"\xaa\x0a"),
    "js": ("json", "'{\"a\": 1}'", '{"a": 1}'),
    "uu": ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",
           "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
}  # fmt: skip


@pytest.fixture
def project(tmp_path, broker_address):
    return Project(tmp_path, broker_address)


@pytest.fixture
def name():
    """Of the capture. Topics outlive a test."""
    return f"c{uuid.uuid4().hex[:8]}"


@contextmanager
def captured(project: Project, url: str, name: str, **settings) -> Iterator[Running]:
    lines = [f"{key} = {_toml(value)}" for key, value in settings.items()]
    project.section("\n".join([f'[capture.{name}]\nsource = "{url}"', *lines]))
    with running(project.bootstrap, url, name, **settings) as capture:
        yield capture


def _toml(value) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


def copying(
    project: Project, topic: str, to: str = "cache", pipeline: str = "copy", **settings: str
) -> None:
    body = f'flow.write(flow.changes("{topic}"), to="{to}", table="copy", key="id")'
    project.pipeline(pipeline, body, **settings)


def test_all_types_of_postgres_are_in_the_store_as_they_are(project, name, postgres, spark):
    postgres.run("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    declared = ", ".join(f'"{column}" {type_}' for column, (type_, _, _) in COLUMNS.items())
    postgres.run(f"CREATE TABLE source (id int PRIMARY KEY, {declared})")
    rows = max(len(values) for _, values, _ in COLUMNS.values())
    for row in range(rows):
        values = [values[row] if row < len(values) else "NULL" for _, values, _ in COLUMNS.values()]
        postgres.run(f"INSERT INTO source VALUES ({row}, {', '.join(values)})")
    project.section(f'[sink.pg]\nkind = "postgres"\nurl = "{postgres.url}"')
    copying(project, f"{name}.public.source", "pg", "types", bad_rows="dead-letter")
    with captured(project, postgres.url, name, tables=["public.source"]) as capture:
        capture.wait_for_copies("public.source")
        columns = ", ".join(f'"{column}"' for column in COLUMNS)
        # The same once more, as the database's log has it; and what no column of Spark's holds.
        postgres.run(f"INSERT INTO source SELECT id + 100, {columns} FROM source")
        postgres.run("INSERT INTO source (id, n) VALUES (1000, 'NaN')")
        postgres.run("INSERT INTO source (id, ai) VALUES (1001, '{{1,2},{3,4}}')")
        postgres.run("INSERT INTO source (id, d) VALUES (1002, 'infinity')")
        postgres.run("INSERT INTO source (id, ts) VALUES (1003, 'infinity')")
        postgres.run("INSERT INTO source (id, tz) VALUES (1004, '-infinity')")
        postgres.run("INSERT INTO source (id) VALUES (2000)")
        with project.running(spark, "types"):
            wait_for(lambda: 2000 in _ids(postgres), "the last row in the store")
    rejected = read(project.bootstrap, f"{name}.public.source.dlq")
    assert [record.value["after"]["id"] for record in rejected] == [1000, 1001]
    refused = read(project.bootstrap, "types.dlq")
    assert sorted(record.value["id"] for record in refused) == [1002, 1003, 1004]
    assert _ids(postgres) == {*range(rows), *range(100, 100 + rows), 2000}
    for column, (_, _, is_same) in COLUMNS.items():
        same = is_same.format(f'"{column}"')
        differing = postgres.run(
            f'SELECT s.id, s."{column}"::text, c."{column}"::text FROM source s'
            f" LEFT JOIN copy c USING (id) WHERE s.id < 1000 AND NOT ({same})"
        )
        assert differing == []


def _ids(database: Database) -> set[int]:
    if database.run("SELECT to_regclass('copy')")[0][0] is None:
        return set()
    return {row[0] for row in database.run("SELECT id FROM copy")}


def test_all_types_of_mariadb_are_in_the_store_as_they_are(
    project, name, mariadb_server, shop, spark
):
    columns = ", ".join(f"{column} {type_}" for column, (type_, _, _) in MARIADB.items())
    values = ", ".join(value for _, value, _ in MARIADB.values())
    mariadb_server.execute(
        f"CREATE TABLE source (id int PRIMARY KEY, {columns})",
        f"INSERT INTO source VALUES (1, {values})",
        "INSERT INTO source (id) VALUES (2)",
        database=shop,
    )
    copying(project, f"{name}.{shop}.source")
    with captured(project, mariadb_server.url(shop), name) as capture:
        capture.wait_for_copies(f"{shop}.source")
        mariadb_server.execute(f"INSERT INTO source VALUES (3, {values})", database=shop)
        with project.running(spark, "copy"):
            wait_for(lambda: (3,) in project.rows("SELECT id FROM copy"), "the last row")
    stored = {row[0]: dict(zip(MARIADB, row[1:], strict=True)) for row in _copy(project)}
    expected = {column: value for column, (_, _, value) in MARIADB.items()}
    assert stored == {1: expected, 2: dict.fromkeys(MARIADB), 3: expected}


def _copy(project: Project) -> list[tuple]:
    return project.rows(f"SELECT id, {', '.join(MARIADB)} FROM copy")


def test_columns_come_and_go_while_rows_do(project, name, postgres, spark):
    postgres.run("CREATE TABLE t (id int PRIMARY KEY, a int, b text)")
    postgres.run("INSERT INTO t SELECT n, n, 'x' FROM generate_series(1, 50) n")
    copying(project, f"{name}.public.t", batch_rows="30")
    project.pipeline(
        "sums",
        f"""
        rows = flow.changes("{name}.public.t").where("_op IN ('c', 'u')")
        sums = rows.groupBy(F.expr("id % 3").alias("k")).agg(F.count("*").alias("n"))
        flow.write(sums, to="cache", table="sums", key="k")
        """,
        batch_rows="30",
    )
    numbers = iter(range(1, 1000))

    def load(column: str) -> None:
        for number in [next(numbers) for _ in range(30)]:
            postgres.run(f"INSERT INTO t (id, {column}) VALUES ({1000 + number}, '{number}')")
            postgres.run(f"UPDATE t SET {column} = '{number}' WHERE id = {1 + number % 50}")

    with captured(project, postgres.url, name) as capture:
        capture.wait_for_copies("public.t")
        with project.running(spark, "copy", "sums") as runner:
            wait_for(lambda: project.rows("SELECT id FROM copy"), "the first rows")
            load("a")
            postgres.run("ALTER TABLE t ADD COLUMN c int")
            load("c")
            postgres.run("ALTER TABLE t ALTER COLUMN c TYPE bigint")
            load("c")
            postgres.run("ALTER TABLE t DROP COLUMN a; ALTER TABLE t RENAME COLUMN b TO d")
            postgres.run("UPDATE t SET d = d || '!'")
            load("d")
            expected = sorted(postgres.run("SELECT id, c, d FROM t"))

            def is_same() -> bool:
                columns = {column for _, column, *_ in project.rows("PRAGMA table_info(copy)")}
                return {"c", "d"} <= columns and (
                    sorted(project.rows("SELECT id, c, d FROM copy")) == expected
                )

            wait_for(is_same, "the same rows")
            # What is read when the new type has rewritten the table ("r") is not counted.
            changes = 4 * 60 + 50 + 90
            wait_for(lambda: project.rows("SELECT sum(n) FROM sums") == [(changes,)], "all counted")
            assert runner.errors() == []
        for pipeline in project.pipelines(spark, "copy", "sums"):
            assert verify(pipeline, pipeline.flow().writes[0].name).is_equal


def test_a_table_is_truncated_dropped_and_recreated(project, name, postgres, spark):
    postgres.run("CREATE TABLE t (id int PRIMARY KEY, a int)")
    postgres.run("INSERT INTO t SELECT n, n FROM generate_series(1, 20) n")
    copying(project, f"{name}.public.t")
    in_order = "SELECT id, a FROM copy ORDER BY id"

    def is_same() -> bool:
        return project.rows(in_order) == sorted(postgres.run("SELECT id, a FROM t"))

    with captured(project, postgres.url, name) as capture:
        capture.wait_for_copies("public.t")
        with project.running(spark, "copy") as runner:
            wait_for(is_same, "the first rows")
            postgres.run("UPDATE t SET id = id + 100 WHERE id < 5; DELETE FROM t WHERE id = 6")
            wait_for(is_same, "other keys")
            postgres.transaction("TRUNCATE t", "INSERT INTO t VALUES (7, 7)")
            wait_for(is_same, "one row")
            postgres.run("DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, a int, z int)")
            postgres.run("INSERT INTO t VALUES (8, 8, 8)")
            wait_for(lambda: project.rows("SELECT * FROM copy") == [(8, 8, 8)], "the new table")
            postgres.run("ALTER TABLE t RENAME TO old; CREATE TABLE t (id int PRIMARY KEY, a int)")
            postgres.run("INSERT INTO t VALUES (9, 9)")
            wait_for(is_same, "the table that was put in its place")
            assert runner.errors() == []


@long
def test_a_captured_topic_is_proven(project, name, postgres, spark):
    postgres.run("CREATE TABLE t (id int PRIMARY KEY, a numeric, s text)")
    postgres.run("INSERT INTO t SELECT n, n + 1e60 + 0.001, 'x' FROM generate_series(1, 300) n")
    topic, stop = f"{name}.public.t", threading.Event()

    def load() -> None:
        chosen = random.Random(1)
        connection = postgres.connect()
        connection.autocommit = True
        while not stop.wait(0.005):
            key = chosen.randrange(1, 600)
            statements = [
                f"UPDATE t SET a = a + 1, s = s || 'y' WHERE id = {key}",
                f"DELETE FROM t WHERE id = {key}",
                f"INSERT INTO t VALUES ({key}, {key}, 'n') ON CONFLICT DO NOTHING",
                f"UPDATE t SET id = (SELECT max(id) + 1 FROM t) WHERE id = {key}",
            ]
            connection.cursor().execute(chosen.choice(statements))
        connection.close()

    rules = {"columns": {"public.t.s": "hash"}, "rows": {"public.t": "id <> 7"}, "chunk_rows": 50}
    with captured(project, postgres.url, name, **rules) as capture:
        capture.wait_for_copies("public.t")
        thread = threading.Thread(target=load)
        thread.start()
        try:
            assert verify_captured_topic(project.config(), spark, topic).is_equal
        finally:
            stop.set()
            thread.join()
        postgres.run("INSERT INTO t VALUES (9001), (9002)")
        capture.wait_until(lambda: len(_of(project, topic, 9002)) == 1)
        for row, op in (({"id": 9000}, "c"), ({"id": 9001}, "d"), ({"id": 9002, "a": "1"}, "u")):
            image = {"before": row if op == "d" else None, "after": None if op == "d" else row}
            event = json.dumps({**image, "op": op, "source": {}}).encode()
            project.produce_bytes(topic, event, json.dumps({"id": row["id"]}).encode())
        verdict = verify_captured_topic(project.config(), spark, topic)
        found = {difference.key["id"]: difference for difference in verdict.differences}
        assert set(found) == {9000, 9001, 9002}
        assert found[9000].stored is None
        assert found[9001].derived is None
        assert found[9002].columns == ["a"]


def _of(project: Project, topic: str, id_: int) -> list:
    return [record for record in read(project.bootstrap, topic) if record.key == {"id": id_}]


def test_avro_of_a_capture_gives_the_same_tables_and_verifies(project, name, postgres, spark):
    """One pipeline takes its columns from the capture, the other from the schema registry."""
    postgres.run(
        "CREATE TABLE t (id int PRIMARY KEY, n numeric(12,4), at timestamptz, d date, f float8)"
    )
    postgres.run(
        "INSERT INTO t SELECT n, n / 8.0, '2026-02-28 13:14:15+01', '2026-02-28', 'NaN'"
        " FROM generate_series(1, 20) n"
    )
    topic = f"{name}.public.t"
    project.section(f'[sink.pg]\nkind = "postgres"\nurl = "{postgres.url}"')
    for pipeline, given in (("plain", ""), ("registered", ', value="avro"')):
        body = f'flow.write(flow.changes("{topic}"{given}), to="pg", table="{pipeline}", key="id")'
        project.pipeline(pipeline, body)
    with captured(project, postgres.url, name, format="avro", tables=["public.t"]) as capture:
        capture.wait_for_copies("public.t")
        postgres.run("ALTER TABLE t ADD COLUMN note text")
        postgres.run("UPDATE t SET n = 1.5 WHERE id <= 5")
        postgres.run("DELETE FROM t WHERE id = 20")
        wait_for(lambda: "d" in [record.op for record in _framed(project, topic)], "the delete")
        with project.running(spark, "plain", "registered"):
            for table in ("plain", "registered"):
                wait_for(lambda table=table: _rows(postgres, table) == _rows(postgres, "t"), table)
        assert _rows(postgres, "plain")[0][1:4] == _rows(postgres, "t")[0][1:4]
        assert verify_captured_topic(project.config(), spark, topic).is_equal
        for pipeline in project.pipelines(spark, "plain", "registered"):
            assert verify(pipeline, pipeline.flow().writes[0].name).is_equal


def _rows(database: Database, table: str) -> list[tuple]:
    if database.run(f"SELECT to_regclass('{table}')")[0][0] is None:
        return []
    return sorted(database.run(f"SELECT id, n, at, d, f::text FROM {table}"))


def _framed(project: Project, topic: str) -> list:
    lookup = SchemaLookup(TopicSource(project.bootstrap, ClientSettings()))
    try:
        return read(
            project.bootstrap,
            topic,
            decode=lambda data: None if data is None else lookup.decode(data).value,
        )
    finally:
        lookup.close()
