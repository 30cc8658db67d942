"""Order by key, as a group may ask for it."""

from collections import defaultdict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.broker.queue_harness import ACCEPT, RELEASE, queue_broker
from tiers import examples

from headwater.broker.queues.ordering import KeyOrder, Keys
from headwater.broker.queues.window import ACKNOWLEDGED, Acknowledgement, Rules, Span, Window

BY_KEY = {"headwater.share.order": "key"}
RULES = Rules(30.0, 100, True)


@pytest.fixture
def broker(tmp_path):
    with queue_broker(tmp_path) as broker:
        yield broker


def test_one_record_of_a_key_at_a_time(broker):
    jobs = broker.topic(**BY_KEY)
    broker.produce_keyed([(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"4"), (b"b", b"5")])
    one, other = broker.consumer(jobs), broker.consumer(jobs)
    assert one.take() == [0, 1, 3]
    assert other.take() == []
    assert one.acknowledge((1, 1, ACCEPT)) == 0
    assert other.take() == [4]
    assert one.acknowledge((0, 0, RELEASE)) == 0
    assert other.take() == [0]  # not 2: the one in front of it is not settled
    assert other.acknowledge((0, 0, ACCEPT)) == 0
    assert one.take() == [2]


def test_records_without_a_key_are_free(broker):
    jobs = broker.topic(**BY_KEY)
    broker.produce(b"1", b"2", b"3")
    assert broker.consumer(jobs).take() == [0, 1, 2]


def test_a_fetch_that_waits_gets_the_next_of_a_key(broker):
    jobs = broker.topic(**BY_KEY)
    broker.produce_keyed([(b"a", b"1"), (b"a", b"2")])
    one, other = broker.consumer(jobs), broker.consumer(jobs)
    assert one.take() == [0]
    other.take()
    other.send_fetch(max_wait_ms=20_000)
    assert one.acknowledge((0, 0, ACCEPT)) == 0
    answer = other.receive_fetch()
    assert answer.responses[0].partitions[0].acquired_records[0].first_offset == 1


def test_order_survives_a_restart(broker):
    jobs = broker.topic(**BY_KEY)
    for number in range(10):
        broker.produce_keyed([(b"k%d" % (number % 2), b"%d" % number)])
    consumer = broker.consumer(jobs)
    assert consumer.take() == [0, 1]
    assert consumer.acknowledge((0, 0, ACCEPT)) == 0
    assert consumer.take() == [2]
    broker.restart(crash=True)
    consumer = broker.consumer(jobs)
    assert sorted(consumer.take() + consumer.take()) == [1, 2]


def test_the_window_of_a_group_in_order_is_bounded(broker):
    jobs = broker.topic(**BY_KEY, **{"share.partition.max.record.locks": "100"})
    for _ in range(30):
        broker.produce_keyed([(b"hot", b"x")] * 10)
    consumer = broker.consumer(jobs)
    for offset in range(20):
        assert consumer.take() == [offset]
        assert consumer.acknowledge((offset, offset, ACCEPT)) == 0
    [status] = broker.broker.running.broker.queues.describe("workers")
    assert status.available + status.in_flight <= 100


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    keys=st.lists(st.sampled_from([None, b"a", b"b", b"c"]), min_size=1, max_size=40),
    choices=st.randoms(use_true_random=False),
)
def test_no_two_of_a_key_and_none_before_its_turn(keys, choices):
    window, order = Window(0), KeyOrder(0)
    keys_by_offset = {at: key for at, key in enumerate(keys) if key is not None}
    order.learn(Keys(0, len(keys), keys_by_offset, []))
    held: list[int] = []
    settled: dict[object, list[int]] = defaultdict(list)
    while window.start_offset < len(keys):
        order.offer(window, len(keys), 10)
        for offset in order.free(window, 0.0, 3):
            assert window.acquire(offset, offset, "m", 0.0, 30.0, 1)
            held.append(offset)
        in_flight = [keys[at] for at in held if keys[at] is not None]
        assert len(in_flight) == len(set(in_flight))
        offset = held.pop(choices.randrange(len(held)))
        kind = choices.choice([ACCEPT, ACCEPT, RELEASE])
        if kind == ACCEPT:
            settled[keys[offset]].append(offset)
        window.confirm(
            window.acknowledge("m", [Acknowledgement(offset, offset, [kind])], 0.0, RULES)
        )
    for key, offsets in settled.items():
        assert key is None or offsets == sorted(offsets)


def test_keys_that_are_not_read_yet_hold_their_records_back():
    """A window may be there before its keys: after a start, or when the order is set."""
    window, order = Window(0), KeyOrder(0)
    window.restore(0, [Span(9, 9, ACKNOWLEDGED, 1)])
    order.learn(Keys(0, 3, {0: b"a", 2: b"b"}, []))
    assert order.needs_more(window, 10, 100)
    assert order.free(window, 0.0, 10) == [0, 1, 2]
    order.learn(Keys(3, 10, {3: b"a", 4: b"c"}, []))
    assert order.free(window, 0.0, 10) == [0, 1, 2, 4, 5, 6, 7, 8]


def test_keys_of_many_batches_are_read_before_a_choice_is_made(broker):
    jobs = broker.topic(**BY_KEY)
    for number in range(600):  # more batches than are looked at in one go
        broker.produce_keyed([(b"k%d" % (number if number < 512 else 0), b"x")])
    broker.produce_keyed([(b"last", b"x")])
    consumer = broker.consumer(jobs)
    taken = consumer.take(max_wait_ms=20_000)
    while 600 not in taken:
        taken += consumer.take()
    assert taken == [*range(512), 600]
    assert consumer.acknowledge((600, 600, ACCEPT)) == 0
    broker.restart(crash=True)
    consumer = broker.consumer(jobs)
    taken = consumer.take(max_wait_ms=20_000)
    while more := consumer.take():
        taken += more
    assert taken == list(range(512))
    assert consumer.acknowledge((0, 0, ACCEPT)) == 0
    assert consumer.take() == [512]


def test_the_next_of_a_key_waits_until_the_one_before_is_settled_durably():
    window, order = Window(0), KeyOrder(0)
    order.learn(Keys(0, 2, {0: b"a", 1: b"a"}, []))
    order.offer(window, 2, 10)
    assert window.acquire(0, 0, "m", 0.0, 30.0, 1)
    change = window.acknowledge("m", [Acknowledgement(0, 0, [ACCEPT])], 0.0, RULES)
    assert order.free(window, 0.0, 10) == []
    window.confirm(change)
    assert order.free(window, 0.0, 10) == [1]


def test_keys_of_a_million_settled_records_are_not_retained():
    window, order = Window(0), KeyOrder(0)
    count, step = 100_000, 1_000
    for first in range(0, count, step):
        keys = {offset: b"k%d" % offset for offset in range(first, first + step)}
        order.learn(Keys(first, first + step, keys, []))
        order.offer(window, count, 2_000)
        free = [offset for offset in order.free(window, 0.0, step) if offset]
        for offset in free:
            window.acquire(offset, offset, "m", 0.0, 30.0, 1)
        done = [Acknowledgement(offset, offset, [ACCEPT]) for offset in free]
        window.confirm(window.acknowledge("m", done, 0.0, RULES))
    assert (window.start_offset, window.next_offset) == (0, count)
    assert order.key_count <= 20_000
    assert order.free(window, 0.0, 1) == [0]
