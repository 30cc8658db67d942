"""The offset log: what it has returned from is there after a power cut, whole."""

from random import Random

import pytest

from headwater.pipelines.checkpoint import Checkpoint
from headwater.pipelines.engine import offset_log
from headwater.pipelines.engine.offset_log import OffsetLog, PlannedBatch
from headwater.testing import FaultyFiles


@pytest.fixture(autouse=True)
def without_spark(monkeypatch):
    monkeypatch.setattr(offset_log, "_metadata", lambda _: {"batchWatermarkMs": 0, "conf": {}})


def batch(number):
    return PlannedBatch(number, 1000 + number, [{"orders": {"0": 10 * number}}])


def opened(tmp_path, files=None):
    return OffsetLog(Checkpoint(tmp_path, "p", "cache/t", 1), None, [0], files=files)


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power_cut"])
def test_a_death_at_any_file(tmp_path, power):
    """Either of plan and commit is there when it has returned. A file is whole, or not there."""
    opened(tmp_path).begin()
    opened(tmp_path).plan(batch(0))
    opened(tmp_path).commit(0)
    after, number = 0, 1
    while True:
        files = FaultyFiles()
        log = opened(tmp_path, files)
        files.die(after=after)
        has_planned = has_committed = False
        try:
            log.plan(batch(number))
            has_planned = True
            log.commit(number)
            has_committed = True
        except Exception:
            assert files.is_dead
        if files.is_dead and power:
            files.power_cut(Random(after))
        files.revive()
        found = opened(tmp_path)
        last = found.last()
        assert last == batch(last.number)
        assert last.number in ((number,) if has_planned else (number - 1, number))
        if has_committed:
            assert found.is_committed(number)
            assert (tmp_path / f"p/cache.t/v1/checkpoint/commits/{number}").read_bytes()
            break
        after += 1
    assert after > 8


@pytest.mark.parametrize("seed", range(20))
def test_a_commit_is_durable_when_it_returns(tmp_path, seed):
    """State before the batch is removed from then on."""
    opened(tmp_path).begin()
    files = FaultyFiles()
    log = opened(tmp_path, files)
    log.plan(batch(0))
    log.commit(0)
    files.die()
    files.power_cut(Random(seed))
    files.revive()
    assert opened(tmp_path).last() == batch(0)
    assert opened(tmp_path).is_committed(0)
    assert (tmp_path / "p/cache.t/v1/checkpoint/commits/0").read_bytes().startswith(b"v1\n")


def test_old_batches_are_removed(tmp_path):
    log = opened(tmp_path)
    log.begin()
    for number in range(offset_log._RETAINED + 5):
        log.plan(batch(number))
        log.commit(number)
    assert log.last() == batch(number)
    assert not log.is_committed(number - offset_log._RETAINED)
    assert log.is_committed(number - offset_log._RETAINED + 1)
