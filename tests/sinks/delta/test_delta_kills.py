"""Writers of Delta tables are killed at any moment, and between any two calls, or stopped: exactly
once.
"""

import pytest
from deltalake import DeltaTable
from support.sinks.kill_writer import ROWS, Work, write_and_be_killed
from support.sinks.sink_killing import KillContract
from support.sinks.sink_rows import applied_to, comparable, contents, position
from test_delta_contract import Delta, StagedAppends

from headwater.sinks.contract import Log, Target

KILLS = 10


def test_killed_writers_of_delta_write_exactly_once(tmp_path):
    target = Target("shop", "orders", (), {"compact_every": "20"})
    work = Work("delta", str(tmp_path), {}, target, Log(""), "added")
    batches = write_and_be_killed(work, KILLS)

    expected: dict = {}
    for number in range(batches):
        applied_to(expected, ROWS["added"](number), ("id",))
    at, found = contents(work.store())
    assert at == position(batches - 1)
    assert comparable(found.to_pylist()) == comparable(expected.values())
    assert DeltaTable(str(tmp_path / "orders")).count() == len(expected)


class TestDeltaKills(KillContract):
    drivers = ("deltalake",)

    @pytest.fixture
    def backend(self, tmp_path):
        return Delta(str(tmp_path / "lake"))


class TestStagedDeltaKills(KillContract):
    """Files of tasks, while the table is empty, and for rows without a key."""

    drivers = ("deltalake", "pyarrow._fs", "pyarrow.lib", "pyarrow._parquet")

    @pytest.fixture
    def backend(self, tmp_path):
        return StagedAppends(str(tmp_path / "lake"))
