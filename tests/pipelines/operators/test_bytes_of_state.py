"""What a batch writes of large state goes with what it changes, not with what there is."""

import numpy as np
import pyarrow as pa
import pytest
from operator_driver import Unsynced

from headwater.pipelines.operators.contract import OFFSET, ORIGIN
from headwater.pipelines.operators.keyed_table import GONE, VALID, KeyedTable
from headwater.pipelines.operators.state import FileState

ROWS, BATCHES, CHANGES = 20_000, 60, 20
COLUMNS = [pa.field("id", pa.int64()), pa.field("text", pa.string())]


class Counted(Unsynced):
    def __init__(self):
        super().__init__()
        self.written_bytes = 0

    def pwrite(self, fd, data, position):
        self.written_bytes += memoryview(data).nbytes
        return super().pwrite(fd, data, position)


def versions(ids, batch):
    return pa.table(
        {
            "id": ids,
            "text": [f"row {each} of {batch} " + "x" * 80 for each in ids],
            VALID: np.full(len(ids), batch),
            GONE: np.zeros(len(ids), np.bool_),
            ORIGIN: np.zeros(len(ids), np.int32),
            OFFSET: np.arange(len(ids)) + batch * ROWS,
        }
    )


@pytest.mark.parametrize("is_spread", [True, False])
def test_changes_of_a_table_that_events_are_enriched_from(tmp_path, is_spread):
    """Also if it is always the same rows that change: older versions go."""
    files, random = Counted(), np.random.default_rng(7)
    last = np.zeros(ROWS, np.int64)

    def batch(number, ids):
        state = FileState(tmp_path / "enrich", 0, number, buckets=1, files=files)
        table = KeyedTable(state, ("id",), COLUMNS)
        table.add(versions(ids, number))
        last[ids] = number
        asked = random.choice(ROWS, 50)
        found = table.find([pa.chunked_array([asked])], np.full(50, number))
        (texts,) = found.columns(["text"])
        expected = [f"row {each} of {last[each]} " for each in asked]
        assert all(map(str.startswith, texts.to_pylist(), expected))
        table.save(number, number)
        state.commit()
        return len(table)

    batch(0, np.arange(ROWS))
    files.written_bytes = changed_bytes = 0
    for number in range(1, BATCHES):
        ids = random.choice(ROWS if is_spread else CHANGES, CHANGES, replace=False)
        changed_bytes += versions(ids, number).nbytes
        count = batch(number, ids)
    assert files.written_bytes < 12 * changed_bytes
    assert count <= ROWS + (BATCHES * CHANGES if is_spread else 10 * CHANGES)
