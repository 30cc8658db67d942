"""Crashes and failing disks: a transaction is whole or not there, and never hangs."""

import random

import pytest
from support.broker.txn_harness import Producer, TransactionCluster
from support.wire import wait_until

from headwater.broker.broker import TRANSACTIONS_TOPIC
from headwater.broker.transactions import State
from headwater.broker.transactions.markers import RETRY_S
from headwater.broker.transactions.transaction import LAST_EPOCH
from headwater.protocol.error_codes import ErrorCode


def _stable(cluster, topic, partition=0) -> bool:
    log = cluster.store.partitions[topic, partition]
    return log.last_stable_offset == log.high_watermark


@pytest.mark.parametrize("crash", [True, False])
def test_an_open_transaction_goes_on_after_a_restart(cluster, producer, crash):
    producer.send("t", b"a")
    cluster.restart(crash=crash)
    assert cluster.state("payments") is State.ONGOING
    assert producer.send("t", b"b") == 0
    assert producer.send("u", b"c") == 0
    assert producer.commit() == 0
    cluster.restart(crash=crash)
    assert cluster.state("payments") is State.COMPLETE_COMMIT
    assert cluster.committed("t") == [b"a", b"b"]
    assert cluster.committed("u") == [b"c"]


@pytest.mark.parametrize("crash", [True, False])
def test_a_repeated_end_is_recognised_after_a_restart(cluster, producer, crash):
    producer.send("t", b"a")
    request, version = producer.end_request(commit=True), 5 if producer.has_kip_890 else 4
    first = cluster.ask(request, version)
    cluster.restart(crash=crash)
    again = cluster.ask(request, version)
    assert (again.error_code, again.producer_epoch) == (0, first.producer_epoch)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("crash", [True, False])
def test_a_crash_between_the_decision_and_its_markers(cluster, producer, commit, crash):
    producer.send("t", b"a")
    producer.send("u", b"b")
    cluster.files.refused = "/u-0/"
    assert producer.end(commit=commit) == 0  # the decision is durable
    prepared = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
    assert cluster.state("payments") is prepared
    assert producer.send("t", b"next") == ErrorCode.CONCURRENT_TRANSACTIONS
    assert producer.init() == ErrorCode.CONCURRENT_TRANSACTIONS
    assert producer.end(commit=not commit) == ErrorCode.INVALID_TXN_STATE
    cluster.crash() if crash else cluster.stop()
    cluster.files.repair()
    cluster.start()
    cluster.until_state("payments", State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)
    assert cluster.committed("t") == ([b"a"] if commit else [])
    assert cluster.committed("u") == ([b"b"] if commit else [])
    assert producer.send("u", b"next") == 0
    assert producer.commit() == 0
    assert cluster.committed("u") == ([b"b", b"next"] if commit else [b"next"])


def test_a_crash_while_the_last_epoch_ends_keeps_the_new_producer_id(cluster):
    producer = Producer(cluster, "payments")
    producer.init()
    cluster.broker.transactions.transaction("payments").epoch = producer.epoch = LAST_EPOCH
    producer.send("u", b"a")
    request = producer.end_request(commit=True)
    cluster.files.refused = "/u-0/"
    promised = cluster.ask(request, 5)
    cluster.crash()
    cluster.files.repair()
    cluster.start()
    cluster.until_state("payments", State.COMPLETE_COMMIT)
    again = cluster.ask(request, 5)
    assert (again.producer_id, again.producer_epoch) == (promised.producer_id, 0)
    producer._becomes(promised)
    assert producer.send("u", b"b") == 0
    assert producer.commit() == 0
    assert cluster.committed("u") == [b"a", b"b"]


class TestCrashBetweenDataAndState:
    """The batch is durable; the record that its partition joined the transaction is not."""

    def _lose_the_record(self, cluster, producer, topic):
        cluster.files.refused = TRANSACTIONS_TOPIC
        assert producer.send_only(topic, b"x") == ErrorCode.NOT_ENOUGH_REPLICAS
        cluster.crash()
        cluster.files.repair()
        cluster.start()
        assert cluster.store.partitions[topic, 0].high_watermark == 1

    @pytest.mark.parametrize("is_first", [True, False])
    def test_the_producer_sends_again_and_commits(self, cluster, is_first):
        producer = Producer(cluster, "payments")
        producer.init()
        if not is_first:
            producer.send("u", b"earlier")
        self._lose_the_record(cluster, producer, "t")
        assert cluster.state("payments") is State.ONGOING  # adopted
        assert not _stable(cluster, "t")
        assert producer.send("t", b"x") == 0  # recognized as a duplicate
        assert producer.commit() == 0
        assert cluster.committed("t") == [b"x"]
        assert cluster.committed("u") == ([] if is_first else [b"earlier"])

    def test_the_producer_never_comes_back(self, cluster):
        producer = Producer(cluster, "payments")
        producer.init()
        self._lose_the_record(cluster, producer, "t")
        cluster.advance(59)
        assert not _stable(cluster, "t")
        cluster.advance(3)
        cluster.until_state("payments", State.COMPLETE_ABORT)
        assert _stable(cluster, "t")
        assert cluster.committed("t") == []

    def test_another_producer_comes(self, cluster):
        producer = Producer(cluster, "payments")
        producer.init()
        self._lose_the_record(cluster, producer, "t")
        other = Producer(cluster, "payments")
        assert other.init() == 0
        assert _stable(cluster, "t")
        assert cluster.committed("t") == []
        assert producer.send("t", b"x") == ErrorCode.INVALID_PRODUCER_EPOCH


