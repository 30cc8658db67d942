"""The same changes through Debezium's MySQL connector and through ours give the same records,
schemas included. What differs is named here.

The server is a MariaDB that says it is MySQL 5.7, as Debezium's connector for MariaDB is not at
hand: without GTIDs, and with names of columns from the catalog.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import SUPPORT
from support.capture.mariadb_server import MariaDbServer
from tiers import long

from bench.peers.provision import missing_tools
from headwater.capture.contract import Begin, Change, Commit, SourcePosition
from headwater.capture.mysql import MySqlSource
from headwater.capture.records.shaping import Shaper
from headwater.capture.settings import CaptureSettings
from headwater.settings import Secret

pytestmark = [
    pytest.mark.slow,
    pytest.mark.java,
    pytest.mark.skipif(bool(missing_tools("java")), reason="needs java on the PATH"),
]
AS_MYSQL = {"version": "5.7.10-log", "binlog_row_metadata": "NO_LOG"}

TABLE = """
CREATE TABLE things (
  id INT PRIMARY KEY, t TINYINT, yes BOOLEAN, tu TINYINT UNSIGNED NOT NULL, s SMALLINT,
  su SMALLINT UNSIGNED, m MEDIUMINT, mu MEDIUMINT UNSIGNED, i INT, iu INT UNSIGNED, b BIGINT,
  bu BIGINT UNSIGNED, amount DECIMAL(12,3), whole DECIMAL(30,0), du DECIMAL(5,2) UNSIGNED,
  zeros INT(5) ZEROFILL, f FLOAT, f2 FLOAT(7,2), f24 FLOAT(24), f53 FLOAT(53), d DOUBLE,
  d2 DOUBLE(8,3), bit1 BIT(1), bit5 BIT(5), bit64 BIT(64), c CHAR(5), vc VARCHAR(300) NOT NULL,
  latin VARCHAR(20) CHARACTER SET latin1, bin BINARY(6), vb VARBINARY(9), bl BLOB, tb TINYBLOB,
  tx TEXT, lt LONGTEXT CHARACTER SET ucs2, day DATE, first DATE NOT NULL, y YEAR, at0 DATETIME,
  at3 DATETIME(3), at6 DATETIME(6), at DATETIME NOT NULL, ti TIME, ti3 TIME(3), ti6 TIME(6),
  ts TIMESTAMP NULL, ts3 TIMESTAMP(3) NULL, ts6 TIMESTAMP(6) NULL, e ENUM('a', 'b''c', 'd,e'),
  st SET('x', 'y', 'z'), js JSON, p POINT, g GEOMETRY, ls LINESTRING, seven INT NOT NULL DEFAULT 7,
  x VARCHAR(5) DEFAULT 'x', twice INT AS (id * 2) VIRTUAL, more INT AS (id + 1) STORED)
