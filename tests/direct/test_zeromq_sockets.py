"""ZeroMQ sockets in and out of topics, with pyzmq's own sockets as peers."""

import sys
import time

import pytest
import zmq
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families
from support.direct.topic_reading import TIMEOUT_S, wait_until

from headwater.client.group_offsets import GroupOffsets
from headwater.direct.publishing import TopicWriter
from headwater.direct.service import DirectMessaging
from headwater.direct.settings import StatsdSettings, ZeroMqSettings
from headwater.direct.zeromq.inbound import Inbound
from headwater.errors import ConfigError, HeadwaterError, MissingExtra
from headwater.settings import ClientSettings

OFF = StatsdSettings()


@pytest.fixture
def context():
    with zmq.Context() as context:
        context.setsockopt(zmq.LINGER, 0)
        context.setsockopt(zmq.RCVTIMEO, int(TIMEOUT_S * 1000))
        context.setsockopt(zmq.SNDTIMEO, int(TIMEOUT_S * 1000))
        yield context


@pytest.fixture
def run(broker):
    """Starts an end of a topic; all are stopped at the end of the test."""
    started = []

    def start(socket, topic, **options):
        options = {"address": "tcp://127.0.0.1:*", "bind": True, **options}
        name = options.pop("name", f"z{len(started)}")
        settings = ZeroMqSettings(name=name, socket=socket, topic=topic, **options)
        direct = DirectMessaging(broker, ClientSettings(), OFF, {name: settings})
        direct.start()
        started.append(direct)
        return direct, direct.zeromq[name]

    yield start
    for direct in started:
        direct.stop()


def produce(broker, topic, values, keys=None):
    producer = Producer({"bootstrap.servers": broker})
    for number, value in enumerate(values):
        producer.produce(topic, value, keys[number] if keys else None)
    assert producer.flush(TIMEOUT_S) == 0


def test_pull_into_a_topic(run, context, topic, reading):
    _, inbound = run("pull", topic)
    with context.socket(zmq.PUSH) as push:
        push.connect(inbound.peer.address)
        push.send(b"value")
        push.send_multipart([b"key", b"value"])
        push.send_multipart([b"", b"no key"])
        push.send_multipart([b"key", b"a", b"b", b"\xff\x00"])
        records = reading(topic).await_count(4).records
    assert [(record.key(), record.value()) for record in records] == [
        (None, b"value"),
        (b"key", b"value"),
        (None, b"no key"),
        (b"key", b"\xff\x00"),
    ]
    assert records[3].headers() == [("zeromq.frame.1", b"a"), ("zeromq.frame.2", b"b")]


def test_what_has_arrived_is_written_at_the_end(run, context, topic, reading):
    direct, inbound = run("pull", topic)
    with context.socket(zmq.PUSH) as push:
        push.connect(inbound.peer.address)
        for number in range(2000):
            push.send(b"%d" % number)
        wait_until(lambda: inbound.messages > 0)
        direct.stop()
        taken = inbound.messages
    assert reading(topic).await_count(taken).values == [b"%d" % number for number in range(taken)]


def test_subscribed_messages_into_a_topic(run, context, topic, reading):
    with context.socket(zmq.XPUB) as publisher:  # which sees subscriptions
        publisher.bind("tcp://127.0.0.1:*")
        address = publisher.getsockopt(zmq.LAST_ENDPOINT).decode()
        run("sub", topic, address=address, bind=False, subscribe="prices.")
        assert publisher.recv() == b"\x01prices."
        publisher.send_multipart([b"prices.oil", b"70"])
        publisher.send_multipart([b"news", b"..."])
        publisher.send_multipart([b"prices.tin", b"30"])
        records = reading(topic).await_count(2).records
    assert [(record.key(), record.value()) for record in records] == [
        (b"prices.oil", b"70"),
        (b"prices.tin", b"30"),
    ]


def test_peers_wait_while_the_broker_is_behind(context, topic):
    """A broker that is away takes nothing; so do we, soon, and then the peer's sends time out."""
    settings = ZeroMqSettings(
        name="slow", socket="pull", topic=topic, address="tcp://127.0.0.1:*", bind=True,
        high_water_mark=10,
    )  # fmt: skip
    writer = TopicWriter({"bootstrap.servers": "127.0.0.1:1"}, topic, queue_bytes=100_000)
    inbound = Inbound(settings, writer)
    inbound.start()
    try:
        with context.socket(zmq.PUSH) as push:
            push.setsockopt(zmq.SNDHWM, 10)
            push.setsockopt(zmq.SNDTIMEO, 500)
            push.connect(inbound.peer.address)
            with pytest.raises(zmq.Again):
                for _ in range(10_000):
                    push.send(b"x" * 10_000)
        assert inbound.counts["waits"] == 1
        assert inbound.messages < 20  # 100 kB, and one that waits
    finally:
        inbound.stop(0.1)


