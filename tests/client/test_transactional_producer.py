"""Our producer against our broker and Apache Kafka, read back by librdkafka."""

import random
import re
import threading
import time

import pytest
from support.client.cutting_proxy import cutting
from support.client.written import (
    ANONYMOUS,
    batch,
    committed,
    committed_exactly,
    eventually_committed,
    messages,
    new_topic,
    producer,
    write_somehow,
)
from support.clients.broker_process import BrokerProcess
from tiers import in_full, representative

from headwater.broker.api import api_versions
from headwater.client import cluster
from headwater.client.writing.batches import BatchBuilder
from headwater.client.writing.transactions import TransactionalProducer
from headwater.errors import BrokerUnreachable, Fenced, RequestRefused
from headwater.protocol import compression
from headwater.testing import FakeClock, InProcessBroker


def test_what_is_committed_is_seen_and_what_is_aborted_is_not(address: str) -> None:
    topic = new_topic(address, 2)
    with producer(address) as writer:
        for number in range(6):
            value = b"%d" % number
            writer.send({(topic, 0): [batch(value)], (topic, 1): [batch(value), batch(value)]})
            writer.send({(topic, 0): [batch(value)]})
            if number % 3 == 1:
                writer.abort()
            else:
                writer.commit()
    for partition in (0, 1):
        expected = [b"%d" % n for n in (0, 0, 2, 2, 3, 3, 5, 5)]
        eventually_committed(address, topic, expected, partition)


def test_nothing_sent_is_nothing_to_end(address: str) -> None:
    topic = new_topic(address, 2)
    with producer(address) as writer:
        writer.commit()
        writer.send({(topic, 0): [batch()], (topic, 1): []})
        writer.commit()
        writer.abort()
        writer.send({(topic, 0): [batch(), batch(b"v"), batch()]})
        writer.commit()
    eventually_committed(address, topic, [b"v"])


def test_a_transaction_that_is_open_for_too_long_is_lost(tmp_path) -> None:
    with InProcessBroker.serving(str(tmp_path), clock=FakeClock()) as broker:
        topic = new_topic(broker.bootstrap, message_timestamp_type="LogAppendTime")
        with producer(broker.bootstrap, transaction_timeout_ms=60_000) as writer:
            writer.send({(topic, 0): [batch(b"too late")]})
            broker.advance(120)
            with pytest.raises(Fenced):
                writer.commit()
            writer.fence()
            writer.send({(topic, 0): [batch(b"in time")]})
            writer.commit()
        assert committed(broker.bootstrap, topic) == [b"in time"]


@representative
def test_a_second_producer_fences_the_first_and_aborts_what_it_left(address: str) -> None:
    topic = new_topic(address)
    with producer(address, "fenced") as first:
        first.send({(topic, 0): [batch(b"left open")]})
        with producer(address, "fenced") as second:
            with pytest.raises(Fenced):
                first.commit()
            second.send({(topic, 0): [batch(b"second")]})
            with pytest.raises(Fenced, match="fenced"):  # a zombie whose send comes late
                first.send({(topic, 0): [batch(b"zombie")]})
            second.commit()
    eventually_committed(address, topic, [b"second"])


def test_a_zombie_that_has_nothing_open_is_fenced_too(address: str) -> None:
    topic = new_topic(address)
    with producer(address, "idle") as first, producer(address, "idle") as second:
        second.send({(topic, 0): [batch(b"second")]})
        second.commit()
        with pytest.raises(Fenced):
            first.send({(topic, 0): [batch(b"zombie")]})
    eventually_committed(address, topic, [b"second"])


