"""State files: nothing is lost or counted twice, whichever process dies at which step."""

import errno
import os
from random import Random

import pyarrow as pa
import pytest

from headwater.errors import PipelineError, StateLost
from headwater.log.disk.files import Files
from headwater.pipelines.operators.state.compatibility import (
    check_layout_compatible,
    check_settings_compatible,
)
from headwater.pipelines.operators.state.state_files import (
    NO_MANIFEST,
    FileState,
    MemoryState,
    begin,
    check_begun,
    newest_manifest,
)
from headwater.testing import FaultyFiles

BUCKETS = 2


@pytest.fixture
def operator(tmp_path):
    operator = tmp_path / "operators" / "summing-1"
    begin(operator, BUCKETS)
    return operator


def opened(operator, batch, files=None, required=None):
    return FileState(
        operator, 0, batch, buckets=BUCKETS, is_begun=True, required=required, files=files
    )


def rows(*values):
    return pa.table({"n": pa.array(values, pa.int64())})


def step(operator, batch, files=None):
    """Three tables of different pace, a document, a counter, and rows put aside."""
    state = opened(operator, batch, files)
    before = state.table("all")
    state.put("all", rows(*(before["n"].to_pylist() if before else ()), batch))
    if batch % 3 == 0:
        state.put("slow", rows(batch))
    state.put("gone", rows(batch) if batch % 2 else None)
    state.document["last"] = batch
    state.counters["rows"] = state.counters.get("rows", 0) + 1
    state.side("late", rows(batch))
    state.commit()


def found_after(operator, batch):
    state = opened(operator, batch + 1)
    tables = {name: state.table(name) for name in ("all", "slow", "gone")}
    return (
        {name: table["n"].to_pylist() for name, table in tables.items() if table is not None},
        state.document,
        state.counters,
    )


def expected_after(batch):
    tables = {"all": list(range(batch + 1)), "slow": [batch - batch % 3]}
    if batch % 2:
        tables["gone"] = [batch]
    return tables, {"last": batch}, {"rows": batch + 1}


def files_of(operator):
    return sorted(os.listdir(operator / "0"))


def test_a_batch_finds_what_the_one_before_left(operator):
    for batch in range(8):
        step(operator, batch)
        assert found_after(operator, batch) == expected_after(batch)


def test_a_batch_that_runs_again_finds_what_it_found(operator):
    for batch in range(8):
        for _ in range(3):
            step(operator, batch)
    assert found_after(operator, 7) == expected_after(7)


def test_what_no_batch_can_ask_for_is_removed(operator):
    for batch in range(50):
        step(operator, batch)
    # The manifests of two batches, their files, and those that have the slow table.
    assert len(files_of(operator)) <= 6


def test_files_of_a_process_that_was_killed_are_removed(operator):
    step(operator, 0)
    (operator / "0" / "1.json.abcd.tmp").write_bytes(b"half")
    step(operator, 1)
    assert "1.json.abcd.tmp" in files_of(operator)  # that process may still live
    step(operator, 2)
    step(operator, 3)
    assert "1.json.abcd.tmp" not in files_of(operator)


def test_a_batch_that_changes_nothing_writes_nothing(operator):
    step(operator, 0)
    before = files_of(operator)
    files = CountingFiles()
    opened(operator, 1, files).commit()
    assert files_of(operator) == before
    assert files.syncs == 0
    assert found_after(operator, 1) == expected_after(0)


def test_an_idle_bucket_whose_time_goes_on_writes_its_manifest_alone(operator):
    step(operator, 0)
    files = CountingFiles()
    state = opened(operator, 1, files)
    state.document["last"] = 1
    state.commit()
    assert files.syncs == 2  # the manifest and its name
    assert len(files_of(operator)) == 3


def test_a_batch_syncs_one_file_for_all_its_tables(operator):
    files = CountingFiles()
    step(operator, 1, files)
    assert files.syncs == 3  # file, manifest, directory


class CountingFiles(FaultyFiles):
    syncs = 0

    def fdatasync(self, fd):
        self.syncs += 1
        super().fdatasync(fd)

    def sync_directory(self, path):
        self.syncs += 1
        super().sync_directory(path)


@pytest.mark.parametrize("is_power_cut", [False, True])
def test_killed_at_each_step_of_a_batch(tmp_path, is_power_cut):
    """The batch runs again then, and what follows finds the same as if nothing had happened."""
    for dies_at in range(60):
        operator = tmp_path / f"{dies_at}" / "operators" / "summing-1"
        operator.parents[1].mkdir()
        files = FaultyFiles(seed=dies_at)
        begin(operator, BUCKETS, files=files)
        step(operator, 0, files)
        step(operator, 1, files)
        files.die(after=dies_at)
        died = False
        for batch in (2, 3):
            try:
                step(operator, batch, files)
            except (OSError, PipelineError):
                died = True
            if died or files.is_dead:
                died = True
                if is_power_cut:
                    files.power_cut(Random(dies_at))
                else:
                    files.revive()
                step(operator, batch, files)
            assert found_after(operator, batch) == expected_after(batch), dies_at
        if not died:
            assert dies_at > 10
            return
    pytest.fail("it never got through")


