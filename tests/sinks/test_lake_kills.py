"""Writers of Delta tables and Parquet files are killed at any moment, and between any two calls, or
stopped: exactly once.
"""

import pyarrow.dataset
import pytest
from deltalake import DeltaTable
from kill_writer import ROWS, Work, write_and_be_killed
from sink_killing import KillContract
from sink_rows import applied_to, comparable, contents, position
from test_delta_contract import Delta
from test_parquet_contract import Parquet

from headwater.sinks.contract import Log, Target

KILLS = 10


@pytest.mark.parametrize(
    ("kind", "key", "rows"),
    [("delta", (), "added"), ("parquet", (), "added")],
)
def test_killed_writers_write_exactly_once(tmp_path, kind, key, rows):
    options = {"partition_by": "n"} if kind == "parquet" else {"compact_every": "20"}
    target = Target("shop", "orders", key, options)
    work = Work(kind, str(tmp_path), {}, target, Log(""), rows)
    batches = write_and_be_killed(work, KILLS)

    expected: dict = {}
    for number in range(batches):
        applied_to(expected, ROWS[rows](number), ("id",))
    at, found = contents(work.store())
    assert at == position(batches - 1)
    assert comparable(found.to_pylist()) == comparable(expected.values())
    if kind == "delta":
        live = DeltaTable(str(tmp_path / "orders")).count()
    else:
        live = pyarrow.dataset.dataset(str(tmp_path / "orders"), partitioning="hive").count_rows()
        assert not list(tmp_path.glob("orders__v1/**/.*-*-*.tmp"))
    assert live == len(expected)


class TestDeltaKills(KillContract):
    drivers = ("deltalake",)

    @pytest.fixture
    def place(self, tmp_path):
        return Delta(str(tmp_path / "lake"))


class TestParquetKills(KillContract):
    drivers = ("posix", "pyarrow")

    @pytest.fixture
    def place(self, tmp_path):
        return Parquet(str(tmp_path / "files"))
