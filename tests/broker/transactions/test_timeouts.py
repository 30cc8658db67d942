"""What time does to transactions and transactional ids."""

import asyncio

import pytest
from support.broker.txn_harness import Producer, TransactionCluster

from headwater.broker.transactions import State, TransactionSettings
from headwater.protocol.error_codes import ErrorCode

DAY_S = 24 * 3600


def test_a_transaction_that_is_not_ended_in_time_is_aborted(cluster, producer):
    producer.send("t", b"x")
    cluster.advance(60)
    assert cluster.state("payments") is State.ONGOING
    cluster.advance(2)
    cluster.until_state("payments", State.COMPLETE_ABORT)
    assert cluster.markers("t") == [(producer.producer_id, producer.epoch + 1, False)]
    assert cluster.broker.transactions.timed_out == 1
    assert producer.send("t", b"y") in (
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
    )
    assert producer.commit() == ErrorCode.PRODUCER_FENCED
    assert producer.abort() == ErrorCode.PRODUCER_FENCED
    assert producer.init() == 0
    assert producer.send("t", b"z") == 0
    assert producer.commit() == 0
    assert cluster.committed("t") == [b"z"]


def test_the_time_counts_from_the_transactions_beginning(cluster, producer):
    cluster.advance(3600)  # no transaction: no hurry
    producer.send("t", b"x")
    cluster.advance(30)
    producer.send("u", b"y")
    cluster.advance(31)
    cluster.until_state("payments", State.COMPLETE_ABORT)


def test_the_time_counts_on_over_a_restart(cluster, producer):
    producer.send("t", b"x")
    cluster.restart(crash=True)
    cluster.advance(62)
    cluster.until_state("payments", State.COMPLETE_ABORT)
    assert cluster.committed("t") == []


def test_a_clock_that_is_set_back_keeps_no_transaction_open(cluster, producer):
    producer.send("t", b"x")
    cluster.clock._start_ms -= DAY_S * 1000
    cluster.advance(2)
    assert cluster.state("payments") is State.ONGOING
    cluster.advance(62)
    cluster.until_state("payments", State.COMPLETE_ABORT)


def test_no_timeout_once_the_end_is_on_its_way(cluster, producer):
    producer.send("t", b"x")
    cluster.files.held = "__transaction_state"

    async def end_late():
        version = 5 if producer.has_kip_890 else 4
        ending = asyncio.ensure_future(cluster.call(producer.end_request(commit=True), version))
        await asyncio.sleep(0)
        cluster.clock.advance(62)
        await cluster.broker.transactions.abort_timed_out()
        await asyncio.sleep(0)
        cluster.files.repair()
        return await ending

    assert cluster.runner.run(asyncio.wait_for(end_late(), 60)).error_code == 0
    assert cluster.broker.transactions.timed_out == 0
    assert cluster.state("payments") is State.COMPLETE_COMMIT
    assert cluster.committed("t") == [b"x"]
    assert State.PREPARE_ABORT not in cluster.stored_states("payments")


def test_a_timeout_while_the_disk_refuses_is_tried_again(cluster, producer):
    producer.send("t", b"x")
    cluster.files.refused = "__transaction_state"
    cluster.advance(62)
    cluster.until(lambda: cluster.broker.transactions.timed_out == 1)
    assert cluster.state("payments") is State.ONGOING
    cluster.files.repair()
    cluster.until(lambda: cluster.clock.advance(1) or cluster.committed("t") == [])
    cluster.until_state("payments", State.COMPLETE_ABORT)


@pytest.mark.parametrize("ends", ["commit", "abort", None])
def test_an_unused_transactional_id_expires(cluster, producer, ends):
    if ends is not None:
        producer.send("t", b"x")
        getattr(producer, ends)()
    cluster.advance(6 * DAY_S)
    assert cluster.broker.transactions.transaction("payments") is not None
    cluster.advance(DAY_S + 3700)
    cluster.until(lambda: cluster.broker.transactions.transaction("payments") is None)
    assert cluster.stored_states("payments")[-1] is None
    assert producer.commit() == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    cluster.restart(crash=True)
    assert cluster.broker.transactions.transaction("payments") is None
    before = producer.producer_id
    assert producer.init() == 0
    assert producer.producer_id != before


def test_an_id_in_use_does_not_expire(tmp_path):
    cluster = TransactionCluster(tmp_path / "log", TransactionSettings(max_timeout_ms=2**31 - 1))
    cluster.topic("t")
    producer = Producer(cluster, "payments")
    producer.init(timeout_ms=2**31 - 1)
    producer.send("t", b"x")
    cluster.advance(8 * DAY_S)
    assert cluster.state("payments") is State.ONGOING
    assert producer.commit() == 0
    cluster.stop()
    cluster.runner.close()


def test_an_id_that_is_being_forgotten_begins_nothing(cluster, producer):
    """After a restart no record would show what it began."""
    cluster.files.held = "__transaction_state"

    async def begin_meanwhile():
        cluster.clock.advance(8 * DAY_S)
        for _ in range(30):
            await asyncio.sleep(0)
        answer = await cluster.call(producer.add_request(("t", 0)), 3)
        cluster.files.repair()
        return answer.results_by_topic_v3_and_below[0].results_by_partition[0]

    answer = cluster.runner.run(asyncio.wait_for(begin_meanwhile(), 60))
    assert answer.partition_error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    cluster.until(lambda: cluster.broker.transactions.transaction("payments") is None)
    assert producer.add(("t", 0)) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
