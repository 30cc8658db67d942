from headwater.broker.groups.deadline import Deadline
from headwater.testing.clock import FakeClock


def a_deadline():
    clock, fired_at = FakeClock(), []
    return clock, Deadline(clock, lambda: fired_at.append(clock.monotonic_s())), fired_at


def test_it_is_met_once():
    clock, deadline, fired_at = a_deadline()
    deadline.push(5_000)
    clock.advance(4.9)
    assert fired_at == []
    clock.advance(60)
    assert fired_at == [5.0]


def test_pushing_it_back_sets_no_new_timer():
    clock, deadline, fired_at = a_deadline()
    for _ in range(1_000):
        deadline.push(5_000)
        clock.advance(0.1)
        assert len(clock._timers) <= 1
    assert fired_at == []
    clock.advance(5)
    assert len(fired_at) == 1
    assert 104.8 < fired_at[0] < 105


def test_it_can_be_brought_forward():
    clock, deadline, fired_at = a_deadline()
    deadline.push(60_000)
    deadline.push(1_000)
    clock.advance(2)
    assert fired_at == [1.0]
    clock.advance(100)
    assert fired_at == [1.0]


def test_it_can_be_called_off_and_set_again():
    clock, deadline, fired_at = a_deadline()
    deadline.push(1_000)
    deadline.cancel()
    clock.advance(10)
    assert fired_at == []
    deadline.push(1_000)
    clock.advance(10)
    assert fired_at == [11.0]
