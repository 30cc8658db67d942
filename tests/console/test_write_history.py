"""How far behind a write is in time, and how much it takes in, from samples."""

from headwater.console.project import write_history
from headwater.console.project.write_history import WriteHistory
from headwater.inspect.pipelines import PipelineState, WriteState
from headwater.sinks.contract import Position, Version

NAME = "revenue/cache/orders"


def pipelines(read, end, *, is_running=True, error=None, **reported):
    position = None if read is None else Position("q", 1, {"t": {0: read}})
    versions = [] if error else [Version(1, True, position, None)]
    about = {"sink": "cache", "table": "orders", "state": "running", **reported}
    write = WriteState("cache/orders", about, versions, error, {"t": {0: end}}, 0)
    return [PipelineState("revenue", "r.py", is_running, False, None, "", {}, {}, [write])]


def history(*samples):
    """(at, read, end) each."""
    found = WriteHistory()
    for at, read, end in samples:
        found.add(pipelines(read, end), at)
    return found


def test_behind_by_the_time_since_the_log_passed_where_the_store_is():
    # At 100 s the log was where the store is at 130 s; at 110 s it was beyond.
    found = history((100, 0, 50), (110, 20, 80), (120, 40, 120), (130, 50, 150))
    assert found.lag_s(NAME) == 20
    assert history((100, 0, 50), (110, 50, 50)).lag_s(NAME) == 0
    assert found.lag_s("other") is None


def test_behind_since_before_the_first_sample():
    assert history((100, 5, 50), (160, 5, 50)).lag_s(NAME) == 60
    assert history((100, 5, 50)).lag_s(NAME) == 0


def test_what_it_takes_in():
    assert history((100, 0, 50), (110, 200, 250)).read_per_s() == {NAME: 20}
    assert history((100, 0, 50)).read_per_s() == {}
    # Over the last half minute only, and not while it is rebuilt.
    assert history((0, 0, 0), (100, 0, 0), (110, 100, 100)).read_per_s() == {NAME: 10}
    assert history((100, 90, 90), (110, 10, 90)).read_per_s() == {}


def test_a_store_that_does_not_answer_leaves_a_gap():
    found = WriteHistory()
    found.add(pipelines(10, 20), 100)
    found.add(pipelines(10, 30, error="gone"), 110)
    assert found.lag_s(NAME) is None


def test_it_is_bounded(monkeypatch):
    monkeypatch.setattr(write_history, "_SAMPLES", 5)
    monkeypatch.setattr(write_history, "_WRITES", 1)
    found = history(*((at, at, at + 1) for at in range(100)))
    assert found.lag_s(NAME) == 0  # it is 1 s, and the samples before were dropped
    (write,) = pipelines(1, 1)[0].writes
    found.add([PipelineState("other", "o.py", True, False, None, "", {}, {}, [write])], 200)
    assert found.lag_s("other/cache/orders") is None
