"""Records that a group gives up on, and rests between deliveries."""

import asyncio
import struct
import threading
from types import SimpleNamespace

import pytest
from support.broker.queue_harness import (
    ACCEPT,
    REJECT,
    RELEASE,
    acquired,
    acquired_spans,
    queue_broker,
)
from support.wire import batch_of, wait_until

from headwater.broker.queues import dead_letters
from headwater.broker.queues.window import ARCHIVING, Span
from headwater.errors import StorageFailed
from headwater.log import segment as segments_on_disk
from headwater.protocol import records
from headwater.protocol.records import Record
from headwater.testing.clock import FakeClock


@pytest.fixture
def broker(tmp_path):
    with queue_broker(tmp_path) as broker:
        yield broker


def about(letter) -> dict[str, bytes]:
    return {name.removeprefix("headwater.dlq."): value for name, value in letter.headers}


def test_a_rejected_record_is_stored_unchanged_with_the_reason(broker):
    jobs = broker.topic()
    record = Record(0, broker.clock.now_ms() - 5, b"key", b"value", [("trace", b"7")])
    assert broker.wire.produce("jobs", records.build_batch([record])).error_code == 0
    consumer = broker.consumer(jobs)
    assert consumer.take() == [0]
    assert consumer.acknowledge((0, 0, REJECT)) == 0
    wait_until(broker.letters)
    [letter] = broker.letters()
    assert (letter.key, letter.value) == (b"key", b"value")
    assert about(letter) == {
        "trace": b"7",
        "cause": b"rejected by consumer",
        "topic": b"jobs",
        "partition": b"0",
        "offset": b"0",
        "group": b"workers",
        "deliveries": b"1",
        "timestamp": str(record.timestamp_ms).encode(),
    }
    assert consumer.take() == []


def test_a_record_that_is_delivered_too_often_is_given_up(broker):
    jobs = broker.topic(**{"share.delivery.count.limit": "3"})
    broker.produce(b"poison", b"good")
    consumer = broker.consumer(jobs)
    assert consumer.take() == [0, 1]
    assert consumer.acknowledge((0, 1, [RELEASE, ACCEPT])) == 0
    for deliveries in (2, 3):
        assert acquired_spans(consumer.fetch()) == [(0, 0, deliveries)]
        assert consumer.acknowledge((0, 0, RELEASE)) == 0
    wait_until(broker.letters)
    [letter] = broker.letters()
    assert letter.value == b"poison"
    assert about(letter)["cause"] == b"delivery count 3 reached"
    assert consumer.take() == []


def test_a_record_whose_consumers_die_is_given_up(broker):
    jobs = broker.topic(**{"share.delivery.count.limit": "2"})
    broker.produce(b"poison")
    for _ in range(2):
        consumer = broker.consumer(jobs)
        taken = consumer.take()
        consumer.close()
        if not taken:  # the broker has not seen the end of the one before yet
            consumer = broker.consumer(jobs)
            assert consumer.take(max_wait_ms=10_000) == [0]
            consumer.close()
    wait_until(broker.letters)


def test_without_dead_letters_they_are_gone(broker):
    jobs = broker.topic(**{"headwater.share.dlq.enable": "false"})
    broker.produce(b"a", b"b")
    consumer = broker.consumer(jobs)
    assert consumer.take() == [0, 1]
    assert consumer.acknowledge((0, 1, [REJECT, ACCEPT])) == 0
    assert consumer.take() == []
    names = broker.broker.running.broker.store.catalog.topics
    assert "jobs.dlq" not in names


def test_dead_letters_have_none_of_their_own(broker):
    letters = broker.topic("jobs.dlq")
    broker.produce(b"a", topic="jobs.dlq")
    consumer = broker.consumer(letters)
    assert consumer.take() == [0]
    assert consumer.acknowledge((0, 0, REJECT)) == 0
    assert consumer.take() == []
    assert "jobs.dlq.dlq" not in broker.broker.running.broker.store.catalog.topics


