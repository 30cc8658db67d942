"""Batches whose rows tasks stage: who computes, stages and commits when, without Spark."""

import json
from contextlib import contextmanager

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from headwater.errors import Fenced, NotStaged, StoreRefused, StoreUnreachable
from headwater.pipelines.checkpoint import Checkpoint
from headwater.pipelines.running import batch_applier
from headwater.pipelines.running.batch_applier import BatchApplier
from headwater.pipelines.running.staging_tasks import StagingTasks
from headwater.sinks.contract import Batch, StagingWriter, Store, Version, is_applied

FIELDS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


class Frame:
    """Its rows are its number, and what has happened to it."""

    schema = StructType(
        [StructField("id", LongType()), StructField("v", StringType())],
    )

    def __init__(self, number, events):
        self.number, self._events = number, events

    def toArrow(self):  # noqa: N802 (Spark's name)
        self._events.append("in the driver")
        return pa.table({"id": [self.number], "v": ["by the driver"]}, FIELDS)


class Tasks:
    """Instead of Spark's. `trouble` is what they raise, one after the other."""

    def __init__(self, events):
        self.trouble = []
        self._events = events

    def are_for(self, batch, frame):
        return True

    def stage(self, frame, batch, staging):
        self._events.append("in tasks" if staging else "only computed")
        error = self.trouble.pop(0) if self.trouble else None
        if error is not None:
            raise error
        return [f"{staging}:{frame.number}".encode()] if staging else []


class Memory(Store):
    """`trouble` is what commits raise; "late" after they were made."""

    def __init__(self, events):
        self.rows, self.position, self.epoch = {}, None, 0
        self.trouble, self.events = [], events

    def check(self):
        return

    def versions(self):
        return [Version(1, True, self.position, FIELDS)]

    def writer(self, version, fields):
        self.epoch += 1
        self.events.append(f"writer {self.epoch}")
        return MemoryWriter(self)

    def promote(self, version):
        return

    def drop(self, version):
        return

    def read(self, version):
        raise NotImplementedError


class MemoryWriter(StagingWriter):
    def __init__(self, store):
        self._store, self._epoch, self.position = store, store.epoch, store.position

    def staging(self, batch):
        assert batch.rows.schema.names == ["id", "v"]
        return f"epoch {self._epoch}"

    def commit(self, batch, tokens):
        for token in tokens:
            epoch, _, number = token.decode().partition(":")
            assert epoch == f"epoch {self._epoch}", "staged for another writer"
            self._write(batch, {int(number): "by tasks"})

    def apply(self, batch, refuse=None):
        self._write(batch, {row["id"]: row["v"] for row in batch.rows.to_pylist()})

    def _write(self, batch, rows):
        store = self._store
        if store.epoch != self._epoch:
            raise Fenced("another writer")
        error, when = store.trouble.pop(0) if store.trouble else (None, "")
        if error is not None and when != "late":
            raise error
        if not is_applied(store.position, batch):
            store.rows |= rows
            store.position = batch.position()
        self.position = store.position
        if error is not None:
            raise error

    def close(self):
        return


@pytest.fixture
def events(monkeypatch):
    monkeypatch.setattr(batch_applier, "_FIRST_PAUSE_S", 0.001)
    return []


@pytest.fixture
def store(events):
    return Memory(events)


@pytest.fixture
def tasks(events):
    return Tasks(events)


@pytest.fixture
def applier(tmp_path, store, tasks, events):
    checkpoint = Checkpoint(tmp_path, "copy", "cache/t", 1)
    (checkpoint.path / "offsets").mkdir(parents=True)
    (checkpoint.path / "metadata").write_text(json.dumps({"id": "q"}))
    for number in range(10):
        ends = json.dumps({"orders": {"0": number * 10}})
        (checkpoint.path / "offsets" / str(number)).write_text(f"v1\n{{}}\n{ends}\n")

    @contextmanager
    def computing(number):
        yield
        events.append(f"state {number}")

    def late(number):
        events.append(f"late rows {number}")

    made = BatchApplier(
        store, 1, FIELDS, checkpoint, computing=computing, computed=late, tasks=tasks
    )
    made.open()
    return made