def test_a_committed_batch_outlives_a_power_cut(tmp_path):
    for seed in range(30):
        operator = tmp_path / f"{seed}" / "operators" / "summing-1"
        operator.parents[1].mkdir()
        files = FaultyFiles(seed=seed)
        begin(operator, BUCKETS, files=files)
        for batch in range(5):
            step(operator, batch, files)
        files.power_cut(Random(seed))
        assert found_after(operator, 4) == expected_after(4)


def test_a_full_disk_is_reported_and_leaves_the_batch_before(operator):
    files = FaultyFiles()
    step(operator, 0, files)
    files.room_bytes = 100
    with pytest.raises(PipelineError, match="cannot be written") as caught:
        step(operator, 1, files)
    assert not isinstance(caught.value, StateLost)
    assert not [name for name in files_of(operator) if name.endswith(".tmp")]
    files.room_bytes = None
    step(operator, 1, files)
    assert found_after(operator, 1) == expected_after(1)


def test_two_attempts_of_a_batch_do_not_mix(operator):
    """Each leaves its rows in another order; tables that point at each other stay together."""
    step(operator, 0)
    one, other = opened(operator, 1), opened(operator, 1)
    for state, order in ((one, (1, 2)), (other, (2, 1))):
        state.put("names", rows(*order))
        state.put("index", rows(order.index(1)))
    one.commit()
    later = opened(operator, 2)  # reads what the first left, while the other still writes
    names = later.table("names")
    other.commit()
    assert later.table("index")["n"][0].as_py() == names["n"].to_pylist().index(1)
    later.document["last"] = 2
    later.commit()
    for batch in (2, 3):
        state = opened(operator, batch)
        place = state.table("index")["n"][0].as_py()
        assert state.table("names")["n"][place].as_py() == 1


def test_files_of_another_attempt_of_the_batch_before_are_retained(operator):
    """The last manifest counts, whichever attempt the next batch has begun with."""
    step(operator, 0)
    one, other = opened(operator, 1), opened(operator, 1)
    for name in ("all", "slow"):  # rewritten, where the other one leaves them
        one.put(name, rows(0))
    one.commit()
    later = opened(operator, 2)
    other.document["last"] = 1
    other.commit()
    later.document["last"] = 2
    later.commit()
    assert opened(operator, 2).table("slow")["n"].to_pylist() == [0]
    assert opened(operator, 3).table("slow")["n"].to_pylist() == [0]


def test_a_worker_of_a_killed_driver_that_comes_late_harms_nothing(operator):
    for batch in range(3):
        step(operator, batch)
    zombie = opened(operator, 3)
    zombie.put("all", rows(0, 1, 2, 3))
    for batch in range(3, 8):
        step(operator, batch)
    with pytest.raises(StateLost):  # its batch is long done
        zombie.commit()
    assert found_after(operator, 7) == expected_after(7)
    step(operator, 8)
    assert found_after(operator, 8) == expected_after(8)
    assert "3.json" not in files_of(operator)


def test_a_batch_that_runs_again_with_other_records_leaves_no_trace_of_the_first(operator):
    """A power cut can take Spark's note of where a batch ends, and leave what it made."""
    step(operator, 0)
    step(operator, 1)
    opened(operator, 1).commit()  # nothing comes this time
    assert found_after(operator, 1) == expected_after(0)


def test_a_checkpoint_that_was_set_back_is_a_lost_state(operator):
    for batch in range(5):
        step(operator, batch)
    with pytest.raises(StateLost, match="a later batch"):
        opened(operator, 3)


def test_a_missing_manifest_is_lost_state_and_not_the_one_before_it(operator):
    for batch in range(4):
        step(operator, batch)
    (operator / "0" / "3.json").unlink()
    with pytest.raises(StateLost, match="cannot be read"):
        opened(operator, 4, required=3)


def test_the_only_manifest_is_missing(operator):
    step(operator, 0)
    (operator / "0" / "0.json").unlink()
    with pytest.raises(StateLost, match="cannot be read"):
        opened(operator, 1, required=0)


def test_a_manifest_that_the_driver_has_not_recorded(operator):
    """Of a worker that lived on, with other records than those that counted."""
    step(operator, 0)
    step(operator, 2)
    for required in (NO_MANIFEST, 0):
        with pytest.raises(StateLost, match="newer than the one that its driver recorded"):
            opened(operator, 3, required=required)
    assert opened(operator, 3, required=2).document == {"last": 2}
    assert opened(operator, 2, required=0).document == {"last": 0}, "it runs again"


def test_a_commit_says_which_manifest_has_the_state(operator):
    assert opened(operator, 0, required=NO_MANIFEST).commit() == NO_MANIFEST
    step(operator, 1)
    assert opened(operator, 2, required=1).commit() == 1
    state = opened(operator, 3, required=1)
    state.document["last"] = 3
    assert state.commit() == 3


