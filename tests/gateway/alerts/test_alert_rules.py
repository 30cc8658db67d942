"""From values to states and notices."""

import dataclasses

from headwater.alert_settings import AlertSettings
from headwater.gateway.alerts.rules import (
    GIVE_UP_MS,
    MAX_UNDELIVERED,
    AlertState,
    Notice,
    advanced,
    place_id,
    shown,
)
from headwater.settings import Secret

ALERT = AlertSettings(
    name="lag", when="lag(orders) > 10", for_=60.0, notify=Secret("log\nwebhook:http://x")
)


def run(alert, values, state=None, silenced=()):
    """Values by second; the events by second."""
    state = state or AlertState()
    events = {}
    for second, value in values.items():
        event = advanced(alert, state, value, second * 1000, is_silenced=second in silenced)
        if event:
            events[second] = event["event"]
    return state, events


def test_it_fires_once_after_it_has_held_for_so_long_and_recovers_once():
    values = {1: 5, 2: 11, 30: 12, 61: 12, 62: 13, 63: 14, 100: 15, 101: 3, 102: 3}
    state, events = run(ALERT, values)
    assert events == {62: "firing", 101: "recovered"}
    assert [notice.to for notice in state.undelivered] == list(
        map(place_id, ["log", "webhook:http://x"])
    ) * 2
    assert state.state == "ok"


def test_a_moment_in_between_begins_the_time_again():
    _, events = run(ALERT, {1: 11, 50: 11, 55: 2, 56: 11, 100: 11, 116: 11})
    assert events == {116: "firing"}


def test_the_state_goes_on_after_a_restart():
    state, _ = run(ALERT, {1: 11})
    _, events = run(ALERT, {61: 11}, AlertState.from_json(state.to_json()))
    assert events == {61: "firing"}


def test_silenced_events_notify_nobody():
    state, events = run(ALERT, {1: 11, 61: 11, 70: 1}, silenced=(61, 70))
    assert events == {61: "firing", 70: "recovered"}
    assert state.undelivered == []


def test_undelivered_notices_are_bounded_and_given_up():
    at_once = dataclasses.replace(ALERT, for_=0.0)
    state, _ = run(at_once, {second: 20 * (second % 2) for second in range(1, 201)})
    assert len(state.undelivered) == MAX_UNDELIVERED
    assert state.given_up == 2 * 200 - MAX_UNDELIVERED
    notice = Notice("log", {"at_ms": 0})
    pauses = []
    for _ in range(10):
        notice.has_failed("no", 0)
        pauses.append(notice.next_ms)
    assert pauses[:3] == [5000, 10000, 20000]
    assert pauses[-1] == 300_000
    assert not notice.is_hopeless(GIVE_UP_MS)
    assert notice.is_hopeless(GIVE_UP_MS + 1)


def test_values_are_shown_as_conditions_are_written():
    values = (67_804_000_000, 6.7804e10, 43.210987, 0, None)
    assert [shown(value) for value in values] == ["67804000000", "67804000000", "43.211", "0", "-"]
