"""Captures that write Avro by a schema registry, and who reads it."""

import json
import sqlite3
from contextlib import closing
from functools import partial

import orjson
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from support.capture.capture_harness import read, replayed, running
from support.gateway.serving import serving
from support.shared_broker import shared_broker
from support.subjects.customers import customers
from support.wire import wait_until

from headwater import config
from headwater.cli.captures.checks import check_captures
from headwater.errors import BrokerUnreachable, ConfigError
from headwater.pipelines.decoding.avro.envelopes import AvroEnvelopes
from headwater.schema_lookup.sources import HttpSource
from headwater.schemas.settings import SchemasSettings


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with shared_broker(tmp_path_factory.mktemp("broker")) as address:
        yield address


@pytest.fixture(scope="module")
def gateway(broker, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("gateway"), broker__bootstrap=broker) as served:
        yield served


@pytest.fixture
def confluent(gateway):
    """Reads bytes as confluent-kafka's deserializer does, and knows the registry."""
    with SchemaRegistryClient({"url": gateway.url}) as registry:
        deserializer = AvroDeserializer(registry)
        context = SerializationContext("", MessageField.VALUE)

        def decode(data):
            return None if data is None else deserializer(data, context)

        decode.registry = registry
        yield decode


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")
        yield connection, f"sqlite:///{path}"


def versions(confluent, subject):
    return confluent.registry.get_versions(subject)


def fields_of(confluent, subject):
    envelope = json.loads(confluent.registry.get_latest_version(subject).schema.schema_str)
    return [field["name"] for field in envelope["fields"][0]["type"][1]["fields"]]


def table_of(database, statement="SELECT * FROM t"):
    cursor = database.execute(statement)
    names = [column for column, *_ in cursor.description]
    return {json.dumps({"id": row[0]}): dict(zip(names, row, strict=True)) for row in cursor}


def test_confluents_deserializer_reads_copies_changes_and_new_versions(broker, confluent, database):
    writer, url = database
    writer.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT NOT NULL, price REAL, raw)")
    writer.execute("INSERT INTO t VALUES (1, 'Ada', 1.5, 7), (2, 'Bob', NULL, 'text')")
    topic = "first.main.t"

    def is_same():
        return replayed(read(broker, topic, decode=confluent)) == table_of(writer)

    with running(broker, url, "first", format="avro") as capture:
        capture.wait_until(is_same, "the copy")
        writer.execute("UPDATE t SET price = 2 WHERE id = 1")
        writer.execute("DELETE FROM t WHERE id = 2")
        capture.wait_until(is_same, "the changes")
        assert versions(confluent, f"{topic}-value") == [1]
        writer.execute("ALTER TABLE t ADD COLUMN city TEXT NOT NULL DEFAULT 'Wien'")
        writer.execute("INSERT INTO t VALUES (3, 'Cy', 3.0, NULL, 'Graz')")
        writer.execute("UPDATE t SET price = 4 WHERE id = 1")
        capture.wait_until(is_same, "the rows with other columns")
    assert versions(confluent, f"{topic}-value") == [1, 2]
    assert versions(confluent, f"{topic}-key") == [1]
    assert fields_of(confluent, f"{topic}-value") == ["id", "name", "price", "raw", "city"]
    records = read(broker, topic, decode=confluent)
    assert {record.value["source"]["connector"] for record in records if record.value} == {"sqlite"}
    deleted = next(record for record in records if record.op == "d")
    assert (deleted.key, deleted.value["before"]["name"]) == ({"id": 2}, "Bob")
    assert records[records.index(deleted) + 1].value is None


def test_what_is_written_twice_after_a_crash_has_the_same_schemas(broker, confluent, database):
    writer, url = database
    writer.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a INTEGER)")
    for number in range(3):
        with running(broker, url, "again", format="avro", transactions=True) as capture:
            writer.execute("INSERT INTO t VALUES (?, ?)", (number, number))
            capture.wait_until(
                lambda: replayed(read(broker, "again.main.t", decode=confluent)) == table_of(writer)
            )
    assert versions(confluent, "again.main.t-value") == [1]
    ends = read(broker, "again.transaction", decode=confluent)
    assert {record.value["status"] for record in ends} == {"BEGIN", "END"}
    assert all(record.key["id"] == record.value["id"] for record in ends)


