"""The status files of a pipeline's process: only the process with the lock writes them."""

import dataclasses
import errno
import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from headwater import config
from headwater.errors import NotReady, PipelineError
from headwater.inspect.waiting import wait
from headwater.pipelines.checkpoint import Checkpoint
from headwater.pipelines.running import status

WRITES = {"cache/orders": {"state": "running", "sink": "cache"}}


def _run(state_dir, written, end):
    status.write(state_dir, "orders", {"cache/orders": {"state": "failed"}})
    written.set()
    end.wait(60)


@pytest.fixture
def elsewhere(tmp_path):
    """Another process that runs the pipeline, until it is killed."""
    context = multiprocessing.get_context("spawn")
    written, end = context.Event(), context.Event()
    process = context.Process(target=_run, args=(tmp_path, written, end))
    process.start()
    assert written.wait(60)
    yield process
    process.kill()
    process.join()


def test_a_pipeline_runs_as_long_as_its_process_lives(tmp_path, elsewhere):
    assert status.read(tmp_path, "orders").is_running
    elsewhere.kill()
    elsewhere.join()
    read = status.read(tmp_path, "orders")
    assert not read.is_running
    assert read.writes["cache/orders"]["state"] == "failed"


def test_only_its_user_can_read_or_lock_what_a_pipeline_leaves(tmp_path):
    state_dir = tmp_path / "pipelines"
    status.write(state_dir, "orders", WRITES)
    status.write_plan(state_dir, "orders", "cache/orders", "a plan")
    checkpoint = Checkpoint(state_dir, "orders", "cache/orders", 1).lock()
    try:
        private = [state_dir / "orders", checkpoint.directory]
        private += [path for path in state_dir.rglob("*") if path.is_file()]
        assert {"status.json", "plans.json", "running", "lock"} <= {path.name for path in private}
        assert [path for path in private if stat.S_IMODE(path.stat().st_mode) & 0o077] == []
    finally:
        checkpoint.unlock()
        status.ended(state_dir, "orders")


def test_a_second_process_says_nothing(tmp_path, elsewhere):
    status.write(tmp_path, "orders", WRITES)
    assert status.read(tmp_path, "orders").writes["cache/orders"] == {"state": "failed"}


def test_who_has_ended_runs_nothing(tmp_path):
    status.starting(tmp_path, "orders")
    assert status.read(tmp_path, "orders").is_running
    assert status.read(tmp_path, "orders").writes[""]["state"] == status.STARTING
    status.write(tmp_path, "orders", WRITES)
    status.ended(tmp_path, "orders")
    read = status.read(tmp_path, "orders")
    assert (read.is_running, read.writes) == (False, WRITES)


def test_a_full_disk_does_not_shut_a_process_out_of_its_own_checkpoint(tmp_path, monkeypatch):
    checkpoint = Checkpoint(tmp_path, "orders", "cache/orders", 1)

    pwrite = os.pwrite

    def full(descriptor, *rest):
        # Only below the test's directory: a broker of other tests may run in this process.
        if Path(f"/proc/self/fd/{descriptor}").resolve().is_relative_to(tmp_path):
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(descriptor, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space left"):
            checkpoint.lock()
    checkpoint.lock()
    with pytest.raises(PipelineError, match="another process"):
        Checkpoint(tmp_path, "orders", "cache/orders", 1).lock()
    checkpoint.unlock()


def test_a_place_that_takes_no_file_stops_nothing(tmp_path, caplog):
    (tmp_path / "orders").write_text("in the way")
    status.write(tmp_path, "orders", WRITES)
    status.write(tmp_path, "orders", {"cache/orders": {"state": "failed"}})
    assert caplog.text.count("cannot be written") == 1  # and not every second
    assert not status.read(tmp_path, "orders").is_running


def test_waiting_for_a_pipeline_that_starts_for_the_first_time(tmp_path):
    loaded = config.load({"spark.state_dir": str(tmp_path)})
    loaded = dataclasses.replace(loaded, pipelines={"new": None})
    status.starting(tmp_path, "new")
    with pytest.raises(NotReady, match="is starting"):
        wait("new", timeout_s=0.1, loaded=loaded)
    status.ended(tmp_path, "new")
    with pytest.raises(NotReady, match="has never run"):
        wait("new", timeout_s=30, loaded=loaded)
