"""With schemas on, Kafka Connect's own converter reads every record, and reads all of it."""

import json
import subprocess
from pathlib import Path

import pytest
from test_shaping import ANNE, BEGIN, CUSTOMERS, SOURCE, TOPIC, make

from bench.peers.kafka import TOOL_JVM, classpath
from bench.peers.provision import missing_tools
from headwater.capture.contract import Begin, Change, Column, Commit, Message, Table

ORDERS = Table(
    "public",
    "orders",
    (
        Column("id", "bigint", {"type": "int64"}, optional=False),
        Column("note", "text", {"type": "string"}, optional=False),
        Column("paid", "boolean", {"type": "boolean"}, optional=False),
        Column("rate", "double precision", {"type": "double"}, optional=False),
        Column("data", "bytea", {"type": "bytes"}),
        Column("tags", "text[]", {"type": "array", "items": {"type": "string", "optional": True}}),
        Column(
            "at",
            "timestamp",
            {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "version": 1},
        ),
        Column(
            "total",
            "numeric(10,2)",
            {
                "type": "bytes",
                "name": "org.apache.kafka.connect.data.Decimal",
                "version": 1,
                "parameters": {"scale": "2", "connect.decimal.precision": "10"},
            },
        ),
    ),
    ("id",),
)
ORDER = {
    "id": 7,
    "note": "large",
    "paid": True,
    "rate": 0.5,
    "data": "AAEC",
    "tags": ["x", None],
    "at": 1_700_000_000_000_000,
    "total": "J0I=",
}
PEOPLE = Table("app", "people", (Column("_id", "document"),), ("_id",), documents=True)


def _postgres():
    shaper = make(schemas=True, transactions=True)
    own = {"lsn": 34500}
    yield from shaper.rows(ORDERS, [ORDER], "true", 5, {"lsn": 3})
    shaper.begin(BEGIN)
    changes = [
        ("c", None, ORDER),
        ("u", ORDER, ORDER),
        ("u", None, dict.fromkeys(ORDER) | {"id": 7, "note": "", "paid": False, "rate": 1.5}),
        ("u", {"id": 7}, ORDER | {"id": 8}),
        ("d", ORDER, None),
        ("d", {"id": 7}, None),
        ("t", None, None),
    ]
    for number, (op, before, after) in enumerate(changes):
        yield from shaper.change(Change(ORDERS, op, before, after, number, own))
    yield from shaper.message(Message("greet", b"hello", 9, own))
    yield from shaper.commit(Commit(8))
    masked = make(schemas=True, columns={"*.note": "hash", "*.paid": "drop", "*.rate": "null"})
    masked.begin(BEGIN)
    for op, before, after in (("c", None, ORDER), ("d", {"id": 7}, None)):
        yield from masked.change(Change(ORDERS, op, before, after, 0, own))


def _others():
    mysql = make("mysql", schemas=True)
    mysql.begin(Begin({}, "x", 5, {"server_id": 1, "gtid": None}))
    own = {"file": "bin.1", "pos": 3, "row": 0, "thread": 5}
    yield from mysql.change(Change(CUSTOMERS, "c", None, ANNE, 0, own))
    yield from mysql.rows(CUSTOMERS, [ANNE], "true", 5)
    sqlite = make("sqlite", schemas=True)
    sqlite.begin(Begin({}, "x", 5, {}))
    yield from sqlite.change(Change(CUSTOMERS, "c", None, ANNE, 0, {"id": 5}))
    mongodb = make("mongodb", schemas=True)
    mongodb.begin(Begin({}, "x", 5, {}))
    extra = {
        "updateDescription": {
            "updatedFields": {"a": 1},
            "removedFields": ["b"],
            "truncatedArrays": [{"field": "c", "newSize": 2}],
        }
    }
    document = {"_id": {"$oid": "5f"}, "a": 1}
    yield from mongodb.change(Change(PEOPLE, "u", None, document, 0, {"ord": 1}, extra))
    yield from mongodb.change(Change(PEOPLE, "d", document, None, 1, {"ord": 2}))
    yield from mongodb.rows(PEOPLE, [document], "true", 5)


@pytest.mark.java
@pytest.mark.skipif(
    bool(missing_tools("java", "javac", "mvn")), reason="needs java, javac and mvn on the PATH"
)
def test_connect_reads_what_was_written():
    texts = [
        text.decode()
        for _, key, value, headers in (*_postgres(), *_others())
        for text in (key, value, *(header for _, header in headers))
        if text is not None and text != b"{}"
    ]
    source = Path(__file__).parents[1] / "java" / "ReadConnect.java"
    read = subprocess.run(
        ["java", *TOOL_JVM, "-cp", classpath(), source],
        input="\n".join(texts),
        capture_output=True,
        text=True,
        check=False,
    )
    assert read.returncode == 0, read.stderr
    understood = [json.loads(line) for line in read.stdout.splitlines()]
    assert len(understood) == len(texts) > 40
    for text, again in zip(texts, understood, strict=True):
        assert again == json.loads(text)


def test_names_are_debeziums():
    shaper = make(schemas=True)
    shaper.begin(BEGIN)
    ((topic, key, value, _),) = shaper.change(Change(CUSTOMERS, "c", None, ANNE, 0, {"lsn": 34500}))
    key, value = json.loads(key), json.loads(value)
    assert key == {
        "schema": {
            "type": "struct",
            "fields": [{"type": "int32", "optional": False, "field": "id"}],
            "optional": False,
            "name": f"{TOPIC}.Key",
        },
        "payload": {"id": 1},
    }
    schema, fields = value["schema"], {f["field"]: f for f in value["schema"]["fields"]}
    assert (topic, schema["name"], schema["version"]) == (TOPIC, f"{TOPIC}.Envelope", 2)
    assert list(fields) == list(value["payload"])
    assert fields["before"]["name"] == fields["after"]["name"] == f"{TOPIC}.Value"
    assert fields["source"]["name"] == "io.debezium.connector.postgresql.Source"
    assert [f["field"] for f in fields["source"]["fields"]] == list(SOURCE)
    assert fields["transaction"]["name"] == "event.block"


def test_what_is_unknown_of_a_required_column_is_what_debezium_writes():
    shaper = make(schemas=True)
    shaper.begin(BEGIN)
    record, _ = shaper.change(Change(ORDERS, "d", {"id": 7}, None, 0, {"lsn": 1}))
    assert json.loads(record[2])["payload"]["before"] == {
        "id": 7,
        "note": "",
        "paid": False,
        "rate": 0.0,
        "data": None,
        "tags": None,
        "at": None,
        "total": None,
    }