def test_nothing_is_lost_while_the_registry_does_not_answer(
    broker, tmp_path, database, confluent, gateway
):
    writer, url = database
    writer.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a INTEGER)")
    writer.execute("INSERT INTO t VALUES (1, 1)")
    away = SchemasSettings(url="http://127.0.0.1:9")
    with (
        pytest.raises(BrokerUnreachable, match="no schema registry answers"),
        running(broker, url, "away", format="avro", registry=away) as capture,
    ):
        wait_until(lambda: capture.failure is not None, 60, "the failure")
    assert read(broker, "away.main.t") == []
    writer.execute("INSERT INTO t VALUES (2, 2)")
    there = SchemasSettings(url=gateway.url)
    with running(broker, url, "away", format="avro", registry=there) as capture:
        capture.wait_until(
            lambda: replayed(read(broker, "away.main.t", decode=confluent)) == table_of(writer)
        )


def test_a_schema_that_the_registry_refuses_fails_its_table_only(broker, confluent, database):
    writer, url = database
    writer.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a INTEGER)")
    writer.execute("CREATE TABLE u (id INTEGER PRIMARY KEY, a INTEGER)")
    with running(broker, url, "refused", format="avro") as capture:
        capture.wait_for_copies("main.t", "main.u")
        writer.execute("INSERT INTO t VALUES (1, 1)")
        capture.wait_until(lambda: read(broker, "refused.main.t", decode=confluent))
        writer.executescript(
            "BEGIN; DROP TABLE t; CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT);"
            "INSERT INTO t VALUES (2, 'text'); COMMIT"
        )
        capture.wait_until(lambda: "main.t" in capture.state.failed_tables, "the failure")
        writer.execute("INSERT INTO u VALUES (1, 1)")
        capture.wait_until(lambda: read(broker, "refused.main.u", decode=confluent))
    failed = capture.state.failed_tables["main.t"]
    assert "does not take the schema of main.t" in failed.what
    assert "incompatible with an earlier schema" in failed.detail


def test_a_value_of_another_type_and_a_name_that_avro_has_not(broker, confluent, database):
    writer, url = database
    writer.execute("CREATE TABLE typed (id INTEGER PRIMARY KEY, a INTEGER)")
    writer.execute("INSERT INTO typed VALUES (1, 'private')")
    writer.execute('CREATE TABLE named (id INTEGER PRIMARY KEY, "größe" INTEGER)')
    writer.execute("INSERT INTO named VALUES (1, 1)")
    with running(broker, url, "unfit", format="avro") as capture:
        capture.wait_until(lambda: len(capture.state.failed_tables) == 2, "the failures")
    failed = capture.state.failed_tables
    assert "cannot be written as Avro" in failed["main.typed"].what
    assert "after.a" in failed["main.typed"].detail
    assert "private" not in failed["main.typed"].detail
    assert "größe" in failed["main.named"].what


def test_a_truncate_of_a_compacted_topic_has_a_key(broker, confluent, postgres):
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)")
    postgres.run("INSERT INTO t VALUES (1)")
    config = {"cleanup.policy": "compact"}
    with running(broker, postgres.url, "cut", format="avro", topic_config=config) as capture:
        capture.wait_for_copies("public.t")
        postgres.run("TRUNCATE t")
        capture.wait_until(
            lambda: "t" in [r.op for r in read(broker, "cut.public.t", decode=confluent)]
        )
    records = read(broker, "cut.public.t", decode=confluent)
    assert [record.key for record in records if record.op == "t"] == [{"key": None}]


TYPES = {
    "b": ("boolean", "true"), "i2": ("smallint", "-5"), "i8": ("bigint", "9223372036854775807"),
    "f4": ("real", "'NaN'"), "f8": ("double precision", "'-Infinity'"),
    "n": ("numeric(12,4)", "12.5"), "any": ("numeric", "1e40"), "m": ("money", "'12.34'"),
    "t": ("text", "'é'"), "by": ("bytea", "'\\x00ff'"), "d": ("date", "'2026-02-28'"),
    "ts": ("timestamp", "'2026-02-28 13:14:15.123456'"), "tz": ("timestamptz",
    "'2026-02-28 13:14:15+05:30'"),
    "ti": ("time", "'13:14:15'"), "iv": ("interval", "'1 day'"), "j": ("jsonb", "'{\"a\": 1}'"),
    "ai": ("integer[]", "'{1,NULL,3}'"), "af": ("double precision[]", "'{NaN,1}'"),
    "an": ("numeric(8,2)[]", "'{1.50}'"), "p": ("point", "'(1.5,-2)'"), "u": ("uuid",
    "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"),
}  # fmt: skip


