"""What a share group has done survives a stop and a crash."""

import asyncio
from uuid import UUID

import pytest
from support.broker.queue_harness import (
    ACCEPT,
    GROUP,
    REJECT,
    RELEASE,
    acquired,
    acquired_spans,
    queue_broker,
)
from support.wire import wait_until

from headwater.broker.internal_topics.records import partition_for
from headwater.broker.queues import dead_letters, state_log
from headwater.broker.queues.queues import Queues
from headwater.broker.queues.share_partition import SharePartition
from headwater.broker.queues.window import ARCHIVING, AVAILABLE, Acknowledgement, Rules, Window
from headwater.errors import StorageFailed


@pytest.fixture
def broker(tmp_path):
    with queue_broker(tmp_path) as broker:
        yield broker


@pytest.mark.parametrize("crash", [False, True])
def test_acknowledged_records_never_come_again_and_others_do(broker, crash):
    jobs = broker.topic()
    broker.produce(*[b"x"] * 10)
    consumer = broker.consumer(jobs)
    assert len(consumer.take()) == 10
    assert consumer.acknowledge((0, 0, ACCEPT), (3, 5, ACCEPT), (7, 7, RELEASE)) == 0
    broker.restart(crash=crash)
    consumer = broker.consumer(jobs)
    spans = acquired_spans(consumer.fetch())
    expected = [1, 2, 6, 7, 8, 9]
    assert [at for first, last, _ in spans for at in range(first, last + 1)] == expected
    deliveries = {at: n for first, last, n in spans for at in range(first, last + 1)}
    assert deliveries[7] == 2
    assert consumer.acknowledge(*[(at, at, ACCEPT) for at in expected]) == 0
    broker.restart(crash=crash)
    assert broker.consumer(jobs).take() == []


def test_deliveries_add_up_over_crashes(broker):
    jobs = broker.topic()
    broker.produce(b"poison")
    for count in range(1, 5):
        consumer = broker.consumer(jobs)
        assert acquired_spans(consumer.fetch()) == [(0, 0, count)]
        assert consumer.acknowledge((0, 0, RELEASE)) == 0
        broker.restart(crash=True)
    consumer = broker.consumer(jobs)
    assert consumer.take() == [0]
    assert consumer.acknowledge((0, 0, RELEASE)) == 0
    wait_until(broker.letters)


def test_latest_is_decided_once(broker):
    """Else records that come while the broker restarts would be passed over."""
    jobs = broker.topic(**{"share.auto.offset.reset": "latest"})
    broker.produce(b"before")
    assert broker.consumer(jobs).take() == []
    broker.produce(b"after")
    broker.restart(crash=True)
    assert broker.consumer(jobs).take() == [1]


@pytest.mark.parametrize("step", ["intent", "copy", "archive"])
def test_a_dead_letter_is_written_once_wherever_a_crash_comes(broker, monkeypatch, step):
    """Steps: the intent is durable, the copy is durable, and the end of it."""
    jobs = broker.topic()
    broker.produce(b"a", b"b")

    async def never(*_):
        raise StorageFailed("stopped here")

    if step == "intent":
        monkeypatch.setattr(dead_letters, "_append", never)
    elif step == "copy":
        monkeypatch.setattr(Queues, "buried", never)
    consumer = broker.consumer(jobs)
    assert consumer.take() == [0, 1]
    assert consumer.acknowledge((0, 1, REJECT)) == 0
    if step != "intent":
        wait_until(lambda: len(broker.letters()) == 2)
    monkeypatch.undo()
    broker.restart(crash=True)
    queues = broker.broker.running.broker.queues
    wait_until(lambda: [status.start_offset for status in queues.describe(GROUP)] == [2])
    assert [letter.value for letter in broker.letters()] == [b"a", b"b"]
    assert broker.consumer(jobs).take() == []


