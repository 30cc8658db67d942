"""State of operators in the driver: nothing is lost, whichever file is the last."""

from random import Random

import pyarrow as pa
import pytest
from support.pipelines.faulty_objects import FaultyObjects

from headwater.errors import PipelineError, StateLost
from headwater.pipelines.engine import local_state
from headwater.pipelines.engine.local_state import LocalState, is_local
from headwater.pipelines.operators.runtime.naming import Built
from headwater.pipelines.operators.state.manifests import CommittedManifests
from headwater.pipelines.operators.state.state_files import FileState, begin
from headwater.testing import FaultyFiles

OPERATORS = (Built("summing", 2, ()), Built("joining", 1, ()))


@pytest.fixture
def directory(tmp_path):
    return begun(tmp_path / "operators")


@pytest.fixture(params=["directory", "objects"])
def anywhere(request, tmp_path):
    if request.param == "directory":
        return begun(tmp_path / "operators")
    return begun(FaultyObjects(tmp_path / "cache").directory)


def begun(directory):
    for operator in OPERATORS:
        begin(directory / operator.name, operator.buckets)
    return directory


def rows(*values):
    return pa.table({"n": pa.array(values, pa.int64())})


def step(state, batch):
    """Tables of different pace, one that comes and goes, a document, a counter."""
    state.begin_batch()
    for states in state.of.values():
        for bucket in states:
            before = bucket.table("all")
            bucket.put("all", rows(*(before["n"].to_pylist() if before else ()), batch))
            if batch % 3 == 0:
                bucket.put("slow", rows(batch))
            bucket.put("sometimes", rows(batch) if batch % 2 else None)
            bucket.document["last"] = batch
            bucket.counters["rows"] = bucket.counters.get("rows", 0) + 1


def expected(batch):
    if batch < 0:
        return {}, {}, {}
    tables = {"all": list(range(batch + 1)), "slow": [batch - batch % 3]}
    if batch % 2:
        tables["sometimes"] = [batch]
    return tables, {"last": batch}, {"rows": batch + 1}


def found(state):
    contents = []
    for states in state.of.values():
        for bucket in states:
            tables = {name: bucket.table(name) for name in ("all", "slow", "sometimes")}
            listed = {name: one["n"].to_pylist() for name, one in tables.items() if one is not None}
            contents.append((listed, bucket.document, bucket.counters))
    return contents


def loaded(directory, batch, files=None):
    state = LocalState(OPERATORS, directory, files=files)
    state.load(batch)
    return state


def test_a_process_finds_what_the_one_before_left(anywhere):
    for batch in range(8):
        state = loaded(anywhere, batch - 1)
        assert found(state) == [expected(batch - 1)] * 3
        step(state, batch)
        state.commit(batch)
        assert found(state) == [expected(batch)] * 3


def test_a_batch_that_runs_again_finds_what_it_found(anywhere):
    for batch in range(8):
        for _ in range(3):
            state = loaded(anywhere, batch - 1)
            step(state, batch)
            state.commit(batch)
    assert found(loaded(anywhere, 7)) == [expected(7)] * 3


def test_files_that_no_batch_needs_are_removed(directory):
    state = loaded(directory, -1)
    for batch in range(50):
        step(state, batch)
        state.commit(batch)
    names = [path.name for path in directory.iterdir() if path.is_file()]
    # Records of two batches, their files, and that of the slow tables.
    assert len(names) <= 6, names


def test_files_that_are_mostly_dead_are_written_again(anywhere, monkeypatch):
    monkeypatch.setattr(local_state, "_DEAD_BYTES", 0)
    state = loaded(anywhere, -1)
    for batch in range(30):
        step(state, batch)
        state.commit(batch)
        assert found(loaded(anywhere, batch)) == [expected(batch)] * 3


