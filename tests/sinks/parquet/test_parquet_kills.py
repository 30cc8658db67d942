"""Writers of Parquet files are killed at any moment, and between any two calls, or stopped: exactly
once.
"""

import pyarrow.dataset
import pytest
from support.sinks.kill_writer import ROWS, Work, write_and_be_killed
from support.sinks.sink_killing import KillContract
from support.sinks.sink_rows import applied_to, comparable, contents, position
from test_parquet_contract import Parquet

from headwater.sinks.contract import Log, Target

KILLS = 10


def test_killed_writers_of_parquet_write_exactly_once(tmp_path):
    target = Target("shop", "orders", (), {"partition_by": "n"})
    work = Work("parquet", str(tmp_path), {}, target, Log(""), "added")
    batches = write_and_be_killed(work, KILLS)

    expected: dict = {}
    for number in range(batches):
        applied_to(expected, ROWS["added"](number), ("id",))
    at, found = contents(work.store())
    assert at == position(batches - 1)
    assert comparable(found.to_pylist()) == comparable(expected.values())
    live = pyarrow.dataset.dataset(str(tmp_path / "orders"), partitioning="hive").count_rows()
    assert live == len(expected)
    assert not list(tmp_path.glob("orders__v1/**/.*-*-*.tmp"))


class TestParquetKills(KillContract):
    drivers = ("posix", "pyarrow")

    @pytest.fixture
    def backend(self, tmp_path):
        return Parquet(str(tmp_path / "files"))