def test_a_failed_archive_does_not_copy_twice(broker, monkeypatch):
    jobs = broker.topic()
    broker.produce(b"a")
    buried, calls = Queues.buried, []

    async def failing(self, share, first, last):
        calls.append(first)
        if len(calls) < 3:
            raise StorageFailed("not yet")
        await buried(self, share, first, last)

    monkeypatch.setattr(Queues, "buried", failing)
    consumer = broker.consumer(jobs)
    assert consumer.take() == [0]
    assert consumer.acknowledge((0, 0, REJECT)) == 0
    queues = broker.broker.running.broker.queues
    for count in (1, 2):
        wait_until(lambda count=count: len(calls) == count)
        wait_until(lambda: broker.clock._timers)
        broker.broker.advance(5)
    wait_until(lambda: queues.describe(GROUP)[0].start_offset == 1)
    assert len(broker.letters()) == 1


def test_the_state_log_is_rewritten_and_stays_small(broker, monkeypatch):
    monkeypatch.setattr(state_log, "UPDATES_KEPT", 20)
    jobs = broker.topic()
    slow = broker.consumer(jobs)
    broker.produce(b"slow")
    assert slow.take() == [0]
    consumer = broker.consumer(jobs)
    for number in range(1, 120):
        broker.produce(b"x")
        assert consumer.take() == [number]
        assert consumer.acknowledge((number, number, ACCEPT)) == 0
    store = broker.broker.running.broker.store
    logs = [log for (topic, _), log in store.partitions.items() if topic == state_log.STATE_TOPIC]
    [used] = [log for log in logs if log.high_watermark]
    wait_until(lambda: used.log_start_offset > 60)
    broker.restart(crash=True)
    assert broker.consumer(jobs).take() == [0]


def test_a_snapshot_counts_the_deliveries_that_have_ended():
    window = Window(0)
    rules = Rules(30.0, 5, True)
    window.acquire(0, 3, "m", 0.0, 30.0, 4)
    window.acknowledge("m", [Acknowledgement(1, 2, [RELEASE])], 0.0, rules)
    window.acquire(2, 2, "m", 0.0, 30.0, 1)
    window.acknowledge("m", [Acknowledgement(3, 3, [REJECT])], 0.0, rules)
    share = SharePartition("g", UUID(int=1), 0, None)
    share.window = window
    stored = state_log.snapshot_of(share, 0, 0).value
    assert [
        (batch.first_offset, batch.delivery_state, batch.delivery_count)
        for batch in stored.state_batches
    ] == [(0, AVAILABLE, 0), (1, AVAILABLE, 1), (2, AVAILABLE, 1), (3, ARCHIVING, 1)]


def test_a_group_can_begin_elsewhere_or_be_forgotten(broker):
    jobs = broker.topic()
    broker.produce(b"a", b"b", b"c")
    consumer = broker.consumer(jobs)
    assert consumer.take() == [0, 1, 2]
    assert consumer.acknowledge((0, 2, ACCEPT)) == 0

    def run(work):
        return asyncio.run_coroutine_threadsafe(work, broker.broker._loop).result(60)

    def queues():
        return broker.broker.running.broker.queues

    assert queues().start_offset(GROUP, jobs, 0) == 3
    assert queues().lag(GROUP, jobs, 0) == 0
    run(queues().alter(GROUP, {(jobs, 0): 1}))
    assert queues().start_offset(GROUP, jobs, 0) == 1
    assert queues().lag(GROUP, jobs, 0) == 2
    broker.restart(crash=True)
    assert broker.consumer(jobs).take() == [1, 2]
    run(queues().delete(GROUP))
    assert queues().groups_with_state() == []
    assert queues().start_offset(GROUP, jobs, 0) is None
    broker.restart(crash=True)
    assert queues().groups_with_state() == []
    run(queues().initialize(GROUP, {(jobs, 0): 2}))
    run(queues().initialize(GROUP, {(jobs, 0): 0}))  # it has a state, which does not change
    broker.restart(crash=True)
    wait_until(lambda: queues().groups_with_state() == [GROUP])
    assert broker.consumer(jobs).take() == [2]