@pytest.mark.parametrize("name", compression.NAMES)
def test_every_compression_is_read_by_others(address: str, name: str) -> None:
    topic = new_topic(address)
    with producer(address, compression=name) as writer:
        builder = BatchBuilder()
        for n in range(1_000):
            headers = [("n", b"%d" % n), ("none", None)] if n % 10 == 0 else ()
            assert builder.append(
                b"key-%d" % n, b"value-%d" % n * 9, headers, 1_700_000_000_000 + n
            )
        writer.send({(topic, 0): [builder]})
        writer.commit()
        writer.send({(topic, 0): [batch(None)]})
        writer.commit()
    eventually_committed(address, topic, [*(b"value-%d" % n * 9 for n in range(1_000)), None])
    found = messages(address, topic)
    assert found[10].headers() == [("n", b"10"), ("none", None)]
    assert found[999].key() == b"key-999"
    assert found[999].timestamp()[1] == 1_700_000_000_999


def test_much_at_once_goes_out_in_order(address: str) -> None:
    """More requests than may be in flight, several batches in each."""
    topic = new_topic(address, 3)
    rng = random.Random(3)
    values = [rng.randbytes(200) * 5 for _ in range(500)]
    sent: dict[tuple[str, int], list[BatchBuilder]] = {}
    for partition, count in enumerate((30, 9, 1)):
        sent[topic, partition] = [batch(*values) for _ in range(count)]
    with producer(address, compression="none") as writer:
        writer.send(sent)
        writer.send({(topic, 1): [batch(b"last")]})
        writer.commit()
    eventually_committed(address, topic, values * 30, 0)
    eventually_committed(address, topic, [*values * 9, b"last"], 1)
    eventually_committed(address, topic, values, 2)


def test_fifty_partitions_in_one_transaction(address: str) -> None:
    topic = new_topic(address, 50)
    with producer(address) as writer:
        assert writer.partitions(topic) == 50
        for number in range(3):
            writer.send({(topic, p): [batch(b"%d.%d" % (p, number))] for p in range(50)})
            writer.commit()
    for partition in (0, 17, 49):
        expected = [b"%d.%d" % (partition, number) for number in range(3)]
        eventually_committed(address, topic, expected, partition)


def test_a_record_that_is_too_large_is_named(address: str) -> None:
    topic = new_topic(address, max_message_bytes="10000")
    with producer(address) as writer:
        writer.send({(topic, 0): [batch(b"compressible" * 10_000)]})
        writer.commit()
        with pytest.raises(RequestRefused, match=topic) as refused:
            writer.send({(topic, 0): [batch(random.Random(1).randbytes(20_000))]})
        assert re.search(r" 20[01]\d\d bytes", refused.value.what)
        assert "max.message.bytes" in refused.value.hint
        writer.abort()
        writer.send({(topic, 0): [batch(b"next")]})
        writer.commit()
    eventually_committed(address, topic, [b"compressible" * 10_000, b"next"])


