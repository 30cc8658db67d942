"""What a screen of records costs, whatever is in the topic."""

import tracemalloc
from types import SimpleNamespace

import pytest

from headwater.console.pages.topics import records as page
from headwater.console.topics import records

ROWS = 50
HOLES = 30_000  # a transaction of so many was aborted


class Counting:
    """A partition with records in front of many holes, or behind them. Counts how many records were
    taken from it."""

    def __init__(self, end, has):
        self.end = end
        self.has = has
        self.taken = 0

    def offsets(self, places, at):
        return dict.fromkeys(places, 0 if at == records.EARLIEST else self.end)

    def records(self, topic, partition, start, end):
        for offset in range(start, end):
            if self.has(offset):
                self.taken += 1
                yield SimpleNamespace(
                    offset=offset, timestamp_ms=offset, key=b"k", value=b"v" * 10_000,
                    headers=[(f"h{number}" * 200, b"x" * 3000) for number in range(3)],
                )  # fmt: skip


def test_records_in_front_of_holes_are_not_all_held():
    fetcher = Counting(HOLES + 5_000, lambda offset: offset < 5_000)
    tracemalloc.start()
    try:
        screen = records.newest(fetcher, "t", [0], ROWS, {})
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [record.offset for record in screen.records] == [*range(4_999, 4_999 - ROWS, -1)]
    assert fetcher.taken >= 5_000
    assert peak_bytes < 10 << 20


def test_records_behind_holes_are_read_as_far_as_they_are_shown():
    fetcher = Counting(2 * HOLES, lambda offset: offset >= HOLES)
    screen = records.following(fetcher, "t", [0], ROWS, {})
    assert [record.offset for record in screen.records] == [*range(HOLES, HOLES + ROWS)]
    assert fetcher.taken <= 2 * ROWS


def test_headers_are_cut_together():
    fetcher = Counting(1, lambda offset: True)
    (record,) = records.newest(fetcher, "t", [0], 1, {}).records
    sizes = [len(part.data) for _, part in record.headers]
    assert sizes == [3000, records.PREVIEW_BYTES - 3000, 0]
    assert all(part.size_bytes == 3000 for _, part in record.headers)
    assert max(len(name) for name, _ in record.headers) <= 200


class Bulk(Counting):
    """A partition whose records come as one batch."""

    def records(self, topic, partition, start, end):
        for offset in range(start, end):
            yield SimpleNamespace(offset=offset, timestamp_ms=0, key=None, value=b"", headers=[])


MANY = 50_000  # of no bytes, in one batch: some kilobytes if they are compressed


@pytest.mark.parametrize("is_raw", [False, True])
def test_an_export_takes_a_batch_of_many_records_in_parts(is_raw):
    chunks = page._lines(Bulk(MANY, None), "t", [0], None, is_raw=is_raw)
    lines = 0
    next(chunks)
    tracemalloc.start()
    try:
        for chunk in chunks:
            lines += chunk.count(b"\n")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert MANY - 5_000 < lines < MANY
    assert peak_bytes < 20 << 20