def test_many_dead_letters_at_once_keep_their_order_and_partition(broker):
    jobs = broker.topic(partitions=2)
    for number in range(20):
        values = [b"%d-%d" % (number, at) for at in range(50)]
        broker.produce(*values, partition=1)
    consumer = broker.consumer(jobs, partitions=(1,))
    taken = consumer.take(max_records=1000, acknowledge=())
    assert len(taken) == 1000
    answer = consumer.fetch(acknowledge=[(1, 0, 999, REJECT)])
    assert answer.responses[0].partitions[0].acknowledge_error_code == 0

    def copied():
        return broker.wire.fetch("jobs.dlq", 0, partition=1)

    wait_until(lambda: copied().high_watermark == 1000)
    from support.wire import records_in

    values = [record.value for record in records_in(copied().records)]
    assert values == [b"%d-%d" % (n, at) for n in range(20) for at in range(50)]


def test_a_copy_that_fails_is_tried_again_and_the_record_waits(broker, monkeypatch):
    jobs = broker.topic()
    broker.produce(b"a")
    broker.produce(b"b")
    failures = []
    append = dead_letters._append

    async def failing(log, letters):
        if len(failures) < 3:
            failures.append(letters)
            raise StorageFailed("the disk refused a write")
        await append(log, letters)

    monkeypatch.setattr(dead_letters, "_append", failing)
    consumer = broker.consumer(jobs)
    assert consumer.take() == [0, 1]
    assert consumer.acknowledge((0, 1, [REJECT, ACCEPT])) == 0
    for count, seconds in enumerate((1, 2, 4), 1):
        wait_until(lambda count=count: len(failures) == count)
        [status] = broker.broker.running.broker.queues.describe("workers")
        assert (status.start_offset, status.archiving) == (0, 1)
        assert broker.letters() == []
        assert consumer.take() == []
        wait_until(lambda: broker.clock._timers)
        broker.broker.advance(seconds + 0.1)
    wait_until(lambda: len(broker.letters()) == 1)
    queues = broker.broker.running.broker.queues
    wait_until(lambda: queues.describe("workers")[0].start_offset == 2)


def test_a_released_record_rests_and_each_rest_is_longer(broker):
    jobs = broker.topic(
        **{"headwater.share.backoff.ms": "1000", "headwater.share.backoff.max.ms": "3000"}
    )
    broker.produce(b"a")
    one, other = broker.consumer(jobs), broker.consumer(jobs)
    other.take(max_records=0)
    assert one.take() == [0]
    for rest_s in (1, 2, 3):
        assert one.acknowledge((0, 0, RELEASE)) == 0
        assert one.take() == []
        broker.broker.advance(rest_s - 0.1)
        assert one.take() == []
        other.send_fetch(max_wait_ms=20_000)
        broker.broker.advance(0.2)
        assert acquired(other.receive_fetch()) == [0]
        one, other = other, one


def test_a_record_larger_than_a_copy_at_a_time(broker):
    jobs = broker.topic()
    assert broker.wire.produce("jobs", batch_of(b"x" * 900_000)).error_code == 0
    consumer = broker.consumer(jobs)
    assert consumer.take() == [0]
    assert consumer.acknowledge((0, 0, REJECT)) == 0
    wait_until(broker.letters)


def test_who_dies_while_the_last_copy_ends_is_copied_too(monkeypatch):
    copied = []

    async def copy(self, share, death):
        copied.append(death.span.first)

    async def run():
        letters = dead_letters.DeadLetters(SimpleNamespace(clock=FakeClock(0)), None)
        log = SimpleNamespace(deleted=False)
        share = _Hashable(log=log, is_deleted=False, archiving_since_ms=0)
        for offset in range(2):
            letters.bury(share, [dead_letters.Death(Span(offset, offset, ARCHIVING, 1), "why")])
            await asyncio.sleep(0)  # the task ends; what follows on its end has not run yet
        await asyncio.sleep(0)

    monkeypatch.setattr(dead_letters.DeadLetters, "_copy", copy)
    asyncio.run(run())
    assert copied == [0, 1]


class _Hashable(SimpleNamespace):
    __hash__ = object.__hash__