def test_no_such_topic(headwater_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_UNKNOWN_TOPIC_PATIENCE_S", 0.2)
    with (
        producer(headwater_address) as writer,
        pytest.raises(RequestRefused, match="no topic nowhere"),
    ):
        writer.partitions("nowhere")


def test_no_such_partition(address: str) -> None:
    topic = new_topic(address)
    with producer(address) as writer:
        with pytest.raises(RequestRefused, match="no partition 7"):
            writer.send({(topic, 7): [batch(b"v")]})
        writer.abort()
        writer.send({(topic, 0): [batch(b"v")]})
        writer.commit()
    eventually_committed(address, topic, [b"v"])


@pytest.mark.parametrize("seed", [1, *in_full(2)])
def test_connections_cut_at_random_lose_and_repeat_nothing(
    address: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(address, 3)
    expected: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    rng = random.Random(seed)
    with cutting(monkeypatch, seed, odds=0.06) as proxy, producer(address) as writer:
        for number in range(60):
            write_somehow(writer, topic, rng, number, expected)
    assert proxy.cuts > 10
    committed_exactly(address, topic, expected)


def test_a_broker_that_is_killed_loses_and_repeats_nothing(tmp_path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        topic = new_topic(broker.address, 3)
        expected: dict[int, list[bytes]] = {0: [], 1: [], 2: []}

        def kill_a_few_times() -> None:
            """And no more: on a slow machine no transaction would fit between two kills."""
            rng = random.Random(5)
            for _ in range(4):
                time.sleep(0.05 + rng.random() * 0.2)  # at any moment
                broker.kill()
                broker.start()

        with producer(broker.address) as writer:
            killer = threading.Thread(target=kill_a_few_times)
            killer.start()
            try:
                rng = random.Random(6)
                number = 0
                while killer.is_alive():
                    write_somehow(writer, topic, rng, number, expected)
                    number += 1
            finally:
                killer.join()
            write_somehow(writer, topic, rng, number, expected)
        committed_exactly(broker.address, topic, expected)


@pytest.fixture
def older_address(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """Of a cluster whose transactions are those from before KIP-890."""
    monkeypatch.delitem(api_versions._FEATURES, "transaction.version")
    with InProcessBroker.serving(str(tmp_path)) as broker:
        yield broker.bootstrap


def test_transactions_from_before_kip_890(older_address: str, monkeypatch) -> None:
    topic = new_topic(older_address, 3)
    expected: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    rng = random.Random(8)
    with producer(older_address, "older") as writer:
        assert not writer._has_own_epoch
        for number in range(20):
            write_somehow(writer, topic, rng, number, expected)
    with cutting(monkeypatch, 9, odds=0.05), producer(older_address, "older") as writer:
        for number in range(20, 40):
            write_somehow(writer, topic, rng, number, expected)
    with (
        producer(older_address, "older") as zombie,
        producer(older_address, "older"),
        pytest.raises(Fenced),
    ):
        zombie.send({(topic, 0): [batch(b"zombie")]})
    committed_exactly(older_address, topic, expected)


def test_before_kip_890_an_abort_after_an_error_leaves_the_producer_of_use(older_address) -> None:
    topic = new_topic(older_address, max_message_bytes="10000")
    with producer(older_address) as writer:
        writer.send({(topic, 0): [batch(b"first")]})
        writer.commit()
        with pytest.raises(RequestRefused):
            writer.send({(topic, 0): [batch(b"a"), batch(random.Random(1).randbytes(20_000))]})
        writer.abort()
        writer.send({(topic, 0): [batch(b"next")]})
        writer.commit()
    assert committed(older_address, topic) == [b"first", b"next"]


def test_a_broker_that_is_away_is_waited_for_until_the_timeout(tmp_path) -> None:
    with InProcessBroker.serving(str(tmp_path)) as broker:
        topic = new_topic(broker.bootstrap)
        writer = producer(broker.bootstrap, patience_s=0.5)
        writer.send({(topic, 0): [batch(b"v")]})
    began_s = time.monotonic()
    with pytest.raises(BrokerUnreachable, match=r"0\.5 s"):
        writer.commit()
    assert time.monotonic() - began_s < 5
    with pytest.raises(BrokerUnreachable):
        TransactionalProducer(broker.bootstrap, "x", login=ANONYMOUS, patience_s=0.2).fence()
    writer.close()


def test_an_epoch_for_each_transaction_until_they_are_used_up(tmp_path, monkeypatch) -> None:
    with InProcessBroker.serving(str(tmp_path)) as broker:
        topic = new_topic(broker.bootstrap, 3)
        expected: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
        with (
            producer(broker.bootstrap, "many") as writer,
            cutting(monkeypatch, 3, odds=0.05) as proxy,
        ):
            transaction = broker.running.broker.transactions.transaction("many")
            transaction.epoch = writer._epoch = 32_750  # as after so many transactions
            first_id = writer._producer_id
            for connection in list(writer._cluster._connections.values()):
                writer._cluster.lose(connection)  # so that the proxy is in the way
            rng = random.Random(4)
            for number in range(40):
                write_somehow(writer, topic, rng, number, expected)
            assert writer._producer_id != first_id
            assert writer._epoch < 40
        assert proxy.cuts > 5
        committed_exactly(broker.bootstrap, topic, expected)