@pytest.mark.parametrize("decimals", ["string", "precise"])
def test_avro_says_the_same_as_json_for_all_types(broker, gateway, confluent, postgres, decimals):
    """Two captures of one table: what a pipeline reads of the Avro is the JSON of the other."""
    columns = ", ".join(f'"{name}" {kind}' for name, (kind, _) in TYPES.items())
    values = ", ".join(value for _, value in TYPES.values())
    postgres.run(f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
    postgres.run(f"INSERT INTO t VALUES (1, {values})")
    postgres.run("INSERT INTO t (id) VALUES (2)")
    found = {}

    def has_all(topic, decode):
        return len(read(broker, topic, decode=decode)) == 5

    for form in ("json", "avro"):
        name = f"{form}{decimals}"
        with running(
            broker, postgres.url, name, format=form, decimals=decimals, transactions=True
        ) as capture:
            capture.wait_for_copies("public.t")
            postgres.run(f"INSERT INTO t VALUES (10, {values})")
            postgres.run("DELETE FROM t WHERE id = 10")
            topic = f"{name}.public.t"
            translate = AvroEnvelopes(partial(HttpSource, gateway.url, None, ""), {})

            def decode(data, translate=translate):
                if data is None or data[0] != 0:
                    return None if data is None else orjson.loads(data)
                return orjson.loads(translate.as_json(data))

            capture.wait_until(partial(has_all, topic, decode), "records")
            found[form] = read(broker, topic, decode=decode)
    for as_json, as_avro in zip(found["json"], found["avro"], strict=True):
        assert as_json.key == as_avro.key
        if as_json.value is None:
            assert as_avro.value is None
            continue
        assert as_avro.op == as_json.op
        for image in ("before", "after"):
            assert _without_nulls(as_avro.value[image]) == _without_nulls(as_json.value[image])
        assert as_avro.value["source"].keys() == as_json.value["source"].keys()
        assert (as_avro.value["transaction"] is None) == (as_json.value["transaction"] is None)
    shown = read(broker, f"avro{decimals}.public.t", decode=confluent)[0].value["after"]
    assert (shown["i8"], shown["by"], shown["t"]) == (9223372036854775807, b"\x00\xff", "é")
    if decimals == "precise":
        assert str(shown["n"]) == "12.5000"


def _without_nulls(row):
    return None if row is None else {k: v for k, v in row.items() if v is not None}


def test_debezium_engines_and_schemas_beside_values_are_refused(broker, database):
    _, url = database
    with (
        pytest.raises(ConfigError, match="schemas = true"),
        running(broker, url, "both", format="avro", schemas=True) as capture,
    ):
        wait_until(lambda: capture.failure is not None, 60, "the failure")


def test_doctor_says_whether_the_registry_answers(broker, gateway, database, tmp_path):
    _, url = database

    def findings(registry):
        (tmp_path / "headwater.toml").write_text(
            f'[broker]\nbootstrap = "{broker}"\n[schemas]\nurl = "{registry}"\n'
            f'[capture.shop]\nsource = "{url}"\nformat = "avro"\n'
        )
        loaded = config.load(environ={}, cwd=str(tmp_path))
        found = check_captures(loaded, loaded.client)
        return [(one.level, one.found) for one in found if "registry" in one.found]

    assert findings(gateway.url) == [("ok", f"the schema registry at {gateway.url} answers")]
    ((level, text),) = findings("http://127.0.0.1:9")
    assert level == "broken"
    assert "no schema registry answers" in text


def test_personal_columns_are_encrypted_texts(broker, confluent, database, tmp_path):
    writer, url = database
    writer.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, age INTEGER)")
    writer.execute("INSERT INTO t VALUES (42, 'Ann', 33)")
    topic = "sealed.main.t"
    personal = customers(tmp_path, topic, fields=("name", "age"))
    with running(broker, url, "sealed", personal, format="avro") as capture:
        capture.wait_for_copies("main.t")
    (record,) = read(broker, topic, decode=confluent)
    row = record.value["after"]
    assert row["id"] == 42
    assert personal.keyring.decrypt(row["name"], "name") == b'"Ann"'
    assert personal.keyring.decrypt(row["age"], "age") == b"33"
