"""When too many rows come too late."""

import pytest

from headwater import config
from headwater.errors import ConfigError
from headwater.pipelines.running.late_alert import WINDOW_S, LateAlert


def counters(events, late=0, future=0, without_time=0):
    return {"events": events, "late": late, "future": future, "without_time": without_time}


def test_the_share_of_ten_minutes_counts():
    alert = LateAlert(0.1)
    alert.saw(0, counters(1000, late=500))  # long ago
    assert (alert.share, alert.is_on) == (None, False)
    alert.saw(1, counters(1100, late=505, future=3, without_time=2))
    assert (alert.share, alert.is_on) == (0.1, False)  # as many as are allowed
    alert.saw(2, counters(1200, late=520, future=3, without_time=2))
    assert (alert.share, alert.is_on) == (0.125, True)


def test_it_ends_when_it_is_over():
    alert = LateAlert(0.1)
    alert.saw(0, counters(0))
    alert.saw(1, counters(10, late=5))
    assert alert.is_on
    alert.saw(WINDOW_S, counters(10, late=5))
    assert alert.is_on
    alert.saw(WINDOW_S + 1, counters(10, late=5))  # nothing has come since
    assert (alert.share, alert.is_on) == (None, False)
    alert.saw(WINDOW_S + 2, counters(20, late=5))
    assert alert.share == 0


def test_the_count_restarts_with_the_state():
    alert = LateAlert(0.1)
    alert.saw(0, counters(1000, late=1))
    alert.saw(1, counters(10, late=5))
    assert alert.share is None
    alert.saw(2, counters(20, late=6))
    assert alert.share == 0.1


def test_without_a_threshold_there_is_none():
    alert = LateAlert(None)
    alert.saw(0, counters(0))
    alert.saw(1, counters(10, late=10))
    assert (alert.share, alert.is_on) == (1.0, False)


def test_nothing_may_be_late():
    alert = LateAlert(0.0)
    alert.saw(0, counters(0))
    alert.saw(1, counters(10))
    assert not alert.is_on
    alert.saw(2, counters(1000, late=1))
    assert alert.is_on


@pytest.mark.parametrize(("text", "share"), [("0.01", 0.01), ('"0.5"', 0.5), ("0", 0.0)])
def test_the_setting(tmp_path, text, share):
    file = tmp_path / "headwater.toml"
    file.write_text(f'[pipeline.p]\nfile = "p.py"\nlate_alert = {text}\n')
    assert config.load(path=str(file), environ={}).pipelines["p"].late_alert == share


@pytest.mark.parametrize("text", ["5", "-0.1", '"much"'])
def test_a_setting_that_is_no_share(tmp_path, text):
    file = tmp_path / "headwater.toml"
    file.write_text(f'[pipeline.p]\nfile = "p.py"\nlate_alert = {text}\n')
    with pytest.raises(ConfigError, match="late_alert"):
        config.load(path=str(file), environ={})
