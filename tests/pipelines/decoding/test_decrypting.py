"""Personal fields in the decoder: plain, erased, changed, and never in a dead letter."""

import dataclasses
import json
import pickle

import orjson
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType
from support.subjects.customers import customers

from headwater.capture.contract import Begin, Change, Column, Table
from headwater.capture.records.shaping import Shaper
from headwater.capture.settings import CaptureSettings
from headwater.errors import ConfigError, KeyStoreLost
from headwater.pipelines.decoding import decoder
from headwater.pipelines.decoding.decrypting import Decrypting
from headwater.pipelines.reading import LiveReader
from headwater.pipelines.settings import PythonSettings
from headwater.pipelines.source.options import read_options
from headwater.pipelines.source.reading import Decoding
from headwater.settings import ClientSettings, Secret
from headwater.sinks.contract import Log
from headwater.subjects.access import key_option
from headwater.subjects.key_store import KeyStore

TOPIC = "shop.public.customers"
BORN = {"type": "int32", "name": "io.debezium.time.Date", "version": 1}
TABLE = Table(
    "public",
    "customers",
    (
        Column("id", "bigint", {"type": "int64"}, optional=False),
        Column("name", "text"),
        Column("born", "date", BORN),
    ),
    ("id",),
)
COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("born", pa.date32())])


@pytest.fixture
def personal(tmp_path):
    return customers(tmp_path, TOPIC, fields=("name", "born"))


def events(personal, *rows, schemas=False):
    """Created rows as records of the topic."""
    settings = CaptureSettings("shop", Secret("postgresql://localhost/shop"), schemas=schemas)
    shaper = Shaper(settings, "postgresql", "shop", personal)
    shaper.begin(Begin({}, "1", 1_700_000_000_000, {}))
    values = []
    for number, row in enumerate(rows):
        ((_, _, value, _),) = shaper.change(Change(TABLE, "c", None, row, number, {}))
        values.append(value)
    personal.flush()
    return values


def batch(values):
    return pa.record_batch(
        {
            "key": pa.array([b'{"id":1}'] * len(values), pa.binary()),
            "value": pa.array(values, pa.binary()),
            "offset": pa.array(range(100, 100 + len(values)), pa.int64()),
            "timestamp": pa.array([0] * len(values), pa.timestamp("ms", "UTC")),
        }
    )


def decrypting(personal, kinds=("customer",), schema=COLUMNS, kind="debezium"):
    connect = {"connect": json.dumps({"born": BORN}), "decrypt": ",".join(kinds)}
    options = connect if kind == "debezium" else {}
    keys = key_option(personal.places, personal.subjects)
    return Decrypting(decoder(kind, schema, options), kinds, keys)


def rows_of(decoded):
    return [
        {name: row[name] for name in ("id", "name", "born")} for row in decoded.rows.to_pylist()
    ]


ANN = {"id": 1, "name": "Ann", "born": 7305}
BOB = {"id": 2, "name": "Bob", "born": None}


@pytest.mark.parametrize("schemas", [False, True])
def test_values_have_their_types_again(personal, schemas):
    values = events(personal, ANN, BOB, schemas=schemas)
    assert all(b"Ann" not in value and b"Bob" not in value for value in values)
    found = pickle.loads(pickle.dumps(decrypting(personal))).decode(batch(values), TOPIC, 0)
    assert [str(row["born"]) for row in rows_of(found)] == ["1990-01-01", "None"]
    assert [row["name"] for row in rows_of(found)] == ["Ann", "Bob"]
    assert found.rejected == []


@pytest.mark.parametrize("schemas", [False, True])
def test_other_kinds_of_subjects_stay_encrypted(personal, schemas):
    texts = pa.schema([("id", pa.int64()), ("name", pa.string()), ("born", pa.string())])
    keys = decrypting(personal, kinds=("employee",), schema=texts)
    keys._decoder = decoder("debezium", texts, {"decrypt": "employee"})
    values = events(personal, ANN, schemas=schemas)
    (row,) = rows_of(keys.decode(batch(values), TOPIC, 0))
    assert row["name"].startswith("hw1:")
    assert row["born"].startswith("hw1:")


