"""A task's buckets are committed several at once: all of them before the task ends, or it fails."""

import orjson
import pyarrow as pa
import pytest

from headwater.errors import PipelineError
from headwater.pipelines.operators.runtime.packing import PACKETS
from headwater.pipelines.operators.runtime.task import OperatorTask
from headwater.pipelines.operators.state.state_files import FileState, begin
from headwater.testing import FaultyFiles

BUCKETS = 11


class Counting:
    output = pa.schema([("n", pa.int64())])

    def step(self, state, inputs):
        state.counters["steps"] = state.counters.get("steps", 0) + 1
        return pa.table({"n": [state.counters["steps"]]})


def packets():
    """Control packets without rows, in any order."""
    control = orjson.dumps({"now": 0, "origins": [], "progress": []})
    rows = [(bucket, 0, 0, 0, None, control) for bucket in reversed(range(BUCKETS))]
    columns = [
        pa.array(row, kind)
        for row, kind in zip(zip(*rows, strict=True), PACKETS.types, strict=True)
    ]
    return iter([pa.RecordBatch.from_arrays(columns, schema=PACKETS)])


def task(monkeypatch, operator, batch, files):
    def state(_, bucket):
        return FileState(operator, bucket, batch, buckets=BUCKETS, is_begun=True, files=files)

    monkeypatch.setattr(OperatorTask, "_state", state)
    running = OperatorTask("counting-1", Counting(), BUCKETS, (pa.schema([]),), None, True)
    return [row["n"] for batch_of_rows in running(packets()) for row in batch_of_rows.to_pylist()]


def test_all_are_committed_when_the_task_ends(tmp_path, monkeypatch):
    operator = tmp_path / "operators" / "counting-1"
    begin(operator, BUCKETS)
    for batch in range(3):
        files = FaultyFiles()
        assert task(monkeypatch, operator, batch, files) == [batch + 1] * BUCKETS
        assert all((operator / str(bucket) / f"{batch}.json").exists() for bucket in range(BUCKETS))


@pytest.mark.parametrize("refused", [0, BUCKETS - 1])
def test_one_that_cannot_be_written_fails_the_task(tmp_path, monkeypatch, refused):
    operator = tmp_path / "operators" / "counting-1"
    begin(operator, BUCKETS)
    commit = FileState.commit

    def refusing(state):
        if state.path[1] == refused:
            raise PipelineError("the state of an operator cannot be written")
        commit(state)

    with monkeypatch.context() as patched:
        patched.setattr(FileState, "commit", refusing)
        with pytest.raises(PipelineError, match="cannot be written"):
            task(monkeypatch, operator, 0, FaultyFiles())
    assert task(monkeypatch, operator, 0, FaultyFiles()) == [1] * BUCKETS
