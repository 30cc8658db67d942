"""Lags over time: of the right groups, of a bounded number, each so many samples."""

from headwater.console.project import group_lags
from headwater.console.project.group_lags import GroupLag, LagHistory


def groups(**lags):
    return [GroupLag(name, "stable", "classic", ("t",), lag) for name, lag in lags.items()]


def test_those_that_lag_and_those_that_are_looked_at():
    history = LagHistory()
    history.watch("looked_at")
    for at in (1.0, 2.0):
        history.add(groups(lags=5, well=0, looked_at=0), at)
    assert history.of("lags") == [(1.0, 5), (2.0, 5)]
    assert history.of("looked_at") == [(1.0, 0), (2.0, 0)]
    assert history.of("well") == []
    history.add(groups(lags=0, looked_at=1), 3.0)
    assert history.of("lags")[-1] == (3.0, 0)  # it has caught up: that is worth knowing


def test_the_same_reading_counts_once():
    history = LagHistory()
    history.add(groups(a=1), 1.0)
    history.add(groups(a=1), 1.0)
    assert history.of("a") == [(1.0, 1)]


def test_it_is_bounded(monkeypatch):
    monkeypatch.setattr(group_lags, "_TRACKED", 10)
    monkeypatch.setattr(group_lags, "_MOST", 6)
    monkeypatch.setattr(group_lags, "_SAMPLES", 5)
    history = LagHistory()
    for name in range(50):
        history.watch(f"w{name}")
    for at in range(20):
        many = {f"g{(at * 7 + n) % 1000}": n + 1 for n in range(1000)}
        history.add(groups(**many, **{f"w{n}": 0 for n in range(50)}), float(at))
        assert len(history._samples) <= 10
    assert all(len(sample) <= 5 for sample in history._samples.values())
    assert history.of("w49")
    assert not history.of("w1")


def test_share_groups_have_no_lag_here():
    history = LagHistory()
    history.watch("queue")
    history.add([GroupLag("queue", "stable", "share", ("t",), None)], 1.0)
    assert history.of("queue") == []
