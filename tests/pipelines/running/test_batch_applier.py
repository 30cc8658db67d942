"""One micro-batch into a store, without Spark."""

import json
import threading

import pyarrow as pa
import pytest

from headwater.errors import Fenced
from headwater.pipelines.checkpoint import Checkpoint
from headwater.pipelines.running.batch_applier import BatchApplier
from headwater.settings import Secret
from headwater.sinks.contract import Batch, Log, Target
from headwater.sinks.settings import SinkSettings
from headwater.sinks.stores import store_of

FIELDS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


class Frame:
    """What BatchApplier asks of a DataFrame."""

    def __init__(self, number: int) -> None:
        self._rows = pa.table({"id": [number], "v": [f"of {number}"]}, FIELDS)

    def toArrow(self) -> pa.Table:  # noqa: N802 (Spark's name)
        return self._rows


@pytest.fixture
def checkpoint(tmp_path):
    """As Spark has left it: ten batches of ten records."""
    checkpoint = Checkpoint(tmp_path, "copy", "cache/t", 1)
    (checkpoint.path / "offsets").mkdir(parents=True)
    (checkpoint.path / "metadata").write_text(json.dumps({"id": "q"}))
    for number in range(10):
        ends = json.dumps({"orders": {"0": number * 10}})
        (checkpoint.path / "offsets" / str(number)).write_text(f"v1\n{{}}\n{ends}\n")
    return checkpoint


@pytest.fixture
def store(tmp_path):
    settings = SinkSettings("cache", "sqlite", Secret(f"sqlite:///{tmp_path / 'store.db'}"))
    store = store_of(settings, Target("copy", "t", ("id",)), Log("127.0.0.1:1"))
    yield store
    store.close()


def batch(checkpoint, number: int) -> Batch:
    starts = checkpoint.offsets(number - 1) if number else {}
    return Batch("q", number, starts, checkpoint.offsets(number), Frame(number).toArrow())


def test_who_wakes_up_does_not_stop_the_one_that_has_taken_over(store, checkpoint):
    sleeper = BatchApplier(store, 1, FIELDS, checkpoint)
    sleeper.open()
    sleeper(Frame(0), 0)
    sleeper.close()  # its connection is closed, as PostgreSQL does with a writer that hangs
    with store.writer(1, FIELDS) as successor:
        for number in (0, 1, 2):
            successor.apply(batch(checkpoint, number))
        with pytest.raises(Exception, match="Fenced"):  # what Spark gets
            sleeper(Frame(1), 1)
        assert isinstance(sleeper.error, Fenced)
        assert "another process writes to the store now" in str(sleeper.error)
        successor.apply(batch(checkpoint, 3))
        assert successor.position.batch == 3


def test_whose_connection_is_lost_goes_on_by_another(store, checkpoint):
    applier = BatchApplier(store, 1, FIELDS, checkpoint)
    applier.open()
    for number in range(3):
        applier(Frame(number), number)
        applier.close()
        applier(Frame(number), number)  # the answer was lost, too
    applier.close()
    with store.read(1) as contents:
        assert contents.position.batch == 2
        assert [row["id"] for batch in contents.rows for row in batch.to_pylist()] == [0, 1, 2]


def test_who_closes_it_waits_until_the_batch_is_reported(store, checkpoint):
    """Otherwise the last batch before a stop would be missing in the status."""
    applied_batches: list[int] = []
    is_applied, go_on = threading.Event(), threading.Event()

    def applied(position):
        is_applied.set()
        assert go_on.wait(60)
        applied_batches.append(position.batch)

    applier = BatchApplier(store, 1, FIELDS, checkpoint, applied=applied)
    applier.open()
    sparks = threading.Thread(target=applier, args=(Frame(0), 0))
    sparks.start()
    assert is_applied.wait(60)
    closing = threading.Thread(target=applier.close)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()
    go_on.set()
    closing.join(60)
    assert applied_batches == [0]
    sparks.join(60)


class Truncated(Frame):
    def toArrow(self) -> pa.Table:  # noqa: N802
        return pa.table({"id": [None, 7], "v": [None, "new"], "_op": ["t", "c"]})


def test_a_truncate_needs_the_order_of_the_rows_that_are_written_and_of_no_others(
    store, checkpoint
):
    """A table that events are enriched from is read, too, and may have any number of partitions."""
    for number in range(2):
        ends = json.dumps({"orders": {"0": number}, "customers": {"0": number, "1": number}})
        (checkpoint.path / "offsets" / str(number)).write_text(f"v1\n{{}}\n{ends}\n")
    applier = BatchApplier(store, 1, FIELDS, checkpoint, rows_of=lambda topic: topic == "orders")
    applier.open()
    applier(Frame(0), 0)
    applier(Truncated(1), 1)
    applier.close()
    with store.read(1) as contents:
        assert [row["id"] for batch in contents.rows for row in batch.to_pylist()] == [7]
    whole = BatchApplier(store, 1, FIELDS, checkpoint)
    with pytest.raises(Exception, match="PipelineError"):
        whole(Truncated(1), 1)
    assert "has several partitions" in str(whole.error)


def test_offsets_of_a_batch_are_read_once(store, checkpoint, monkeypatch):
    """The end of a batch that was applied is the start of the next one."""
    read, offsets = [], Checkpoint.offsets

    def counted(checkpoint, number):
        read.append(number)
        return offsets(checkpoint, number)

    monkeypatch.setattr(Checkpoint, "offsets", counted)
    applier = BatchApplier(store, 1, FIELDS, checkpoint)
    applier.open()
    for number in range(4):
        applier(Frame(number), number)
    applier.close()
    assert read == [0, 1, 2, 3]
    successor = BatchApplier(store, 1, FIELDS, checkpoint)
    successor.open()
    successor(Frame(4), 4)  # the store has the end of the batch before
    successor.close()
    assert read == [0, 1, 2, 3, 4]
    with store.read(1) as contents:
        assert contents.position.offsets == {"orders": {0: 40}}