def test_push_goes_on_where_it_was(run, context, broker, topic):
    produce(broker, topic, [b"%d" % number for number in range(100)], keys=[b"k"] * 100)
    with context.socket(zmq.PULL) as pull:
        pull.bind("tcp://127.0.0.1:*")
        address = pull.getsockopt(zmq.LAST_ENDPOINT).decode()
        options = {"address": address, "bind": False, "name": topic}
        direct, _ = run("push", topic, **options)
        assert [pull.recv_multipart() for _ in range(100)] == [
            [b"k", b"%d" % number] for number in range(100)
        ]
        direct.stop()
        with GroupOffsets(broker, ClientSettings(), f"zeromq-{topic}") as offsets:
            assert offsets.committed([(topic, 0)]) == {(topic, 0): 100}
        produce(broker, topic, [b"next"])
        run("push", topic, **options, with_key=False)
        assert pull.recv_multipart() == [b"next"]


def test_what_push_had_not_delivered_for_sure_is_sent_again(run, context, broker, topic):
    """Its last messages are not committed while they may be in its queues, so a kill loses none."""
    produce(broker, topic, [b"%d" % number for number in range(50)])
    with context.socket(zmq.PULL) as pull:
        pull.bind("tcp://127.0.0.1:*")
        address = pull.getsockopt(zmq.LAST_ENDPOINT).decode()
        _, outbound = run(
            "push", topic, address=address, bind=False, name=topic, high_water_mark=20
        )
        assert [pull.recv_multipart()[1] for _ in range(50)] == [b"%d" % n for n in range(50)]
        with GroupOffsets(broker, ClientSettings(), outbound.group) as offsets:
            wait_until(lambda: offsets.committed([(topic, 0)]))
            assert offsets.committed([(topic, 0)]) == {(topic, 0): 30}


def test_pub_sends_what_is_new(run, context, broker, topic, admin):
    produce(broker, topic, [b"old"])
    _, outbound = run("pub", topic)
    with context.socket(zmq.SUB) as subscriber:
        subscriber.connect(outbound.peer.address)
        subscriber.setsockopt(zmq.SUBSCRIBE, b"key")
        subscriber.setsockopt(zmq.RCVTIMEO, 50)
        received = []

        def has_arrived():
            produce(broker, topic, [b"new", b"other"], keys=[b"key", b"no"])
            try:
                received.append(subscriber.recv_multipart())
            except zmq.Again:
                return False
            return True

        wait_until(has_arrived)  # a subscription takes a moment to arrive
        assert received == [[b"key", b"new"]]
    assert outbound.counts["drops"] == 0


def test_what_a_slow_subscriber_does_not_get_is_counted(run, context, broker, topic):
    _, outbound = run("pub", topic, high_water_mark=5, max_message_bytes=1 << 20)
    with context.socket(zmq.SUB) as slow, context.socket(zmq.SUB) as quick:
        slow.setsockopt(zmq.RCVHWM, 1)
        slow.setsockopt(zmq.RCVBUF, 4096)
        for subscriber in (slow, quick):
            subscriber.setsockopt(zmq.SUBSCRIBE, b"")
            subscriber.connect(outbound.peer.address)
        wait_until(lambda: outbound.peer.peers == 2)
        quick.setsockopt(zmq.RCVTIMEO, 10)
        received = 0
        deadline_s = time.monotonic() + TIMEOUT_S
        while not (outbound.drops and received):
            assert time.monotonic() < deadline_s
            produce(broker, topic, [b"x" * 200_000] * 5)
            try:
                while True:
                    quick.recv_multipart()
                    received += 1
            except zmq.Again:
                pass
    metrics = "".join(DirectMessaging.metrics(_holder(outbound)))
    (drops,) = [
        sample.value
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if sample.name == "headwater_zeromq_drops_total"
    ]
    assert drops == outbound.drops


def _holder(outbound):
    direct = DirectMessaging("", ClientSettings(), OFF, {})
    direct.zeromq = {"pub": outbound}
    return direct


def test_addresses_that_are_refused(run, broker, topic):
    settings = ZeroMqSettings(
        name="open", socket="pull", topic=topic, address="tcp://*:5555", bind=True
    )
    with pytest.raises(ConfigError, match="anybody in that network"):
        DirectMessaging(broker, ClientSettings(), OFF, {"open": settings})
    _, inbound = run("pull", topic)
    with pytest.raises(HeadwaterError, match=r"cannot use .*: address already in use"):
        run("pull", topic, address=inbound.peer.address)


def test_without_pyzmq_the_command_to_install_it_is_shown(monkeypatch, broker, topic):
    monkeypatch.setitem(sys.modules, "zmq", None)
    settings = ZeroMqSettings(name="a", socket="pull", topic=topic, address="tcp://127.0.0.1:1")
    with pytest.raises(MissingExtra) as refused:
        DirectMessaging(broker, ClientSettings(), OFF, {"a": settings})
    assert "headwater[zeromq]" in refused.value.hint


def test_new_partitions_are_found(monkeypatch, run, context, broker, topic, admin):
    """A record in each: of those that existed, and of one that did not."""
    from confluent_kafka.admin import NewPartitions

    from headwater.direct.zeromq import outbound as module

    monkeypatch.setattr(module, "_PARTITIONS_EVERY_S", 0.1)
    _, outbound = run("pub", topic, with_key=False)
    wait_until(lambda: outbound._partitions == {0})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(TIMEOUT_S)
    wait_until(lambda: outbound._partitions == {0, 1})
