"""The endpoint for machines that watch: /metrics, /live, /ready."""

import http.client
import re
import socket
import time
from contextlib import suppress

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support import wire
from support.wire import Wire, batch_of

from headwater.protocol.messages.api_versions import ApiVersionsRequest
from headwater.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headwater.settings import BrokerSettings
from headwater.testing import InProcessBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    settings = BrokerSettings(listen="127.0.0.1:0", metrics_listen="127.0.0.1:0")
    with InProcessBroker.serving(str(tmp_path_factory.mktemp("http")), settings) as broker:
        yield broker


def _get(broker, path: str, method: str = "GET") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection(broker.metrics_address, timeout=60)
    connection.request(method, path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer.headers["Content-Type"], text


def _metrics(broker) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    status, content_type, text = _get(broker, "/metrics")
    assert status == 200
    assert content_type.startswith("text/plain; version=0.0.4")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_live_and_ready(broker):
    assert _get(broker, "/live")[0] == 200
    assert _get(broker, "/ready")[0] == 200


@pytest.mark.parametrize("path", ["/", "/metricsx", "/ready/", "/%00", "/" + "x" * 5000])
def test_other_paths(broker, path):
    assert _get(broker, path)[0] == 404


def test_other_methods(broker):
    assert _get(broker, "/metrics", "POST")[0] == 404


def test_every_family_has_help_and_a_type(broker):
    text = _get(broker, "/metrics")[2]
    names = {re.match(r"[a-z_]+", line)[0] for line in text.splitlines() if line[0] != "#"}
    for name in names:
        assert f"# HELP {name} " in text
        assert f"# TYPE {name} " in text
        assert name.startswith("headwater_")


def test_what_clients_do_is_counted(broker):
    before = _metrics(broker)
    with Wire(broker.bootstrap) as client:
        client.create_topic("counted")
        batch = batch_of(b"x", b"y")
        client.produce("counted", batch)
        client.fetch("counted", 0)
        client.produce("counted", bytes(10))
        client.ask(ApiVersionsRequest(), 0)
        partition = OffsetCommitRequestPartition(committed_offset=1)
        topic = OffsetCommitRequestTopic(name="counted", partitions=[partition])
        answer = client.ask(OffsetCommitRequest(group_id="watched", topics=[topic]), 8)
        assert answer.topics[0].partitions[0].error_code == 0
        after = _metrics(broker)
    topic_label = (("topic", "counted"),)
    assert after["headwater_produced_records_total", topic_label] == 2
    assert after["headwater_produced_bytes_total", topic_label] == len(batch)
    assert after["headwater_fetched_bytes_total", topic_label] == len(batch)
    assert after["headwater_refused_batches_total", topic_label] == 1
    for api, count in (("Produce", 2), ("Fetch", 1), ("Metadata", 1), ("ApiVersions", 1)):
        name = ("headwater_requests_total", (("api", api),))
        assert after[name] - before.get(name, 0) == count
    lag = (("group", "watched"), ("partition", "0"), ("topic", "counted"))
    assert after["headwater_group_lag_records", lag] == 1
    assert after["headwater_connections", ()] == 1
    assert after["headwater_disk_free_bytes", ()] > 0
    assert after["headwater_storage_failed_partitions", ()] == 0


def test_not_ready_while_it_stops(broker):
    broker.running.http.is_ready = False
    try:
        assert _get(broker, "/ready")[0] == 503
        assert _get(broker, "/live")[0] == 200
    finally:
        broker.running.http.is_ready = True


def test_many_silent_connections_shut_no_client_out(broker, monkeypatch):
    monkeypatch.setattr("headwater.probe_http.MAX_CONNECTIONS", 10)
    monkeypatch.setattr("headwater.probe_http.REQUEST_TIMEOUT_S", 600)  # it is not what ends them
    with wire.many(broker.metrics_address, 30) as silent:
        for client in silent[:20]:
            assert client.is_ended()
        assert _get(broker, "/live")[0] == 200


def test_one_who_does_not_read_is_let_go(broker, monkeypatch):
    monkeypatch.setattr("headwater.probe_http.REQUEST_TIMEOUT_S", 0.5)
    monkeypatch.setattr("headwater.broker.monitoring.http.exposition", lambda *_: "x" * (32 << 20))
    endpoint = broker.running.http
    host, _, port = broker.metrics_address.rpartition(":")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        wire.wait_until(lambda: endpoint._metrics.startswith(b"x"))
        wire.wait_until(lambda: not endpoint.probes._requests)
        received = 0
        with suppress(ConnectionResetError):
            while piece := connection.recv(1 << 20):
                received += len(piece)
        assert received < 32 << 20
    endpoint._metrics_until_s = 0.0


def test_scrapes_take_a_bounded_share_of_the_loop(broker, monkeypatch):
    asked = []

    def slow(*_):
        asked.append(1)
        time.sleep(0.2)
        return "x 1\n"

    monkeypatch.setattr("headwater.broker.monitoring.http.exposition", slow)
    until_s = time.monotonic() + 2
    while time.monotonic() < until_s:
        assert _get(broker, "/metrics")[2] == "x 1\n"
    assert len(asked) <= 3
    broker.running.http._metrics_until_s = 0.0


def test_someone_who_says_nothing_is_let_go(broker, monkeypatch):
    monkeypatch.setattr("headwater.probe_http.REQUEST_TIMEOUT_S", 0.1)
    with wire.many(broker.metrics_address, 20) as silent:
        for client in silent:
            assert client.is_ended()
    assert _get(broker, "/live")[0] == 200
