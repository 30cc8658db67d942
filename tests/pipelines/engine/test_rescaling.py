"""State in another number of buckets: nothing is lost, whenever the process dies."""

import itertools
import shutil
from random import Random

import pyarrow as pa
import pytest
from support.pipelines.operator_driver import Unsynced
from tiers import in_full

from headwater.errors import StateLost
from headwater.pipelines.engine.local_state import LocalState, is_local
from headwater.pipelines.operators.runtime.naming import Built
from headwater.pipelines.operators.state.key_groups import KEY_GROUPS, Share, buckets_of
from headwater.pipelines.operators.state.manifests import CommittedManifests
from headwater.pipelines.operators.state.state_files import FileState, begin, begun_buckets
from headwater.testing import FaultyFiles

KEYS = [f"key {number}" for number in range(40)]
ROWS = "rows"


class Counting:
    """State: a number for each key; the number of the batch; rows since it began."""

    output = pa.schema([("key", pa.string())])

    def step(self, state, inputs):
        raise NotImplementedError

    def rescale(self, before, after, share):
        tables = [table for state in before if (table := state.table(ROWS)) is not None]
        if tables:
            rows = pa.concat_tables(tables)
            after.put(ROWS, rows.filter(pa.array(share.of_rows(rows, ["key"]))))


def built(buckets):
    return Built("counting", buckets, (), operator=Counting()), Built("idle", buckets, ())


def loaded(directory, buckets, batch, files=None):
    state = LocalState(built(buckets), directory, files=files or Unsynced())
    state.load(batch)
    return state


def step(state, batch):
    state.begin_batch()
    buckets = len(state.of["counting"])
    of_keys = buckets_of([pa.array(KEYS)], len(KEYS), buckets).tolist()
    for bucket, of_bucket in enumerate(state.of["counting"]):
        keys = [key for key, of_key in zip(KEYS, of_keys, strict=True) if of_key == bucket]
        before = of_bucket.table(ROWS)
        numbers = {} if before is None else dict(zip(*before.to_pydict().values(), strict=True))
        assert numbers.keys() == (set(keys) if batch else set())
        numbers = [numbers.get(key, 0) + batch for key in keys]
        of_bucket.put(ROWS, pa.table({"key": keys, "number": pa.array(numbers, pa.int64())}))
        of_bucket.document["batch"] = batch
        of_bucket.counters["rows"] = of_bucket.counters.get("rows", 0) + len(keys)


def check(directory, batch, *, of_buckets):
    for buckets in of_buckets:
        state = loaded(directory, buckets, batch)
        states = state.of["counting"]
        assert len(states) == len(state.of["idle"]) == buckets
        assert begun_buckets(directory / "counting") == buckets
        numbers = {}
        for bucket, of_bucket in enumerate(states):
            table = of_bucket.table(ROWS)
            if table is not None:
                assert Share(bucket, buckets).of_rows(table, ["key"]).all()
                numbers |= dict(zip(*table.to_pydict().values(), strict=True))
            assert of_bucket.document == {"batch": batch}
        assert numbers == dict.fromkeys(KEYS, sum(range(batch + 1)))
        assert sum(of_bucket.counters.get("rows", 0) for of_bucket in states) == len(KEYS) * (
            batch + 1
        )


def begun(directory, buckets, batches, *, in_tasks):
    for operator in built(buckets):
        begin(directory / operator.name, buckets, files=Unsynced())
    state = loaded(directory, buckets, -1)
    for batch in range(batches):
        step(state, batch)
        state.commit(batch)
    if in_tasks:
        state.hand_over(batches - 1)
    return directory


@pytest.mark.parametrize("in_tasks", [False, True], ids=["driver", "tasks"])
def test_buckets_change_again_and_again(tmp_path, in_tasks):
    directory = begun(tmp_path / "operators", 3, 2, in_tasks=in_tasks)
    check(directory, 1, of_buckets=[1, 3, 2, 7, 7, 3, 64, 1])
    for batch, buckets in enumerate((4, 1, 5, 5, 2), start=2):
        state = loaded(directory, buckets, batch - 1)
        step(state, batch)
        state.commit(batch)
        if batch % 2:
            state.hand_over(batch)
        # Of earlier buckets nothing is left.
        for operator in built(buckets):
            path = directory / operator.name
            assert sorted(path.iterdir()) == sorted(
                [*(path / str(bucket) for bucket in range(buckets)), path / "begun"]
            )
    check(directory, 6, of_buckets=[2, 3])