def test_tasks_stage_and_the_driver_commits(applier, store, events):
    applier(Frame(0, events), 0)
    assert store.rows == {0: "by tasks"}
    assert events == ["writer 1", "in tasks", "state 0", "late rows 0"]
    assert applier.position.batch == 0


@pytest.mark.parametrize("error", [NotStaged("a truncate"), StoreRefused("no rights")])
def test_what_tasks_cannot_stage_the_driver_applies(applier, store, tasks, events, error):
    tasks.trouble = [error]
    applier(Frame(0, events), 0)
    applier(Frame(1, events), 1)
    assert store.rows == {0: "by the driver", 1: "by tasks"}
    assert events == [
        "writer 1", "in tasks", "in the driver", "state 0", "late rows 0",
        "in tasks", "state 1", "late rows 1",
    ]  # fmt: skip


def test_what_cannot_be_moved_the_driver_applies(applier, store, events):
    store.trouble = [(StoreRefused("a constraint"), "")]
    applier(Frame(0, events), 0)
    assert store.rows == {0: "by the driver"}


@pytest.mark.parametrize("when", ["", "late"])
def test_after_a_lost_connection_tasks_stage_again_for_the_new_writer(applier, store, events, when):
    """What they have staged before is of the earlier writer. A commit may have been made, too."""
    store.trouble = [(StoreUnreachable("the connection was lost"), when)]
    applier(Frame(0, events), 0)
    assert store.rows == {0: "by tasks"}
    again = "only computed" if when else "in tasks"
    assert events == [
        "writer 1", "in tasks", "state 0", "late rows 0", "writer 2", again, "state 0",
    ]  # fmt: skip
    assert applier.waits_for is None


def test_a_batch_that_was_applied_is_only_computed_when_it_runs_again(applier, store, events):
    """The state of operators may be missing; the store has everything."""
    applier(Frame(0, events), 0)
    events.clear()
    applier(Frame(0, events), 0)
    assert events == ["only computed", "state 0"]
    applier(Frame(1, events), 1)
    assert store.position.batch == 1


def test_a_writer_that_was_replaced_meanwhile_does_not_come_back(applier, store, tasks, events):
    store.writer(1, FIELDS)  # of another process
    with pytest.raises(Exception, match="Fenced"):
        applier(Frame(0, events), 0)
    assert isinstance(applier.error, Fenced)
    assert store.rows == {}
    assert store.epoch == 2


def test_a_run_that_was_stopped_commits_nothing(applier, store, tasks, events, monkeypatch):
    def stopped(frame, batch, staging):
        applier.stop()
        return [b"epoch 1:0"]

    monkeypatch.setattr(tasks, "stage", stopped)
    with pytest.raises(Exception, match="PipelineError"):
        applier(Frame(0, events), 0)
    assert store.rows == {}


def batch(starts, ends):
    return Batch("q", 1, {"t": starts}, {"t": ends}, pa.table({}))


def test_which_batches_tasks_stage():
    tasks = StagingTasks(("id",))
    frame = Frame(0, [])
    assert tasks.are_for(batch({0: 0, 1: 50}, {0: 200_000, 1: 50}), frame)
    assert not tasks.are_for(batch({0: 1, 1: 50}, {0: 200_000, 1: 50}), frame)
    assert tasks.are_for(batch({}, {0: 100_000, 1: 100_000}), frame)


def test_keys_whose_equal_values_have_several_hashes_are_not_for_tasks():
    from pyspark.sql.types import DoubleType

    frame = Frame(0, [])
    frame.schema = StructType([StructField("id", DoubleType())])
    assert not StagingTasks(("id",)).are_for(batch({}, {0: 1 << 40}), frame)
    assert StagingTasks(()).are_for(batch({}, {0: 1 << 40}), frame)