def test_an_erased_subject_has_nulls(personal):
    values = events(personal, ANN, BOB)
    decoding = decrypting(personal)
    assert rows_of(decoding.decode(batch(values), TOPIC, 0))[0]["name"] == "Ann"
    store = KeyStore(personal.places)  # another process erases it between two batches
    store.begin_erasure("customer", store.subject_hash("customer", "1"), {})
    found = rows_of(decoding.decode(batch(values), TOPIC, 0))
    assert found == [{"id": 1, "name": None, "born": None}, {"id": 2, "name": "Bob", "born": None}]


def test_records_that_were_changed_are_rejected_and_the_others_are_not(personal):
    ann, bob = events(personal, ANN, BOB)
    event = orjson.loads(ann)
    event["after"]["name"] = event["after"]["born"]
    moved = orjson.dumps(event)
    plain = orjson.dumps({**event, "after": {"id": 3, "name": "Not encrypted", "born": 1}})
    found = decrypting(personal).decode(batch([moved, bob, plain]), TOPIC, 0)
    assert [row["name"] for row in rows_of(found)] == ["Bob", "Not encrypted"]
    (rejected,) = found.rejected
    assert rejected.offset == 100
    assert rejected.value == moved
    assert rejected.cause.startswith("field name: the encrypted value was changed")


def test_texts_of_another_person_are_not_shown_as_this_ones(personal):
    """Who may write to the topic cannot read others by putting their texts into a row."""
    ann, bob = (orjson.loads(value) for value in events(personal, ANN, BOB))
    bob["after"]["name"] = ann["after"]["name"]
    found = decrypting(personal).decode(batch([orjson.dumps(bob)]), TOPIC, 0)
    assert rows_of(found) == []
    assert found.rejected[0].cause.endswith("moved from another subject")


def test_a_dead_letter_stays_encrypted(personal):
    """The column has another type than the value: what is rejected is the record as it was."""
    (value,) = events(personal, {**ANN, "name": "Ann Zyx"})
    wrong = pa.schema([("id", pa.int64()), ("name", pa.int32()), ("born", pa.date32())])
    found = decrypting(personal, schema=wrong).decode(batch([value]), TOPIC, 0)
    (rejected,) = found.rejected
    assert rejected.value == value
    assert "Zyx" not in rejected.cause
    assert "name" in rejected.cause


def test_json_values(personal):
    value = personal.value(TOPIC, orjson.dumps({"id": 1, "name": "Ann", "born": "1990-01-01"}))
    personal.flush()
    found = decrypting(personal, kind="json").decode(batch([value, None]), TOPIC, 0)
    assert [row["name"] for row in rows_of(found)] == ["Ann", None]


def test_the_settings_of_a_pipeline_reach_the_decoder(personal):
    """From [pipeline.NAME] decrypt to the source's options, and from these to the rows of a task.
    (The whole way with Spark is in test_decrypting_pipelines.py.)
    """
    log = Log("127.0.0.1:1", ClientSettings())
    columns = StructType().add("id", LongType()).add("name", StringType())
    for kinds, name in ((("customer",), "Ann"), ((), None)):
        settings = PythonSettings(
            "p", file="p.py", decrypt=kinds, keys=personal.places, subjects=personal.subjects
        )
        given = LiveReader(None, log, settings)._decryption("debezium")
        options = read_options({"topic": TOPIC, "value": "debezium", **given})
        rows = Decoding(options, columns).rows(batch(events(personal, ANN)), TOPIC, 0)
        (found,) = rows.column("name").to_pylist()
        assert found == name if name else found.startswith("hw1:")
    assert LiveReader(None, log, settings)._decryption("avro") == {}
    with pytest.raises(ConfigError, match="cannot be decrypted"):
        read_options({"topic": TOPIC, "value": "avro", "decrypt": "customer", "keys": "{}"})


@pytest.mark.parametrize("keys", ["", "[]", "{}", '{"marks": {}, "places": {}}'])
def test_an_option_that_is_no_access_to_keys(keys):
    with pytest.raises(ConfigError, match="option keys"):
        Decrypting(decoder("json", COLUMNS, {}), ("customer",), keys)


def test_without_the_key_store_decoding_fails_clearly(personal, tmp_path):
    values = events(personal, ANN)
    decoding = decrypting(personal)
    places = dataclasses.replace(personal.places, key_store=str(tmp_path / "elsewhere"))
    keys = key_option(places, personal.subjects)
    lost = Decrypting(decoding._decoder, ("customer",), keys)
    with pytest.raises(KeyStoreLost):
        lost.decode(batch(values), TOPIC, 0)