def test_tasks_go_on_with_the_new_buckets(tmp_path):
    directory = begun(tmp_path / "operators", 2, 3, in_tasks=True)
    state = loaded(directory, 5, 2)
    assert is_local(directory, 2)
    state.hand_over(2)
    assert not is_local(directory, 2)
    manifests = CommittedManifests(built(5), directory)
    found = {}
    for bucket, manifest in enumerate(manifests.after(2)["counting"]):
        task = FileState(
            directory / "counting", bucket, 3, buckets=5, is_begun=True, required=manifest
        )
        if (table := task.table(ROWS)) is not None:
            found |= dict(zip(*table.to_pydict().values(), strict=True))
        task.document["batch"] = 3
        task.commit()
    assert found == dict.fromkeys(KEYS, 3)
    manifests.computed(3, {})
    assert manifests.after(3)["counting"] == [3] * 5


@pytest.mark.parametrize("power", [True, *in_full(False)], ids=["power_cut", "killed"])
@pytest.mark.parametrize("then", ["commit", "hand_over"])
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1)])
@pytest.mark.parametrize("in_tasks", [False, True], ids=["driver", "tasks"])
def test_a_death_at_any_file_leaves_the_old_or_the_new_state(
    tmp_path, in_tasks, before, after, then, power
):
    """In the rescaling, and in the batch or the hand-over after it."""
    begun(tmp_path / "begun", before, 2, in_tasks=in_tasks)
    for operations in itertools.count():
        directory = tmp_path / str(operations)
        shutil.copytree(tmp_path / "begun", directory)
        files = FaultyFiles()
        files.die(after=operations)
        try:
            state = loaded(directory, after, 1, files)
            if then == "commit":
                step(state, 2)
                state.commit(2)
            else:
                state.hand_over(1)
        except Exception:
            assert files.is_dead
        is_done = not files.is_dead
        if power and not is_done:
            files.power_cut(Random(operations))
        files.revive()
        check(directory, 1, of_buckets=Random(operations).sample([before, after, 4], 2))
        if is_done:
            break
        shutil.rmtree(directory)
    assert operations > 15
    if then == "commit":
        check(directory, 2, of_buckets=[after])


def test_a_state_that_cannot_be_split_is_lost(tmp_path):
    directory = begun(tmp_path / "operators", 2, 2, in_tasks=False)
    operators = (Built("counting", 3, (), operator=None), Built("idle", 3, ()))
    state = LocalState(operators, directory)
    with pytest.raises(StateLost, match="counting has 2 buckets, and 3 are asked for"):
        state.load(1)
    check(directory, 1, of_buckets=[2])


def test_before_the_first_batch_there_is_nothing_to_split(tmp_path):
    directory = begun(tmp_path / "operators", 2, 0, in_tasks=False)
    state = loaded(directory, 5, -1)
    step(state, 0)
    state.commit(0)
    check(directory, 0, of_buckets=[5])


@pytest.mark.parametrize("buckets", [1, 2, 3, 7, 64, 1000])
def test_buckets_are_adjacent_groups_of_about_the_same_size(buckets):
    shares = [Share(bucket, buckets) for bucket in range(buckets)]
    keys = pa.array([f"key {number}" for number in range(200_000)])
    found = buckets_of([keys], len(keys), buckets)
    assert found.min() == 0
    assert found.max() == buckets - 1
    for share in shares[: 3 if buckets > 7 else buckets]:
        others = [other.bucket for other in shares if other.overlaps(share)]
        assert others == [share.bucket]
    most, least = -(-KEY_GROUPS // buckets), KEY_GROUPS // buckets
    expected = len(keys) / KEY_GROUPS
    sizes = [int((found == bucket).sum()) for bucket in range(min(buckets, 64))]
    assert max(sizes) < 2 * most * expected
    assert min(sizes) > least * expected / 2


def test_keys_that_are_equal_in_sql_are_in_one_bucket():
    columns = [
        pa.array([0.0, -0.0, float("nan"), -float("nan")]),
        pa.array([1, 1, 2, 2], pa.int32()),
    ]
    narrow = buckets_of(columns, 4, 1000).tolist()
    wide = buckets_of([columns[0], columns[1].cast(pa.int64())], 4, 1000).tolist()
    assert narrow == wide
    assert narrow[0] == narrow[1]
    assert narrow[2] == narrow[3]
    assert buckets_of([], 2, 1000).tolist() == [0, 0]
