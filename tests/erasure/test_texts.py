"""Where texts of a person are searched: files, tables, rows of derived stores."""

from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.gateway.derived_store import DerivedStore

from headwater import config
from headwater.erasure.texts import search_texts
from headwater.events import Event, open_store

NAME = "Ann Smith"


@pytest.fixture
def stores(tmp_path):
    """A derived store in SQLite, a directory of Parquet tables, and an event store."""
    derived = DerivedStore(tmp_path, "orders")
    with (tmp_path / "headwater.toml").open("a") as file:
        file.write(
            f'[sink.lake]\nkind = "delta"\nurl = "{tmp_path}/lake"\n'
            f'[events]\nstore = "sqlite:///{tmp_path}/events.db"\n'
        )
    (tmp_path / "lake" / "orders__v1").mkdir(parents=True)
    return derived


def searched(stores, text=NAME):
    loaded = config.load(path=str(stores.directory / "headwater.toml"), environ={})
    return search_texts(loaded, [text])


def row(number, city):
    return {"id": number, "city": city, "total": None, "at": datetime(2025, 1, 1, tzinfo=UTC)}


def test_rows_and_files_of_a_store(stores):
    stores.apply([row(1, "Lyon"), row(2, f"c/o {NAME}")], 2)
    found = searched(stores)
    assert "orders/cache/orders" in found.stores
    assert any("orders/cache/orders, version 1: a row has" in line for line in found.left)
    assert any("cache.db" in line for line in found.left)
    assert searched(stores, "Paris").left == [
        line for line in found.left if "cannot be searched" in line
    ]


def test_a_row_that_was_replaced_is_in_no_file(stores):
    """SQLite overwrites what it deletes, but only if it is asked to."""
    stores.apply([row(1, NAME)], 1)
    stores.apply([row(1, "nobody")], 2)
    (stores.directory / "cache.db-wal").unlink(missing_ok=True)  # empty: the last writer has gone
    assert not any(NAME in line or "contains" in line for line in searched(stores).left)


def test_parquet_files_are_read(stores):
    """They are compressed. One that no version of a table has any more counts, too."""
    table = pa.table({"id": [1, 2], "who": [{"name": "Eva"}, {"name": f"{NAME}"}]})
    pq.write_table(table, stores.directory / "lake" / "orders__v1" / "old.parquet")
    (stores.directory / "lake" / "orders__v1" / "torn.parquet").write_bytes(b"PAR1 torn")
    found = searched(stores)
    assert [line for line in found.left if "lake" in line] == [
        f"{stores.directory}/lake/orders__v1/old.parquet contains one of the texts"
    ]


def test_the_file_of_the_event_store(stores):
    with open_store(f"sqlite:///{stores.directory}/events.db") as events:
        events.append("note-1", [Event("Noted", {"by": NAME})])
        assert any("events.db" in line for line in searched(stores).left)