def test_missing_state_is_not_begun_again(operator):
    step(operator, 0)
    (operator / "0" / "0.json").rename(operator / "0.json")
    os.rename(operator / "0", operator / "moved")
    with pytest.raises(StateLost, match="is missing"):
        opened(operator, 1)
    with pytest.raises(StateLost, match="is missing"):
        check_begun(operator)


def test_an_operator_that_was_not_begun(tmp_path):
    with pytest.raises(StateLost, match="is missing"):
        FileState(tmp_path / "new-1", 0, 5, buckets=BUCKETS, is_begun=True)


def test_another_number_of_buckets(operator):
    with pytest.raises(StateLost, match="has 2 buckets, and 3 are asked for"):
        FileState(operator, 0, 1, buckets=3)


@pytest.mark.parametrize("damage", [lambda data: data[:60], lambda data: bytes(100)])
@pytest.mark.parametrize("suffix", [".json", ".arrow"])
def test_a_damaged_file_is_a_lost_state(operator, damage, suffix):
    step(operator, 0)
    for path in (operator / "0").glob(f"*{suffix}"):
        path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(StateLost, match="cannot be read"):
        opened(operator, 1).table("all")


def test_a_missing_file_is_a_lost_state(operator):
    step(operator, 0)
    for path in (operator / "0").glob("*.arrow"):
        path.unlink()
    with pytest.raises(StateLost, match="cannot be read"):
        opened(operator, 1).table("all")


def test_dead_tables_do_not_pile_up_beside_one_that_lives(operator):
    """A large table is written once, beside others that change with each batch."""
    state = opened(operator, 0)
    for name in ("stays", "changes"):
        state.put(name, rows(*range(100_000)))
    state.commit()
    for batch in range(1, 12):
        state = opened(operator, batch)
        state.put("changes", rows(*range(100_000)))
        state.put(f"small-{batch}", rows(batch))
        state.commit()
    size_bytes = sum(path.stat().st_size for path in (operator / "0").iterdir())
    assert size_bytes < 6 * 800_000
    state = opened(operator, 12)
    assert len(state.table("stays")) == 100_000
    assert state.table("small-1")["n"].to_pylist() == [1]


def test_a_table_outlives_its_file(operator):
    step(operator, 0)
    table = opened(operator, 1).table("all")
    for path in (operator / "0").glob("*.arrow"):
        path.unlink()
    assert table["n"].to_pylist() == [0]


def test_no_descriptor_stays_open(operator):
    step(operator, 0)
    before = len(os.listdir("/proc/self/fd"))
    tables = [opened(operator, 1).table("all") for _ in range(20)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert tables


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_rows_put_aside_more_than_once(operator, kind):
    state = opened(operator, 0) if kind == "file" else MemoryState()
    state.side("late", rows(1))
    state.side("late", pa.table({"name": ["a"]}))
    state.side("late", rows())
    assert state.sides["late"].to_pylist() == [{"n": 1, "name": None}, {"n": None, "name": "a"}]
    if kind == "file":
        state.commit()
        assert len(newest_manifest(operator / "0", 0)["sides"]["late"]) == 2


def test_rows_put_aside_are_of_their_batch_alone(operator):
    step(operator, 0)
    state = opened(operator, 1)
    state.document["last"] = 1
    state.commit()
    assert newest_manifest(operator / "0", 1)["sides"] == {}


@pytest.mark.parametrize("name", ["begun", "0/0.json"])
def test_what_cannot_be_read_just_now_is_not_lost(operator, name, monkeypatch):
    step(operator, 0)
    read = Files.read

    def refused(files, path):
        if path == str(operator / name):
            raise OSError(errno.EMFILE, "Too many open files")
        return read(files, path)

    monkeypatch.setattr(Files, "read", refused)
    with pytest.raises(PipelineError, match="Too many open files") as caught:
        opened(operator, 1)
    assert not isinstance(caught.value, StateLost)


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "Input/output error"), pa.ArrowMemoryError("malloc of size 64")]
)
def test_a_table_that_cannot_be_mapped_just_now_is_not_lost(operator, error, monkeypatch):
    def refused(_):
        raise error

    step(operator, 0)
    state = opened(operator, 1)
    monkeypatch.setattr(pa, "memory_map", refused)
    with pytest.raises(PipelineError, match="cannot be read") as caught:
        state.table("all")
    assert not isinstance(caught.value, StateLost)


def test_a_name_that_another_kind_of_operator_had():
    """By `name=` it finds a state that is of no use to it, and would begin with none."""
    windows, join = MemoryState(), MemoryState()
    check_layout_compatible(windows, "fixed", "1 minute", 0)
    with pytest.raises(StateLost, match="the state of an enrichment is that of another one"):
        check_settings_compatible(windows, "an enrichment", "by id")
    check_settings_compatible(join, "an enrichment", "by id")
    with pytest.raises(StateLost, match="the state of fixed windows is that of others"):
        check_layout_compatible(join, "fixed", "1 minute", 0)