"""
VALUES = r"""(1, -128, TRUE, 255, -32768, 65535, -8388608, 16777215, -2147483648, 4294967295,
  -9223372036854775808, 9223372036854775807, -123456789.125, 123456789012345678901234567890, 12.5,
  42, 1.5, 12345.67, 0.1, 0.1, 0.1, 12345.678, b'1', b'10101', 0x8000000000000001, 'ab',
  'text ü 中', 'é', 'ab', 'ab\0', 'blob', '', 'tx', 'lt', '2024-02-29', '1969-12-31', 2024,
  '2024-02-29 13:51:30', '2024-02-29 13:51:30.123', '1960-02-29 13:51:30.123456',
  '1000-01-01 00:00:00', '13:51:30', '-838:59:59.999', '13:51:30.123456', '2024-02-29 13:51:30',
  '2024-02-29 13:51:30.120', '2024-02-29 13:51:30.123456', 'b''c', 'x,z', '{"a": [1, 1.5]}',
  ST_GeomFromText('POINT(1 2)'), ST_GeomFromText('POINT(3 4)'),
  ST_GeomFromText('LINESTRING(0 0, 1 1)'), 8, 'y', DEFAULT, DEFAULT)"""
SMALL = "INSERT IGNORE INTO things (id, tu, vc, first, at) VALUES"
CLEAR = "DELETE FROM things WHERE tu = 1"
CHANGES = [
    f"INSERT INTO things VALUES {VALUES}",
    f"{SMALL} (3, 0, 'x', '0001-01-01', '9999-12-31 23:59:59')",
    f"{SMALL} (5, 0, 'zero', 0, 0)",
    "SET sql_mode = ''; UPDATE things SET day = 0, at0 = 0, ts = 0, e = '', y = 0 WHERE id = 5",
    "SET sql_mode = ''; UPDATE things SET at6 = '2024-00-00', st = '' WHERE id = 5",
    "UPDATE things SET vc = 'y' WHERE id = 3",
    "UPDATE things SET id = 4 WHERE id = 3",
    "DELETE FROM things WHERE id = 4",
    # At one time: we give all changes that of the commit, Debezium that of their statement.
    f"SET timestamp = 1e9; BEGIN; {SMALL} (6, 1, 'a', 0, 0), (7, 1, 'b', 0, 0); {CLEAR}; COMMIT",
    "ALTER TABLE things ADD COLUMN later INT AFTER id",
    f"{SMALL} (10, 1, 'later', 0, 0)",
    "REPLACE INTO things (id, tu, vc, first, at) VALUES (10, 2, 'again', '2000-01-01', 0)",
    "TRUNCATE things",
    f"{SMALL} (999, 1, 'the end', 0, 0)",
]


@contextmanager
def debezium(server: MariaDbServer, path: Path) -> Iterator[Any]:
    engine = SUPPORT / "capture" / "debezium_engine.py"
    properties = {
        "connector.class": "io.debezium.connector.mysql.MySqlConnector",
        "schema.history.internal": "io.debezium.relational.history.MemorySchemaHistory",
        "database.user": "root",
        "database.password": "",
        "database.server.id": "77",
        "database.include.list": "shop",
        "database.ssl.mode": "disabled",
        "table.include.list": "shop.things",
        "decimal.handling.mode": "string",
        "include.schema.changes": "false",
        "snapshot.locking.mode": "none",
        "provide.transaction.metadata": "false",
    }
    with path.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, engine, str(server.port), "shop", path, json.dumps(properties)],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=path.parent,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def read_until(path: Path, text: str, process: Any) -> list[Any]:
    deadline = time.monotonic() + 120
    while not path.exists() or text not in path.read_text():
        assert process.poll() is None, path.with_suffix(".log").read_text()[-2000:]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return [json.loads(line) for line in path.read_text().splitlines()]


def shaped(source: MySqlSource, settings: CaptureSettings, log_position: Any) -> Iterator[Any]:
    shaper = Shaper(settings, source.connector, source.database)
    for event in source.changes(SourcePosition(log_position)):
        records: Any = []
        if isinstance(event, Begin):
            shaper.begin(event)
        elif isinstance(event, Change):
            records = shaper.change(event)
        elif isinstance(event, Commit):
            records = shaper.commit(event)
        for topic, key, value, _ in records:
            yield [topic, key and key.decode(), value and value.decode()]
        if isinstance(event, Change) and event.after and event.after["vc"] == "the end":
            return


def comparable(record: list[Any]) -> list[Any]:
    """Without what cannot be the same (when it was written, and by whom), and what we leave out:
    the defaults of columns in schemas.
    """
    topic, key, value = record
    key, value = key and json.loads(key), value and json.loads(value)
    if value:
        payload = value["payload"] = {
            name: content
            for name, content in value["payload"].items()
            if not name.startswith("ts_")
        }
        payload["source"].pop("version")
        for part in value["schema"]["fields"]:
            for column in part.get("fields", ()) if part["field"] in ("before", "after") else ():
                column.pop("default", None)
        for row in filter(None, (payload["before"], payload["after"])):
            for name, theirs, wise in WISE:
                row[name] = wise if row[name] == theirs else row[name]
    return [topic, key, value]


# What Debezium makes of 0001-01-01 ("time.adjuster"), of the year 0000 (its snapshots have 0), and
# of a FLOAT(7,2) of 12345.67: we keep what the database shows.
WISE = (("first", 11323, -719162), ("y", 1900, 0), ("f2", 12345.669921875, 12345.67))


@long
def test_records_are_those_of_debezium(tmp_path: Path) -> None:
    server = MariaDbServer(tmp_path / "mariadb", AS_MYSQL)
    path = tmp_path / "debezium"
    try:
        server.start()
        server.execute("CREATE DATABASE shop")
        server.execute(TABLE, f"{SMALL} (100, 2, 'found', 0, 0)", database="shop")
        url = server.url("shop").replace("mariadb:", "mysql:")
        settings = CaptureSettings("shop", Secret(url), tables=("shop.things",), schemas=True)
        source = MySqlSource(settings)
        with debezium(server, path) as process:
            read_until(path, "found", process)
            log_position = source.open(None, {})
            for change in CHANGES:
                server.execute(*change.split("; "), database="shop")
            expected = read_until(path, "the end", process)
        records = [comparable(record) for record in shaped(source, settings, log_position)]
        source.close()
    finally:
        server.close()
    expected = [comparable(record) for record in expected if '"op":"r"' not in (record[2] or "")]
    assert len(records) == 21
    for ours, theirs in zip(records, expected, strict=True):
        assert ours == theirs