def test_an_open_transaction_without_a_stored_state_is_aborted_at_the_start(cluster, producer):
    producer.send("t", b"x")
    transaction = cluster.broker.transactions.transaction("payments")
    cluster.runner.run(_write_tombstone(cluster, transaction))
    cluster.restart(crash=True)
    cluster.until(lambda: _stable(cluster, "t"))
    assert cluster.markers("t") == [(producer.producer_id, producer.epoch, False)]
    assert cluster.committed("t") == []


def test_a_partition_that_an_ending_transaction_does_not_name_is_aborted(cluster, producer):
    """It cannot join what is decided."""
    producer.send("t", b"unnamed")
    producer.send("u", b"named")
    cluster.broker.transactions.transaction("payments").partitions.discard(("t", 0))
    cluster.files.refused = "/u-0/"
    assert producer.commit() == 0
    cluster.crash()
    cluster.files.repair()
    cluster.start()
    cluster.until_state("payments", State.COMPLETE_COMMIT)
    cluster.until(lambda: _stable(cluster, "t"))
    assert cluster.committed("t") == []
    assert cluster.committed("u") == [b"named"]


async def _write_tombstone(cluster, transaction):
    await cluster.broker.transactions._forget(transaction)


def test_a_disk_that_refuses_markers_for_a_while(cluster, producer):
    """No marker is lost; who reads committed records waits for it."""
    producer.send("t", b"a")
    producer.send("t", b"b", partition=1)
    cluster.files.refused = "/t-1/"
    assert producer.commit() == 0
    for _ in range(5):
        cluster.advance(RETRY_S)
    assert cluster.committed("t") == [b"a"]
    assert cluster.committed("t", 1) == []
    assert cluster.state("payments") is State.PREPARE_COMMIT
    cluster.files.repair()
    cluster.until(lambda: cluster.clock.advance(RETRY_S) or cluster.committed("t", 1) == [b"b"])
    cluster.until_state("payments", State.COMPLETE_COMMIT)
    assert len(cluster.markers("t")) == len(cluster.markers("t", 1)) == 1


def test_a_full_disk_refuses_what_it_cannot_keep_and_recovers(cluster, producer):
    producer.send("t", b"a")
    cluster.files.room_bytes = 0
    refusals = {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_ENOUGH_REPLICAS}
    refusals.add(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert producer.send("u", b"b") in refusals
    assert producer.commit() == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert producer.init(recover=True) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert cluster.state("payments") is State.ONGOING
    assert Producer(cluster, "other").init() == ErrorCode.COORDINATOR_NOT_AVAILABLE
    cluster.files.repair()
    assert Producer(cluster, "other").init() == 0
    assert producer.send("u", b"b") == 0
    assert producer.commit() == 0
    assert cluster.committed("t") == [b"a"]
    assert cluster.committed("u") == [b"b"]


def test_a_batch_is_not_acknowledged_before_its_partition_has_joined(cluster):
    producer = Producer(cluster, "payments")
    producer.init()
    cluster.files.refused = TRANSACTIONS_TOPIC
    assert producer.send("t", b"x") == ErrorCode.NOT_ENOUGH_REPLICAS
    assert cluster.store.partitions["t", 0].high_watermark == 1  # but it is there
    cluster.files.repair()
    assert producer.send("t", b"x") == 0  # sent again: not twice
    assert cluster.stored_states("payments") == [State.EMPTY, State.ONGOING]
    assert producer.commit() == 0
    assert cluster.committed("t") == [b"x"]


@pytest.mark.parametrize("seed", range(8))
def test_power_cuts_at_any_point(tmp_path, seed):
    """After each cut: what was acknowledged as committed is there, and nothing is half there."""
    rng = random.Random(seed)
    cluster = TransactionCluster(tmp_path / "log")
    cluster.topic("t", 2)
    committed: list[bytes] = []
    unsure: list[bytes] = []
    for round_ in range(4):
        producer = Producer(cluster, "payments", has_kip_890=rng.random() < 0.5)
        cluster.files.die(after=rng.randrange(10, 120)) if round_ < 3 else None
        try:
            if producer.init() == 0:
                for n in range(8):
                    value = f"{round_}.{n}".encode()
                    codes = [producer.send("t", value, partition=p) for p in (0, 1)]
                    if any(codes):
                        break
                    unsure.append(value)
                    if rng.random() < 0.3:
                        if producer.abort():
                            break
                        unsure.remove(value)
                    elif producer.commit() == 0:
                        unsure.remove(value)
                        committed.append(value)
                    else:
                        break
        except TimeoutError:
            pass
        cluster.crash()
        cluster.files.power_cut(rng)
        cluster.files.revive()
        cluster.start()
        last = Producer(cluster, "payments")
        wait_until(lambda last=last: last.init() == 0)  # what was being ended has ended
        seen = [cluster.committed("t", partition) for partition in (0, 1)]
        assert seen[0] == seen[1]
        assert [value for value in seen[0] if value not in unsure] == committed
        committed = seen[0]
        unsure.clear()
    cluster.stop()
    cluster.runner.close()