def test_a_disk_that_refuses_leaves_the_records_with_their_consumer(tmp_path):
    from support.broker.queue_harness import QueueBroker

    from headwater.log.disk.files import Files
    from headwater.protocol.error_codes import ErrorCode

    class Full(Files):
        is_full = False

        def pwritev(self, fd, views, position):
            if self.is_full:
                raise OSError(28, "No space left on device")
            super().pwritev(fd, views, position)

    files = Full()
    broker = QueueBroker(tmp_path, files=files)
    try:
        jobs = broker.topic()
        broker.produce(b"a", b"b")
        consumer = broker.consumer(jobs)
        assert consumer.take() == [0, 1]
        files.is_full = True
        code = consumer.acknowledge((0, 1, [ACCEPT, REJECT]))
        assert code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert consumer.take() == []
        files.is_full = False
        assert consumer.acknowledge((0, 1, ACCEPT)) == 0
        assert consumer.take() == []
    finally:
        broker.close()


def test_a_record_that_is_rejected_again_has_another_dead_letter(broker, monkeypatch):
    """What the last process has copied is looked for once, and only for what it had begun."""
    jobs = broker.topic()
    broker.produce(b"a", b"b", b"c")

    async def never(*_):
        raise StorageFailed("stopped here")

    scans, copied = [], dead_letters._copied

    def counting(*args):
        scans.append(args)
        return copied(*args)

    monkeypatch.setattr(Queues, "buried", never)
    consumer = broker.consumer(jobs)
    assert consumer.take() == [0, 1, 2]
    assert consumer.acknowledge((0, 0, REJECT), (2, 2, REJECT)) == 0
    wait_until(broker.letters)
    monkeypatch.undo()
    monkeypatch.setattr(dead_letters, "_copied", counting)
    broker.restart(crash=True)
    queues = broker.broker.running.broker.queues
    wait_until(lambda: [status.archiving for status in queues.describe(GROUP)] == [0])
    assert sorted(letter.value for letter in broker.letters()) == [b"a", b"c"]
    assert len(scans) == 1
    work = queues.alter(GROUP, {(jobs, 0): 0})
    asyncio.run_coroutine_threadsafe(work, broker.broker._loop).result(60)
    consumer = broker.consumer(jobs)
    assert consumer.take() == [0, 1, 2]
    assert consumer.acknowledge((0, 0, REJECT)) == 0
    wait_until(lambda: len(broker.letters()) == 3)
    assert len(scans) == 1


def test_a_fetch_that_waits_ends_when_the_state_of_its_group_is_deleted(broker):
    jobs = broker.topic()
    consumer = broker.consumer(jobs)
    assert consumer.take() == []
    consumer.send_fetch(max_wait_ms=300_000)
    queues = broker.broker.running.broker.queues
    share = queues._groups[GROUP][jobs, 0]
    wait_until(lambda: share.waiters)
    asyncio.run_coroutine_threadsafe(queues.delete(GROUP), broker.broker._loop).result(60)
    assert acquired(consumer.receive_fetch()) == []
    assert queues.describe(GROUP) == []


def test_a_rewritten_state_log_does_not_bring_back_what_is_being_deleted(broker):
    jobs = broker.topic()
    broker.produce(b"a")
    consumer = broker.consumer(jobs)
    assert consumer.take() == [0]
    queues = broker.broker.running.broker.queues

    async def race():
        number = partition_for(GROUP, state_log.STATE_PARTITIONS)
        alive = queues._alive(number)
        deletion = asyncio.create_task(queues.delete(GROUP))
        await asyncio.sleep(0)  # its record is on its way to the disk
        queues.release(GROUP, consumer.member_id)
        await queues._log._renew(number, alive)
        await deletion

    asyncio.run_coroutine_threadsafe(race(), broker.broker._loop).result(60)
    broker.restart(crash=True)
    assert broker.broker.running.broker.queues.groups_with_state() == []
