"""Committed manifests: the driver's record of which one each bucket of the next batch needs."""

import errno
from random import Random

import pytest

from headwater.errors import PipelineError, StateLost
from headwater.pipelines.operators.runtime.naming import Built
from headwater.pipelines.operators.state.manifests import CommittedManifests, required_manifest
from headwater.pipelines.operators.state.state_files import NO_MANIFEST, FileState, begin
from headwater.testing import FaultyFiles

BUCKETS = 3
OPERATORS = tuple(Built(name, BUCKETS, ()) for name in ("tumbling-1", "enrich-1"))


@pytest.fixture
def directory(tmp_path):
    directory = tmp_path / "operators"
    for operator in OPERATORS:
        begin(directory / operator.name, BUCKETS)
    return directory


def run(directory, batch, changed, manifests=None):
    """One batch, in which `changed` are the buckets of the first operator that have news, and the
    second one has nothing to do.
    """
    manifests = manifests or CommittedManifests(OPERATORS, directory)
    reports = {}
    for bucket in range(BUCKETS):
        place = directory / OPERATORS[0].name
        required = required_manifest(directory, batch, OPERATORS[0].name, bucket)
        state = FileState(place, bucket, batch, buckets=BUCKETS, is_begun=True, required=required)
        if bucket in changed:
            state.document.setdefault("batches", []).append(batch)
        reports[state.path] = batch, state.commit()
    manifests.computed(batch, reports)
    return manifests


def test_each_bucket_is_to_find_what_it_wrote_last(directory):
    assert CommittedManifests(OPERATORS, directory).after(-1)["enrich-1"] == [NO_MANIFEST] * BUCKETS
    run(directory, 0, {0, 1})
    run(directory, 1, {1})
    driver = run(directory, 2, set())
    expected = {"tumbling-1": [0, 1, NO_MANIFEST], "enrich-1": [NO_MANIFEST] * BUCKETS}
    assert driver.after(2) == expected
    assert CommittedManifests(OPERATORS, directory).after(2) == expected, "another process"
    assert run(directory, 2, {2}).after(2)["tumbling-1"] == [0, 1, 2], "it ran again"


@pytest.mark.parametrize("removed", [0, 1])
def test_a_manifest_that_was_deleted_between_batches_is_a_lost_state(directory, removed):
    run(directory, 0, {0, 1, 2})
    driver = run(directory, 1, {1})
    bucket = directory / "tumbling-1" / "1"
    (bucket / "1.json").unlink()
    if not removed:
        (bucket / "0.json").unlink()
    with pytest.raises(StateLost):
        run(directory, 2, {1}, driver)
    with pytest.raises(StateLost):
        run(directory, 2, {1})


def test_a_manifest_that_is_missing_after_its_batch(directory):
    run(directory, 0, {0})
    driver = CommittedManifests(OPERATORS, directory)
    with pytest.raises(StateLost, match="no manifest of batch 1"):
        driver.computed(1, {(str(directory / "tumbling-1"), 1): (1, 1)})


def test_reports_of_other_batches_do_not_count(directory):
    driver = run(directory, 0, {0})
    driver.computed(1, {(str(directory / "tumbling-1"), 0): (7, 7)})
    assert driver.after(1)["tumbling-1"] == [0, NO_MANIFEST, NO_MANIFEST]


def test_the_record_of_the_driver_is_missing_or_damaged(directory):
    run(directory, 0, {0})
    for content in (None, b"{", b"{}", b'{"tumbling-1": [0], "enrich-1": [0, 0, 0]}'):
        (directory / "0.json").unlink()
        if content is not None:
            (directory / "0.json").write_bytes(content)
        with pytest.raises(StateLost, match="is missing or damaged"):
            CommittedManifests(OPERATORS, directory).after(0)
        (directory / "0.json").touch()


def test_only_what_may_be_asked_for_stays(directory):
    for batch in range(12):
        run(directory, batch, {0})
    assert sorted(path.name for path in directory.glob("*.json")) == ["10.json", "11.json"]


def test_an_operator_that_is_called_by_a_number(tmp_path):
    operator = Built("0", BUCKETS, ())
    begin(tmp_path / operator.name, BUCKETS)
    driver = CommittedManifests((operator,), tmp_path)
    for batch in range(4):
        driver.computed(batch, {})
    assert driver.after(3) == {"0": [NO_MANIFEST] * BUCKETS}


def test_it_outlives_a_power_cut(tmp_path):
    for seed in range(10):
        directory = tmp_path / str(seed) / "operators"
        files = FaultyFiles(seed=seed)
        directory.parent.mkdir()
        for operator in OPERATORS:
            begin(directory / operator.name, BUCKETS, files=files)
        for batch in range(3):
            run(directory, batch, {0}, CommittedManifests(OPERATORS, directory, files=files))
        files.power_cut(Random(seed))
        assert CommittedManifests(OPERATORS, directory).after(2)["tumbling-1"][0] == 2


def test_a_full_disk_is_no_lost_state(directory):
    files = FaultyFiles()
    files.room_bytes = 0
    driver = CommittedManifests(OPERATORS, directory, files=files)
    with pytest.raises(PipelineError, match="cannot be written") as caught:
        driver.computed(0, {})
    assert not isinstance(caught.value, StateLost)


def test_what_cannot_be_read_just_now_is_not_lost(directory, monkeypatch):
    run(directory, 0, {0})
    driver = CommittedManifests(OPERATORS, directory)

    def refused(_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(driver._files, "read", refused)
    with pytest.raises(PipelineError, match="Too many open files") as caught:
        driver.after(0)
    assert not isinstance(caught.value, StateLost)