def test_small_records_are_copied_a_bounded_number_at_a_time(broker, monkeypatch):
    monkeypatch.setattr(dead_letters, "COPY_RECORDS", 10)
    jobs = broker.topic()
    values = [b"%d" % number for number in range(35)]
    broker.produce(*values)
    consumer = broker.consumer(jobs)
    assert len(consumer.take()) == 35
    assert consumer.acknowledge((0, 34, REJECT)) == 0
    wait_until(lambda: len(broker.letters()) == 35)
    assert [letter.value for letter in broker.letters()] == values
    log = broker.broker.running.broker.partition("jobs.dlq", 0)
    headers = segments_on_disk.headers(log.storage, log.segments[0], 0)
    assert [header.record_count for _, header in headers] == [10, 10, 10, 5]


def claim(broker, count: int) -> None:
    """Appends a batch that claims `count` records and holds none, as brokers before took them."""
    batch = batch_of(b"x", codec=3)[:61] + b"no lz4 at all"
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">i", batch, 57, count)
    batch[17:21] = struct.pack(">I", records.crc32c(bytes(batch[21:])))
    running = broker.broker.running
    log = running.broker.partition("jobs", 0)
    done = threading.Event()
    running.store.on_loop(
        lambda: log.append(memoryview(batch), records.read_header(batch), lambda _: done.set())
    )
    assert done.wait(60)


def wait_until_archived(broker) -> None:
    def settled() -> bool:
        queues = broker.broker.running.broker.queues
        return [status.archiving for status in queues.describe("workers")] == [0]

    wait_until(settled)


@pytest.mark.parametrize("count", [3, 2**31 - 1])
def test_a_batch_that_cannot_be_read_is_one_letter_whatever_it_claims(broker, count):
    jobs = broker.topic()
    broker.produce(b"before")
    claim(broker, count)
    broker.produce(b"behind")
    consumer = broker.consumer(jobs)

    def rejects_all() -> bool:
        spans = acquired_spans(consumer.fetch(max_records=2**31 - 1))
        if spans:
            assert consumer.acknowledge(*((first, last, REJECT) for first, last, _ in spans)) == 0
        return len(broker.letters()) == 3

    wait_until(rejects_all)
    before, claimed, behind = broker.letters()
    assert (before.value, claimed.value, behind.value) == (b"before", None, b"behind")
    assert about(claimed)["offset"] == b"1"
    assert about(claimed)["last_offset"] == str(count).encode()
    assert "lz4" in about(claimed)["error"].decode()
    assert about(behind)["offset"] == str(count + 1).encode()


@pytest.mark.parametrize("copied", [False, True])
def test_a_claim_that_was_not_archived_before_a_crash_has_one_letter(broker, monkeypatch, copied):
    """At the next start, too, there is no object for each claimed record."""
    jobs = broker.topic()
    claim(broker, 2**31 - 1)

    async def nothing(*_):
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        if copied:
            patched.setattr(broker.broker.running.broker.queues, "buried", nothing)
        else:
            patched.setattr(dead_letters, "_append", nothing)
        consumer = broker.consumer(jobs)
        for first, last, _ in acquired_spans(consumer.fetch(max_records=2**31 - 1)):
            assert consumer.acknowledge((first, last, REJECT)) == 0
        if copied:
            wait_until(broker.letters)
        broker.crash()  # the next one starts without the patch
    broker.start()
    wait_until_archived(broker)
    assert [about(letter)["last_offset"] for letter in broker.letters()] == [b"%d" % (2**31 - 2)]


def test_a_producers_own_header_does_not_stop_the_letters_after_a_crash(broker, monkeypatch):
    """It is named as one of ours, and is no offset."""
    jobs = broker.topic()
    record = Record(0, 1, None, b"x", [("headwater.dlq.last_offset", b"9" * 5000)])
    assert broker.wire.produce("jobs", records.build_batch([record])).error_code == 0

    async def nothing(*_):
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(broker.broker.running.broker.queues, "buried", nothing)
        consumer = broker.consumer(jobs)
        assert consumer.take() == [0]
        assert consumer.acknowledge((0, 0, REJECT)) == 0
        wait_until(broker.letters)
        broker.restart(crash=True)
    wait_until_archived(broker)
    assert len(broker.letters()) == 1
