"""A batch writes as much of large state as it changes, not as much as there is."""

import numpy as np
import pyarrow as pa
import pytest
from support.pipelines.operator_driver import Unsynced

from headwater.pipelines.operators.joins.tables.keyed_table import DELETED, VALID, KeyedTable
from headwater.pipelines.operators.runtime.contract import OFFSET, ORIGIN
from headwater.pipelines.operators.state.state_files import FileState
from headwater.pipelines.operators.windows.session_merging import FIRST, LAST, NO_SLOT, SHOWN, SLOT
from headwater.pipelines.operators.windows.session_state import SessionState

ROWS, BATCHES, CHANGES = 20_000, 60, 20
COLUMNS = [pa.field("id", pa.int64()), pa.field("text", pa.string())]


class Histograms(Unsynced):
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
            "text": [f"row {number} of {batch} " + "x" * 80 for number in ids],
            VALID: np.full(len(ids), batch),
            DELETED: np.zeros(len(ids), np.bool_),
            ORIGIN: np.zeros(len(ids), np.int32),
            OFFSET: np.arange(len(ids)) + batch * ROWS,
        }
    )


@pytest.mark.parametrize("is_spread", [True, False])
def test_changes_of_a_table_that_events_are_enriched_from(tmp_path, is_spread):
    """Also if it is always the same rows that change: older versions go."""
    files, random = Histograms(), np.random.default_rng(7)
    last = np.zeros(ROWS, np.int64)

    def batch(number, ids):
        state = FileState(tmp_path / "enrich", 0, number, buckets=1, files=files)
        table = KeyedTable(state, ("id",), COLUMNS)
        table.add(versions(ids, number))
        last[ids] = number
        asked = random.choice(ROWS, 50)
        found = table.find([pa.chunked_array([asked])], np.full(50, number))
        (texts,) = found.columns(["text"])
        expected = [f"row {key} of {last[key]} " for key in asked]
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


SESSIONS = pa.schema(
    [("k0", pa.int64()), (FIRST, pa.int64()), (LAST, pa.int64()), (SHOWN, pa.int8()),
     (SLOT, pa.int64()), ("a0", pa.int64())]
)  # fmt: skip


def sessions(keys, first, count):
    given = [keys, first, first + count, np.zeros(len(keys)), np.full(len(keys), NO_SLOT), count]
    return pa.Table.from_arrays(
        [pa.array(column).cast(field.type) for column, field in zip(given, SESSIONS, strict=True)],
        schema=SESSIONS,
    )


def test_open_sessions_of_which_few_get_rows(tmp_path):
    files, random = Histograms(), np.random.default_rng(7)
    counts = np.zeros(ROWS, np.int64)

    def batch(number, changed):
        state = FileState(tmp_path / "session", 0, number, buckets=1, files=files)
        sessions_state = SessionState(state, SESSIONS, gap_us=1000, lifetime_us=1_000_000)
        before = sessions_state.read(np.zeros(0, np.int64), 0)
        assert dict(zip(*(before[name].to_pylist() for name in ("k0", "a0")), strict=True)) == {
            key: count for key, count in enumerate(counts.tolist()) if count
        }
        counts[changed] += 1
        untouched = before.filter(pa.array(~np.isin(before["k0"].to_numpy(), changed)))
        merged = sessions(changed, changed * 0, counts[changed])
        sessions_state.write(pa.concat_tables([untouched, merged]), 0)
        sessions_state.expire(0)
        state.commit()
        return merged.nbytes

    batch(0, np.arange(ROWS))
    files.written_bytes = changed_bytes = 0
    for number in range(1, BATCHES):
        changed_bytes += batch(number, random.choice(ROWS, CHANGES, replace=False))
    whole_bytes = sessions(np.arange(ROWS), counts, counts).nbytes
    assert files.written_bytes < whole_bytes * BATCHES / 10
    batch(BATCHES, np.arange(ROWS))
