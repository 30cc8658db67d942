"""From MariaDB into topics: the whole way."""

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from capture_harness import read, replayed, running
from mariadb_server import MariaDbServer

from headwater.testing import InProcessBroker


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with InProcessBroker.serving(str(tmp_path_factory.mktemp("broker"))) as broker:
        yield broker.bootstrap


def _table(server: MariaDbServer, name: str) -> dict[str, Any]:
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {name}")
        names = [column for column, *_ in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return {f'{{"id": {row["id"]}}}': row for row in rows}


@pytest.mark.parametrize("metadata", ["FULL", "NO_LOG"])
def test_copy_changes_and_ddl_over_restarts(
    bootstrap: str, mariadb_server: MariaDbServer, shop: str, metadata: str
) -> None:
    table, topic = f"{shop}.t", f"shop_{metadata}.{shop}.t"
    mariadb_server.execute(
        f"CREATE TABLE {table} (id INT PRIMARY KEY, a INT)",
        f"INSERT INTO {table} SELECT seq, 0 FROM seq_1_to_3000",
        database=shop,
    )
    is_over = threading.Event()

    def write() -> None:
        number = 0
        with closing(mariadb_server.connect()) as connection, connection.cursor() as cursor:
            while not is_over.wait(0.001):
                number += 1
                cursor.execute("BEGIN")
                key = number * 37 % 4000
                cursor.execute(f"REPLACE INTO {table} (id, a) VALUES ({key}, {number})")
                cursor.execute(f"DELETE FROM {table} WHERE id = {number * 11 % 4000}")
                cursor.execute("COMMIT")
                if number == 100:
                    cursor.execute(f"ALTER TABLE {table} ADD COLUMN b INT DEFAULT 7")

    with mariadb_server.globals(binlog_row_metadata=metadata):
        writer = threading.Thread(target=write)
        writer.start()
        url = mariadb_server.url(shop)
        settings = {"name": f"shop_{metadata}", "chunk_rows": 200}
        try:
            for _ in range(3):
                with running(bootstrap, url, **settings) as capture:
                    seen = len(read(bootstrap, topic))
                    capture.wait_until(
                        lambda seen=seen: len(read(bootstrap, topic)) > seen + 50, "some records"
                    )
        finally:
            is_over.set()
            writer.join()
        with running(bootstrap, url, **settings) as capture:
            capture.wait_until(lambda: capture.stored().tables[table].snapshot.is_done, "the copy")

            def is_equal() -> bool:
                rows = replayed(read(bootstrap, topic))
                # What was copied before the column came has it by no later change.
                whole = {key: {"b": 7, **row} for key, row in rows.items()}
                return whole == _table(mariadb_server, table)

            capture.wait_until(is_equal, "the table")
    records = read(bootstrap, topic)
    change = next(record for record in records if record.op in ("c", "u"))
    assert change.value["source"]["connector"] == "mariadb"
    assert change.value["source"]["db"] == shop
    assert change.value["source"]["table"] == "t"
    assert change.value["source"]["file"].startswith("binlog.")
    assert "lsn" not in change.value["source"]
