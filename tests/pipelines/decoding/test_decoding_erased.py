"""Erased records: no rows, no dead letters, but counted; the others beside them are as ever."""

import json

import pyarrow as pa
import pytest

from headwater.client.reading.arrow import to_arrow
from headwater.pipelines.decoding import decoder
from headwater.protocol import erased_records
from headwater.protocol.records import Record, build_batch, read_header

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
COLUMNS = ("key", "value", "offset", "timestamp", "erased")


def raw(kind: str, *erased: int) -> pa.RecordBatch:
    """Four records, the last one a tombstone, of which some were erased."""
    records = []
    for number in range(3):
        row = {"id": number, "name": "alice"}
        value = row if kind == "json" else {"before": None, "after": row, "op": "c", "source": {}}
        key = json.dumps({"id": number}).encode()
        records.append(Record(number, 1_700_000_000_000, key, json.dumps(value).encode()))
    records.append(Record(3, 1_700_000_000_000, b'{"id": 3}', None))
    batch = build_batch(records)
    if erased:
        batch = erased_records.erase(batch, erased)
    (found,) = to_arrow(memoryview(batch), [(read_header(batch), 0)], 0, 100, COLUMNS)
    return found


@pytest.mark.parametrize("kind", ["json", "debezium"])
def test_erased_records_are_no_rows(kind: str) -> None:
    decode = decoder(kind, SCHEMA, {})
    before = decode.decode(raw(kind), "people", 0)
    assert before.erased == 0
    after = decode.decode(raw(kind, 1, 3), "people", 0)
    assert (after.erased, after.rejected) == (2, [])
    gone = [1, 3]
    wanted = [row for row in before.rows.to_pylist() if row["_position"]["offset"] not in gone]
    assert after.rows.to_pylist() == wanted
    assert after.rows.schema == before.rows.schema


@pytest.mark.parametrize("kind", ["json", "debezium"])
def test_nothing_but_erased_records(kind: str) -> None:
    decoded = decoder(kind, SCHEMA, {}).decode(raw(kind, 0, 1, 2, 3), "people", 0)
    assert (decoded.erased, decoded.rejected, decoded.rows.num_rows) == (4, [], 0)
    assert decoded.rows.schema == decoder(kind, SCHEMA, {}).schema


def test_a_tombstone_without_a_key_is_still_rejected() -> None:
    batch = build_batch([Record(0, 0, None, None)])
    (found,) = to_arrow(memoryview(batch), [(read_header(batch), 0)], 0, 100, COLUMNS)
    decoded = decoder("json", SCHEMA, {}).decode(found, "people", 0)
    assert len(decoded.rejected) == 1
    assert decoded.erased == 0
