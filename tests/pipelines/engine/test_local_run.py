"""The end of a run in the driver whose store or broker is slow."""

import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from support.pipelines.project import wait_for

from headwater.pipelines.engine import local_run
from headwater.pipelines.engine.local_run import LocalRun


@pytest.fixture
def slow(monkeypatch):
    """A run that waits for `answer`, and what has happened."""
    log = SimpleNamespace(tail=SimpleNamespace(wake=lambda: None))
    monkeypatch.setattr(local_run, "shared_log", lambda _: nullcontext(log))
    answer, happened = threading.Event(), []

    def waits(*_):
        happened.append("waits")
        assert answer.wait(120)
        happened.append("answered")

    monkeypatch.setattr(LocalRun, "_loop", waits)
    plan = SimpleNamespace(sources=[SimpleNamespace(options=None)], close=lambda: None)
    run = LocalRun(plan, None, None, None, catch_up=lambda: None)
    run.start()
    wait_for(lambda: happened == ["waits"], "the run")
    return run, answer, happened


def test_a_run_that_is_slow_to_end_is_closed_by_its_own_thread(slow):
    run, answer, happened = slow
    run.stop(0.01, lambda: happened.append("closed"))
    assert happened == ["waits"], "its store and its lock are still in use"
    assert run.is_active
    answer.set()
    wait_for(lambda: not run.is_active, "its end")
    assert happened == ["waits", "answered", "closed"]


def test_a_run_that_ends_in_time_is_closed_before_stop_returns(slow):
    run, answer, happened = slow
    answer.set()
    run.stop(120, lambda: happened.append("closed"))
    assert happened == ["waits", "answered", "closed"]
    assert not run.is_active
