"""StatsD over real sockets into a real topic, sent by a StatsD client of others."""

import json
import socket

import pytest
from prometheus_client.parser import text_string_to_metric_families
from statsd import StatsClient
from support.direct.topic_reading import wait_until

from headwater.direct.publishing import TopicWriter
from headwater.direct.service import DirectMessaging
from headwater.direct.settings import StatsdSettings
from headwater.direct.statsd.receiving import StatsdServer
from headwater.errors import ConfigError, HeadwaterError
from headwater.settings import ClientSettings


@pytest.fixture
def serve(broker, topic):
    """Starts a server; the last call of a test may stop it."""
    started = []

    def start(**options):
        settings = StatsdSettings(
            listen="127.0.0.1:0", topic=topic, **{"interval": 3600, **options}
        )
        server = StatsdServer(settings, TopicWriter({"bootstrap.servers": broker}, topic))
        server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop(1)


def sender_to(server):
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.connect(server.address)
    return opened


def numbers(server):
    """The metrics by name."""
    text = "".join(server.metrics())
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_client_of_others(serve, topic, reading):
    server = serve()
    client = StatsClient(*server.address, prefix="shop")
    client.incr("orders")
    client.incr("orders", 4)
    client.decr("stock", 2)
    client.timing("checkout", 320)
    client.timing("checkout", 80)
    client.gauge("queue", 70)
    client.gauge("queue", -7, delta=True)
    client.set("visitors", "ada")
    client.set("visitors", "ada")
    client.set("visitors", "bob")
    with client.pipeline() as pipeline:  # one datagram
        pipeline.incr("piped")
        pipeline.incr("piped")
    client.close()
    wait_until(lambda: server.samples == 12)
    server.flush()
    records = reading(topic).await_count(6).records
    found = {record.key().decode(): json.loads(record.value()) for record in records}
    assert len(found) == len(records) == 6
    assert found["shop.orders"]["value"] == 5
    assert found["shop.stock"]["value"] == -2
    assert found["shop.queue"]["value"] == 63
    assert found["shop.visitors"]["value"] == 2
    assert found["shop.piped"] | {"from_ms": 0, "to_ms": 0} == {
        "name": "shop.piped", "type": "counter", "tags": {}, "from_ms": 0, "to_ms": 0,
        "value": 2, "samples": 2,
    }  # fmt: skip
    checkout = found["shop.checkout"]
    assert (checkout["count"], checkout["sum"], checkout["mean"]) == (2, 400, 200)
    assert (checkout["min"], checkout["max"]) == (80, 320)


def test_intervals_tags_and_rates(serve, topic, reading):
    server = serve(interval=0.2)
    read = reading(topic)
    with sender_to(server) as sender:
        sender.send(b"a:1|c|@0.1|#env:prod,host:b\na:1|c|#host:b,env:prod\n")
        read.await_count(1)
        sender.send(b"a:7|c|#env:prod,host:b")
        read.await_count(2)
    first, second = (json.loads(value) for value in read.values)
    assert {record.key() for record in read.records} == {b"a|env:prod,host:b"}
    assert first["tags"] == {"env": "prod", "host": "b"}
    assert (first["value"], second["value"]) == (11, 7)
    assert first["to_ms"] <= second["from_ms"]
    assert [record.timestamp()[1] for record in read.records] == [first["to_ms"], second["to_ms"]]


def test_what_has_arrived_is_written_at_the_end(serve, topic, reading):
    server = serve()
    with sender_to(server) as sender:
        for _ in range(500):
            sender.send(b"a:1|c")
    server.stop(30)
    assert json.loads(reading(topic).await_count(1).values[0])["value"] == 500


def test_bad_lines_are_counted_and_harm_nothing(serve):
    server = serve()
    with sender_to(server) as sender:
        sender.send(b"\xff\xfe\x00")
        sender.send(b"a:1|c\nbroken\n\n_e{1,1}:a|b\nb:1|ms")
        sender.send(b"")
    wait_until(lambda: server.datagrams == 3)
    found = numbers(server)
    assert found["headwater_statsd_bad_lines_total"] == 2
    assert found["headwater_statsd_unsupported_total"] == 1
    assert found["headwater_statsd_samples_total"] == 2
    assert found["headwater_statsd_series"] == 2


def test_what_the_kernel_drops_is_counted(broker, topic):
    settings = StatsdSettings(listen="127.0.0.1:0", topic=topic, interval=3600)
    server = StatsdServer(settings, TopicWriter({"bootstrap.servers": broker}, topic))
    server._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with sender_to(server) as sender:  # it has not started to receive
        for _ in range(1000):
            sender.send(b"a:1|c" + b"\n" * 500)
    assert 900 < numbers(server)["headwater_statsd_datagrams_dropped_total"] < 1000
    dropped = server.dropped_by_kernel()
    server.stop(5)
    assert server.datagrams == 1000 - dropped


def test_a_network_is_refused_and_an_address_in_use_is_explained(broker, topic):
    settings = StatsdSettings(listen="0.0.0.0:8125", topic=topic)
    with pytest.raises(ConfigError, match="anybody in that network"):
        DirectMessaging(broker, ClientSettings(), settings, {})
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{other.getsockname()[1]}"
        direct = DirectMessaging(
            broker, ClientSettings(), StatsdSettings(listen=listen, topic=topic), {}
        )
        with pytest.raises(HeadwaterError, match="StatsD cannot be received"):
            direct.start()


def test_a_broker_that_is_away_is_no_reason_not_to_receive(topic):
    settings = StatsdSettings(listen="127.0.0.1:0", topic=topic, interval=0.1)
    writer = TopicWriter({"bootstrap.servers": "127.0.0.1:1"}, topic, queue_bytes=20_000)
    server = StatsdServer(settings, writer)
    server.start()
    try:
        with sender_to(server) as sender:

            def has_lost():
                sender.send(b"\n".join(b"series%d:1|c" % number for number in range(50)))
                return server.records_lost > 0

            wait_until(has_lost)
        assert numbers(server)["headwater_statsd_records_lost_total"] > 0
    finally:
        server.stop(0.1)
