"""Specific to Parquet: partitions, changes, and files that readers do not see yet."""

import os
from datetime import date

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from support.sinks.sink_rows import batch, comparable, contents, position, rows_of, table

from headwater.errors import ConfigError, StoreRefused
from headwater.settings import Secret
from headwater.sinks.contract import Log, Target
from headwater.sinks.parquet import commits
from headwater.sinks.parquet import store as parquet
from headwater.sinks.settings import SinkSettings
from headwater.sinks.stores import store_of

FIELDS = pa.schema(
    [("id", pa.int64()), ("day", pa.date32()), ("shop", pa.string()), ("v", pa.string())]
)
ROWS = [
    {"id": 1, "day": date(2026, 1, 2), "shop": "a/b=ü", "v": "x"},
    {"id": 2, "day": None, "shop": "a", "v": None},
    {"id": 3, "day": date(2026, 1, 2), "shop": "a/b=ü", "v": "y"},
]


def files(url, key=(), **options):
    settings = SinkSettings("files", kind="parquet", url=Secret(str(url)))
    return store_of(settings, Target("shop", "orders", key, options), Log(""))


def test_partitions_as_others_read_them(tmp_path):
    store = files(tmp_path, partition_by="day,shop")
    with store.writer(1, FIELDS) as writer:
        writer.apply(batch(0, table(FIELDS, ROWS)))
        writer.apply(batch(1, table(FIELDS, ROWS[:1])))
    assert rows_of(store) == comparable([*ROWS, ROWS[0]])
    columns = pa.schema([FIELDS.field("day"), FIELDS.field("shop")])
    partitioning = pyarrow.dataset.partitioning(columns, flavor="hive")
    read = pyarrow.dataset.dataset(str(tmp_path / "orders"), partitioning=partitioning)
    assert comparable(read.to_table().select(FIELDS.names).to_pylist()) == rows_of(store)
    assert (tmp_path / "orders" / "day=2026-01-02" / "shop=a%2Fb%3D%C3%BC").is_dir()


def test_a_batch_that_is_committed_and_has_no_names_yet(tmp_path, monkeypatch):
    """As a kill right behind the commit leaves it."""
    store = files(tmp_path)
    live = tmp_path / "orders"
    with store.writer(1, FIELDS) as writer:
        writer.apply(batch(0, table(FIELDS, ROWS)))
        monkeypatch.setattr(parquet, "show", lambda *_: None)
        writer.apply(batch(1, table(FIELDS, ROWS)))
        monkeypatch.undo()
    assert pyarrow.dataset.dataset(os.path.realpath(live)).count_rows() == 3
    assert contents(store)[0] == position(1)
    assert len(rows_of(store)) == 6
    with store.writer(1, FIELDS) as writer:
        assert writer.position == position(1)
        writer.apply(batch(1, table(FIELDS, ROWS)))
    assert pyarrow.dataset.dataset(os.path.realpath(live)).count_rows() == 6
    assert len(rows_of(store)) == 6


def test_a_batch_that_is_not_committed_is_not_seen_and_goes(tmp_path, monkeypatch):
    store = files(tmp_path)
    with store.writer(1, FIELDS) as writer:
        writer.apply(batch(0, table(FIELDS, ROWS)))
        monkeypatch.setattr(commits.Commits, "add", lambda *_: (_ for _ in ()).throw(OSError("x")))
        with pytest.raises(Exception, match="orders"):
            writer.apply(batch(1, table(FIELDS, ROWS)))
        monkeypatch.undo()
    [left] = (tmp_path / "orders__v1").glob(".*.tmp")
    assert pyarrow.dataset.dataset(os.path.realpath(tmp_path / "orders")).count_rows() == 3
    assert len(rows_of(store)) == 3
    store.writer(1, FIELDS).close()
    assert not left.exists()


def test_every_change_as_a_row(tmp_path):
    with pytest.raises(ConfigError, match="key") as caught:
        files(tmp_path, ("id",)).check()
    assert "delta" in caught.value.hint
    store = files(tmp_path, ("id",), mode="changes")
    with store.writer(1, FIELDS) as writer:
        writer.apply(batch(0, table(FIELDS, [*ROWS, {"id": 1}], ["c", "c", "c", "d"])))
    assert contents(store)[1]["_op"].to_pylist() == ["c", "c", "c", "d"]
    assert pq.read_schema(next((tmp_path / "orders").glob("*.parquet"))).names[-1] == "_op"


def test_too_many_partitions_of_one_batch(tmp_path):
    store = files(tmp_path, partition_by="id")
    with store.writer(1, FIELDS) as writer:
        with pytest.raises(StoreRefused, match="1001 partitions"):
            writer.apply(batch(0, table(FIELDS, [{"id": n} for n in range(1001)])))
        assert writer.position is None
        writer.apply(batch(0, table(FIELDS, [{"id": n % 5} for n in range(1001)])))
    assert len(rows_of(store)) == 1001


@pytest.mark.parametrize(
    "options",
    [{"partition_by": "nothing"}, {"mode": "x"}, {"compression": "x"}, {"partition_by": "price"}],
)
def test_settings_that_are_wrong(tmp_path, options):
    fields = FIELDS.append(pa.field("price", pa.float64()))
    with pytest.raises(ConfigError):
        files(tmp_path, **options).writer(1, fields)
    with pytest.raises(ConfigError, match="directory"):
        files("s3://bucket/x")
