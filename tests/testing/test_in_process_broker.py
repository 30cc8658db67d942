"""The public in-process broker: its clock, and a start that fails."""

import gc
import socket
import sys
from contextlib import ExitStack

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from support.wire import wait_until

from headwater.settings import BrokerSettings
from headwater.testing import FakeClock, InProcessBroker

WEEK_S = 7 * 24 * 3600


def test_retention_follows_the_brokers_clock(tmp_path):
    clock = FakeClock()
    with InProcessBroker.serving(str(tmp_path), clock=clock) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("orders", b"x", timestamp=clock.now_ms())
        assert producer.flush(60) == 0
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "test"})
        partition = TopicPartition("orders", 0)
        assert consumer.get_watermark_offsets(partition, timeout=60) == (0, 1)

        broker.advance(WEEK_S + 3600)
        wait_until(
            lambda: consumer.get_watermark_offsets(partition, timeout=60) == (1, 1),
            what="the deletion of a record that is older than a week",
        )
        consumer.close()


def test_who_connects_while_it_stops_is_not_left_to_the_garbage_collector(tmp_path, monkeypatch):
    left = []
    monkeypatch.setattr(sys, "unraisablehook", left.append)  # a warning about an open socket
    with ExitStack() as clients, InProcessBroker.serving(str(tmp_path)) as broker:
        host, _, port = broker.bootstrap.rpartition(":")
        for _ in range(300):
            client = socket.socket()
            clients.callback(client.close)
            client.setblocking(False)
            client.connect_ex((host, int(port)))
    gc.collect()
    assert left == []


def test_a_start_that_fails_leaves_the_log_cleanly_closed(tmp_path, caplog):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = BrokerSettings(listen=f"127.0.0.1:{port}")
        with pytest.raises(OSError, match="in use"):
            InProcessBroker(str(tmp_path), settings).start()
    with InProcessBroker.serving(str(tmp_path)):
        pass
    assert "did not close the log" not in caplog.text


def test_an_ipv6_address_is_announced_in_brackets(tmp_path):
    if not socket.has_ipv6:
        pytest.skip("no IPv6 on this machine")
    settings = BrokerSettings(listen="[::1]:0")
    with InProcessBroker.serving(str(tmp_path), settings) as broker:
        assert broker.bootstrap.startswith("[::1]:")
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("orders", b"x")
        assert producer.flush(60) == 0
