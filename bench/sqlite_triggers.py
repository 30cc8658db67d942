"""`python -m bench.sqlite_triggers`: what capture costs the writers of a SQLite database, and how
fast its log is read. CPU time, median of some rounds, with and without triggers in turn.
"""

import sqlite3
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import closing
from pathlib import Path

from headwater.capture.contract import Change, Commit, SourcePosition
from headwater.capture.settings import CaptureSettings
from headwater.capture.sqlite import SqliteSource
from headwater.settings import Secret

ROUNDS, ROWS, PER_TRANSACTION = 3, 100_000, 1_000
COMMITS, COMMITS_PER_S = 500, 100
TABLE = (
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INT, name TEXT, total REAL, status TEXT)"
)
INSERT = "INSERT INTO orders VALUES (?, ?, ?, ?, ?)"


def main() -> None:
    figures: dict[str, list[float]] = defaultdict(list)
    for _ in range(ROUNDS):
        for has_triggers in (False, True):
            with tempfile.TemporaryDirectory() as directory:
                _round(Path(directory) / "shop.db", has_triggers, figures)
    with tempfile.TemporaryDirectory() as directory:
        _latency(Path(directory) / "shop.db", figures)
    for name, values in figures.items():
        print(f"{name:50} {statistics.median(values):12,.2f}")


def _round(path: Path, has_triggers: bool, figures: dict[str, list[float]]) -> None:
    rows = [(i, i % 1000, f"customer {i}", i * 1.5, "open") for i in range(ROWS)]
    ids = [(i,) for i in range(ROWS)]
    with closing(_database(path)) as connection:
        connection.execute("PRAGMA synchronous = NORMAL")
        source = _source(path)
        place = source.open(None, {}) if has_triggers else {}
        for name, sql, values in (
            ("insert", INSERT, rows),
            ("update", "UPDATE orders SET status = 'paid', total = total + 1 WHERE id = ?", ids),
            ("delete", "DELETE FROM orders WHERE id = ?", ids),
        ):
            started_s = time.process_time()
            for first in range(0, ROWS, PER_TRANSACTION):
                connection.execute("BEGIN")
                connection.executemany(sql, values[first : first + PER_TRANSACTION])
                connection.execute("COMMIT")
            used_us = (time.process_time() - started_s) * 1e6 / ROWS
            figures[f"{name}, {'with' if has_triggers else 'without'} triggers, µs"].append(used_us)
        if has_triggers:
            started_s = time.process_time()
            commit = next(e for e in source.changes(SourcePosition(place)) if isinstance(e, Commit))
            rate = commit.changes / (time.process_time() - started_s)
            figures["changes read per CPU second"].append(rate)
        source.close()


def _latency(path: Path, figures: dict[str, list[float]]) -> None:
    """From the end of a commit of one row until its change is there; less than nothing is nothing:
    the capture may see it before the writer hears of it.
    """
    with closing(_database(path)):
        source = _source(path)
        place = source.open(None, {})
        committed_s: list[float] = []
        writer = threading.Thread(target=_commit_single_rows, args=(path, committed_s))
        writer.start()
        seen_s: list[float] = []
        for event in source.changes(SourcePosition(place)):
            if isinstance(event, Change):
                seen_s.append(time.perf_counter())
                if len(seen_s) == COMMITS:
                    break
        writer.join()
        source.close()
    waited_ms = [
        max(seen - committed, 0) * 1000 for seen, committed in zip(seen_s, committed_s, strict=True)
    ]
    quantiles = statistics.quantiles(waited_ms, n=100)
    figures[f"latency at {COMMITS_PER_S} commits/s, p50 ms"].append(quantiles[49])
    figures[f"latency at {COMMITS_PER_S} commits/s, p99 ms"].append(quantiles[98])


def _commit_single_rows(path: Path, committed_s: list[float]) -> None:
    with closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as connection:
        for number in range(COMMITS):
            connection.execute(INSERT, (number, 0, "", 0.0, ""))
            committed_s.append(time.perf_counter())
            time.sleep(1 / COMMITS_PER_S)


def _database(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(TABLE)
    return connection


def _source(path: Path) -> SqliteSource:
    return SqliteSource(CaptureSettings("bench", Secret(f"sqlite:///{path}")))


if __name__ == "__main__":
    main()
