"""Many consumers that wait for few records."""

import pytest
from support.broker.queue_harness import ACCEPT, GROUP, acquired, queue_broker
from support.readable import readable
from support.wire import wait_until

from headwater.broker.queues.waiting import AT_ONCE, Waiters


@pytest.fixture
def broker(tmp_path):
    with queue_broker(tmp_path) as broker:
        yield broker


def waiting(broker, jobs, count: int, **fields) -> list:
    consumers = [broker.consumer(jobs) for _ in range(count)]
    assert consumers[0].take() == []
    share = broker.broker.running.broker.queues._groups[GROUP][jobs, 0]
    for consumer in consumers:
        before = len(share.waiters or ())
        consumer.send_fetch(max_wait_ms=300_000, **fields)
        wait_until(lambda before=before: len(share.waiters or ()) == before + 1)
    return consumers


def answered(consumers) -> list:
    return readable(*(consumer.wire.socket for consumer in consumers), timeout_s=0)


def test_each_of_many_gets_its_record(broker):
    jobs = broker.topic()
    consumers = waiting(broker, jobs, 3 * AT_ONCE, max_records=1)
    broker.produce(b"first")
    wait_until(lambda: answered(consumers))
    assert acquired(consumers[0].receive_fetch()) == [0]  # it has waited longest
    assert not answered(consumers[1:])
    for _ in consumers[1:]:
        broker.produce(b"x")
    wait_until(lambda: len(answered(consumers)) == len(consumers) - 1)
    taken = [acquired(consumer.receive_fetch()) for consumer in consumers[1:]]
    assert sorted(taken) == [[offset] for offset in range(1, len(consumers))]


def test_those_who_find_too_little_let_the_others_look(broker):
    jobs = broker.topic()
    waiting(broker, jobs, AT_ONCE + 2, min_bytes=1 << 20)
    [modest] = waiting(broker, jobs, 1)
    broker.produce(b"x")
    assert acquired(modest.receive_fetch()) == [0]


def test_what_one_gives_back_goes_to_one_that_waits(broker):
    jobs = broker.topic()
    broker.produce(b"x")
    first = broker.consumer(jobs)
    assert first.take() == [0]
    consumers = waiting(broker, jobs, 2 * AT_ONCE)
    holder = first
    for _ in range(3):
        holder.close()
        wait_until(lambda: answered(consumers))
        [holder] = [
            consumer for consumer in consumers if consumer.wire.socket in answered(consumers)
        ]
        assert acquired(holder.receive_fetch()) == [0]
        consumers.remove(holder)
    assert holder.acknowledge((0, 0, ACCEPT)) == 0


def test_no_waiter_is_woken_twice_for_the_same_and_none_for_nothing():
    woken = []
    waiters = Waiters()
    wakes = [lambda number=number: woken.append(number) for number in range(AT_ONCE + 4)]
    for wake in wakes:
        waiters.add(wake)
    waiters.wake()
    assert woken == list(range(AT_ONCE))
    waiters.discard(wakes[AT_ONCE])
    waiters.pass_on(lambda: True)
    assert woken[AT_ONCE:] == [AT_ONCE + 1]  # a fetch that has ended is passed over
    waiters.pass_on(lambda: False)
    waiters.pass_on(lambda: True)
    assert len(woken) == AT_ONCE + 1
    waiters.wake()
    assert len(woken) == 2 * AT_ONCE + 1


def test_those_who_have_something_wake_the_next(broker):
    jobs = broker.topic()
    count = 2 * AT_ONCE
    broker.produce(*[b"x"] * count)
    holder = broker.consumer(jobs)
    assert len(holder.take()) == count
    consumers = waiting(broker, jobs, count, max_records=1, share_acquire_mode=1)
    holder.close()  # all of them come at once
    wait_until(lambda: len(answered(consumers)) == count)
    taken = [acquired(consumer.receive_fetch()) for consumer in consumers]
    assert sorted(taken) == [[offset] for offset in range(count)]
