"""Samples of a week: means, gaps, restarts, bounds, damaged files."""

import pytest

from headwater.console.history import store
from headwater.console.history.ranges import COARSE_S, FINE_FOR_S, FINE_S, RANGES
from headwater.console.history.store import Histories, History

NOW = 1_763_222_400  # a full five minutes
HOUR, WEEK = RANGES["1h"], RANGES["1w"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "console" / "history-c.db"


def known(values):
    return [value for value in values if value is not None]


def test_what_was_sampled_is_read_with_its_gaps(path):
    history = History(path)
    history.add({"a": 1.0, "b": 5.0}, NOW)
    history.add({"a": 2.0}, NOW + FINE_S)
    history.add({"a": 4.0, "b": 7.0}, NOW + 3 * FINE_S)
    points = history.read(["a", "b", "none"], HOUR, NOW + 3 * FINE_S)
    assert points.at == [NOW + number * FINE_S for number in range(4)]
    assert points.series == {
        "a": [1, 2, None, 4], "b": [5, None, None, 7], "none": [None] * 4,
    }  # fmt: skip


def test_one_moment_has_one_sample(path):
    history, other = History(path), History(path)  # two consoles of one directory
    history.add({"a": 1.0}, NOW + 1)
    other.add({"a": 9.0}, NOW + 14)
    other.add({"a": 2.0}, NOW + 16)
    assert history.read(["a"], HOUR, NOW + 20).series["a"] == [1, 2]


def test_it_lasts_over_restarts_and_only_its_owner_reads_it(path):
    history = History(path)
    history.add({"a": 1.0}, NOW)
    history.close()
    assert History(path).read(["a"], HOUR, NOW).series["a"] == [1]
    assert path.stat().st_mode & 0o777 == 0o600


def test_means_remain_when_samples_are_gone(path):
    history = History(path)
    for number in range(COARSE_S // FINE_S):
        history.add(
            {"a": float(number), "late": 7.0} if number > 9 else {"a": number},
            NOW + number * FINE_S,
        )
    later = NOW + FINE_FOR_S + 2 * COARSE_S
    history.add({"a": 1000.0}, later)
    assert known(history.read(["a"], RANGES["3h"], later).series["a"]) == [1000]
    day = history.read(["a", "late"], RANGES["1d"], later)
    assert known(day.series["a"]) == [9.5, 1000]  # the newest has no mean yet
    assert known(day.series["late"]) == [7]


def test_a_week_is_bounded_in_bytes(path, monkeypatch):
    """With times that are shorter in proportion."""
    monkeypatch.setattr(store, "FINE_FOR_S", 40 * FINE_S)
    monkeypatch.setattr(store, "COARSE_FOR_S", 20 * COARSE_S)
    history = History(path, most_series=50)
    sizes = []
    for moment in range(2000):
        values = {f"{moment // 100}-{number}": float(number) for number in range(80)}
        history.add(values, NOW + moment * FINE_S)
        if moment % 500 == 499:
            sizes.append(path.stat().st_size)
    assert max(sizes) < 2 * sizes[0]
    assert max(sizes) < 64 << 10  # 60 moments of 50 series, and SQLite's pages


def test_a_new_series_replaces_the_one_that_is_gone_for_longest(path):
    history = History(path, most_series=2)
    history.add({"old": 1.0}, NOW)
    history.add({"a": 2.0}, NOW + 700)
    history.add({"a": 3.0, "b": 4.0, "c": 5.0}, NOW + 1400)
    points = history.read(["old", "a", "b", "c"], HOUR, NOW + 1400)
    assert known(points.series["old"]) == []
    assert known(points.series["a"]) == [2, 3]
    assert known(points.series["b"]) == [4]  # not 1: that was of another
    assert known(points.series["c"]) == []  # the least important


@pytest.mark.parametrize("damage", [b"no database at all", None])
def test_a_damaged_file_is_replaced(path, damage):
    history = History(path)
    for number in range(200):
        history.add({f"s{n}": 1.0 for n in range(300)}, NOW + number * FINE_S)
    history.close()
    content = bytearray(path.read_bytes())
    path.write_bytes(damage or content[:4096] + bytes(len(content) - 4096))
    history = History(path)
    history.add({"a": 1.0}, NOW)
    assert history.read(["a"], HOUR, NOW).series["a"] == [1]


def test_damage_while_it_runs_costs_samples_only(path):
    history = History(path)
    for number in range(100):
        history.add({f"s{n}": 1.0 for n in range(300)}, NOW + number * FINE_S)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.write(bytes(size))
    for number in range(3):
        history.add({"a": 5.0}, NOW + (200 + number) * FINE_S)
    assert known(history.read(["a"], WEEK, NOW + 300 * FINE_S).series["a"]) in ([], [5])


def test_a_clock_that_was_wrong_is_forgotten(path):
    history = History(path)
    history.add({"a": 1.0}, NOW + 30 * 86400)
    history.add({"a": 2.0}, NOW)
    history.add({"a": 3.0}, NOW + FINE_S)
    assert history.read(["a"], HOUR, NOW + FINE_S).series["a"] == [2, 3]


def test_each_cluster_has_its_own(tmp_path):
    histories = Histories(tmp_path)
    histories.of("one").add({"a": 1.0}, NOW)
    assert histories.of("../two").read(["a"], HOUR, NOW).at == []
    assert {file.name for file in tmp_path.glob("*.db")} == {"history-one.db", "history-two.db"}
    for number in range(300):
        histories.watch(f"topic/{number}")
    assert len(histories.watched) == 100
    histories.close()