def test_tasks_take_over_and_give_back(anywhere):
    """Batches in the driver, then some in tasks, and so on."""
    batch = 0
    for round_ in range(4):
        state = loaded(anywhere, batch - 1)
        for _ in range(1 + round_):
            step(state, batch)
            state.commit(batch)
            batch += 1
        assert is_local(anywhere, batch - 1)
        state.hand_over(batch - 1)
        assert not is_local(anywhere, batch - 1)
        manifests = CommittedManifests(OPERATORS, anywhere)
        for _ in range(2):
            before = manifests.after(batch - 1)
            for operator in OPERATORS:
                for bucket in range(operator.buckets):
                    task = FileState(
                        anywhere / operator.name,
                        bucket,
                        batch,
                        buckets=operator.buckets,
                        is_begun=True,
                        required=before[operator.name][bucket],
                    )
                    assert task.table("all")["n"].to_pylist() == list(range(batch))
                    of_bucket = LocalState((operator,), anywhere)
                    of_bucket.of = {operator.name: [_Stepped(task)]}
                    step(of_bucket, batch)
                    task.commit()
            manifests.computed(batch, {})
            batch += 1
        assert found(loaded(anywhere, batch - 1)) == [expected(batch - 1)] * 3


class _Stepped:
    """A task's state, as `step` wants it."""

    def __init__(self, task):
        self._task = task
        self.document, self.counters = task.document, task.counters
        self.table, self.put = task.table, task.put

    def begin_batch(self):
        pass


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power_cut"])
@pytest.mark.parametrize("what", ["commit", "hand_over"])
def test_a_death_at_any_file_leaves_the_state_as_it_was(directory, what, power):
    """A commit leaves the state before it, for the batch that runs again; a hand-over that of the
    batch itself, which is committed.
    """
    state = loaded(directory, -1)
    for batch in range(4 if what == "hand_over" else 3):
        step(state, batch)
        state.commit(batch)
    after = 0
    while True:
        files = FaultyFiles()
        state = loaded(directory, batch, files)
        if what == "commit":
            step(state, batch + 1)
        files.die(after=after)
        try:
            getattr(state, what)(batch + 1 if what == "commit" else batch)
        except Exception:
            assert files.is_dead
        if not files.is_dead:
            break
        if power:
            files.power_cut(Random(after))
        files.revive()
        assert found(loaded(directory, batch)) == [expected(batch)] * 3
        after += 1
    assert after > 8
    last = batch + 1 if what == "commit" else batch
    assert found(loaded(directory, last)) == [expected(last)] * 3
    assert is_local(directory, last) == (what == "commit")


@pytest.mark.parametrize("is_done", [False, True], ids=["refused", "response_lost"])
@pytest.mark.parametrize("what", ["commit", "hand_over"])
def test_a_failure_of_any_request_leaves_the_state_as_it_was(tmp_path, what, is_done):
    """Of an object store. The next process has an empty cache."""
    store = FaultyObjects(tmp_path / "first")
    state = loaded(begun(store.directory), -1)
    for batch in range(16):  # the next one removes old objects
        step(state, batch)
        state.commit(batch)
    after = 0
    while True:
        store = FaultyObjects(tmp_path / f"{after}", store.objects)
        state = loaded(store.directory, batch)
        if what == "commit":
            step(state, batch + 1)
        store.fail(after, is_done=is_done)
        try:
            getattr(state, what)(batch + 1 if what == "commit" else batch)
        except StateLost:
            raise
        except PipelineError:
            assert store.has_failed
        if not store.has_failed:
            break
        other = FaultyObjects(tmp_path / f"{after}-again", store.objects)
        assert found(loaded(other.directory, batch)) == [expected(batch)] * 3
        after += 1
    assert after >= 4
    store = FaultyObjects(tmp_path / "last", store.objects)
    last = batch + 1 if what == "commit" else batch
    assert found(loaded(store.directory, last)) == [expected(last)] * 3
    assert is_local(store.directory, last) == (what == "commit")


def test_objects_that_no_batch_needs_are_removed(tmp_path):
    store = FaultyObjects(tmp_path / "cache")
    state = loaded(begun(store.directory), -1)
    for batch in range(50):
        step(state, batch)
        before = len(store.requests)
        state.commit(batch)
        if batch % 16:
            assert len(store.requests) - before <= 2, "one for the tables, one for the record"
    assert len(store.directory.names()) <= 6 + 2 * 16


def test_a_record_that_is_missing_is_lost_state(directory):
    state = loaded(directory, -1)
    step(state, 0)
    state.commit(0)
    (directory / "0.json").unlink()
    with pytest.raises(StateLost, match="missing"):
        loaded(directory, 0)


def test_a_table_that_is_missing_is_lost_state(directory):
    state = loaded(directory, -1)
    step(state, 0)
    state.commit(0)
    (file,) = directory.glob("*.arrow")
    file.unlink()
    with pytest.raises(StateLost):
        loaded(directory, 0).of["joining"][0].table("all")
