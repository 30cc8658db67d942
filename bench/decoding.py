"""`python -m bench.decoding`: how many records one core decodes in a second. CPU time, the best of
some rounds, 100,000 records at a time.
"""

import json
import time
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from io import BytesIO

import fastavro
import orjson
import pyarrow as pa

from headwater.pipelines.decoding import Decoder, decoder

ROUNDS, RECORDS = 5, 100_000
SOURCE = {
    "version": "0.1.0", "connector": "postgresql", "name": "shop", "ts_ms": 1700000000000,
    "snapshot": "false", "db": "shop", "sequence": None, "ts_us": 1700000000000000,
    "ts_ns": 1700000000000000000, "schema": "public", "table": "customers", "txId": 571,
    "lsn": 34500, "xmin": None, "origin": None, "origin_lsn": None,
}  # fmt: skip
CREATED = datetime(2026, 11, 15)  # noqa: DTZ001 (the column has no zone)
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("created", pa.timestamp("us")),
        ("country", pa.string()),
    ]
)
AVRO = {
    "type": "record", "name": "Row", "fields": [
        {"name": "id", "type": "long"}, {"name": "name", "type": "string"},
        {"name": "price", "type": {
            "type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "created", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "country", "type": "string"},
    ],
}  # fmt: skip


def main() -> None:
    parsed = fastavro.parse_schema(AVRO)

    def avro(n: int) -> bytes:
        out = BytesIO()
        row = _row(n) | {"price": Decimal("12.50"), "created": CREATED}
        fastavro.schemaless_writer(out, parsed, row)
        return out.getvalue()

    plain, changes = decoder("json", SCHEMA, {}), decoder("debezium", SCHEMA, {})
    _measure("JSON", plain, lambda n: orjson.dumps(_json_row(n)))
    _measure("JSON, one of 10,000 bad", plain, lambda n: orjson.dumps(_json_row(n, n % 10_000)))
    _measure("JSON, one of 100 bad", plain, lambda n: orjson.dumps(_json_row(n, n % 100)))
    _measure("Debezium, created", changes, lambda n: _event("c", None, _row(n)))
    _measure(
        "Debezium, updated, with the row before", changes, lambda n: _event("u", _row(n), _row(n))
    )
    _measure("Avro", decoder("avro", SCHEMA, {"schema": json.dumps(AVRO)}), avro)


def _row(n: int) -> dict[str, object]:
    return {
        "id": n,
        "name": "Anne Smith",
        "price": "12.50",
        "created": 1700000000000000 + n,
        "country": "DE",
    }


def _json_row(n: int, good: int = 1) -> dict[str, object]:
    row = _row(n) | {"created": "2026-11-15T16:30:00.123456"}
    return row if good else row | {"id": "none"}


def _event(op: str, before: dict[str, object] | None, after: dict[str, object]) -> bytes:
    times = {"ts_ms": 1700000000123, "ts_us": 1700000000123456, "ts_ns": 1700000000123456789}
    event = {"before": before, "after": after, "source": SOURCE, "transaction": None, "op": op}
    return orjson.dumps(event | times)


def _measure(name: str, decoding: Decoder, value: Callable[[int], bytes]) -> None:
    values = [value(n) for n in range(RECORDS)]
    batch = pa.record_batch(
        {
            "key": pa.nulls(RECORDS, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "offset": pa.array(range(RECORDS)),
            "timestamp": pa.array([1700000000000000] * RECORDS, pa.timestamp("us", "UTC")),
        }
    )
    decoding.decode(batch, "t", 0)
    used_s = []
    for _ in range(ROUNDS):
        started_s = time.process_time()
        decoding.decode(batch, "t", 0)
        used_s.append(time.process_time() - started_s)
    print(f"{name:42} {len(values[1]):5} B {RECORDS / min(used_s):12,.0f} records/s")


if __name__ == "__main__":
    main()
