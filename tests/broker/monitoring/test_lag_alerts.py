"""How far groups are behind, and the warning before retention passes them."""

import http.server
import json
import threading

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from support.wire import Wire, batch_of, wait_until

from headwater.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headwater.settings import BrokerSettings, Secret
from headwater.testing import FakeClock, InProcessBroker

HOUR_S = 3600
RETENTION_S = 10 * HOUR_S


class Webhook:
    """An HTTP server that stores what it is sent; `failures` answers come first with a 500."""

    def __init__(self, failures: int = 0) -> None:
        self.received: list[dict] = []
        self.keys: list[str] = []
        hook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                nonlocal failures
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.keys.append(self.headers["Idempotency-Key"])
                failures -= 1
                self.send_response(200 if failures < 0 else 500)
                self.end_headers()
                if failures < 0:
                    hook.received.append(json.loads(body))

            def log_message(self, *_):
                pass

        self._server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/lag"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def events(self) -> list[tuple[str, str]]:
        return [
            (event["event"], event["group"]) for post in self.received for event in post["events"]
        ]


@pytest.fixture
def webhook():
    webhook = Webhook(failures=1)
    yield webhook
    webhook.close()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def broker(tmp_path, webhook, clock):
    settings = BrokerSettings(
        listen="127.0.0.1:0",
        lag_webhook=Secret(webhook.url),
        topic_defaults={"retention.ms": str(RETENTION_S * 1000), "segment.bytes": "1200"},
    )
    with InProcessBroker.serving(str(tmp_path), settings, clock=clock) as broker:
        yield broker


def commit(client: Wire, group: str, topic: str, offset: int) -> None:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])],
    )
    assert client.ask(request, 8).topics[0].partitions[0].error_code == 0


def lags(broker) -> dict[str, tuple]:
    """records, bytes, seconds by group."""
    return {
        lag.group: (lag.records, lag.size_bytes, lag.seconds)
        for lag in broker.running.broker.lag.lags()
    }


def test_lag_in_records_bytes_and_seconds(broker, clock):
    batch = batch_of(b"x" * 500, timestamp_ms=clock.now_ms())
    with Wire(broker.bootstrap) as client:
        client.create_topic("t")
        for _ in range(10):  # in several segments
            client.produce("t", batch)
        for group, offset in (("none", 0), ("some", 7), ("all", 10)):
            commit(client, group, "t", offset)
        broker.advance(100)
        wait_until(lambda: lags(broker)["some"] == (3, 3 * len(batch), 100.0))
        assert lags(broker)["none"] == (10, 10 * len(batch), 100.0)
        assert lags(broker)["all"] == (0, 0, 0.0)
        # What comes later counts at once, before anything is looked up again.
        client.produce("t", batch)
        assert lags(broker)["some"][:2] == (4, 4 * len(batch))


def test_a_group_is_reported_before_and_after_retention_passes_it(broker, webhook, clock):
    with Wire(broker.bootstrap) as client:
        client.create_topic("t")
        for _ in range(10):
            client.produce("t", batch_of(b"x" * 500, timestamp_ms=clock.now_ms()))
        commit(client, "slow", "t", 2)
        commit(client, "done", "t", 10)
        broker.advance(7 * HOUR_S)
        broker.advance(5)
        assert webhook.received == []
        broker.advance(1.1 * HOUR_S)
        # A round that was under way saw the old time; the first after it reports. The first POST
        # fails, and is repeated a second later with the same key.
        wait_until(lambda: broker.advance(1) or webhook.keys)
        wait_until(lambda: broker.advance(1) or webhook.received)
        assert len(set(webhook.keys)) == 1
        assert webhook.events == [("falling_behind", "slow")]
        (event,) = webhook.received[0]["events"]
        assert (event["topic"], event["partition"], event["lag_records"]) == ("t", 0, 8)
        assert 0.8 <= event["retention_used"] < 0.82
        # Retention deletes what it had not read.
        broker.advance(2 * HOUR_S)
        wait_until(lambda: broker.advance(5) or ("lost", "slow") in webhook.events)
        commit(client, "slow", "t", 10)
        wait_until(lambda: broker.advance(5) or ("recovered", "slow") in webhook.events)
        assert [group for _, group in webhook.events] == ["slow"] * 3


def test_by_size(tmp_path):
    settings = BrokerSettings(
        listen="127.0.0.1:0", topic_defaults={"retention.bytes": "10000", "retention.ms": "-1"}
    )
    with (
        InProcessBroker.serving(str(tmp_path), settings) as broker,
        Wire(broker.bootstrap) as client,
    ):
        client.create_topic("t")
        client.produce("t", batch_of(b"x" * 5_000))
        commit(client, "g", "t", 0)
        states = broker.running.broker.lag_alerts
        client.produce("t", batch_of(b"x" * 4_000))
        wait_until(lambda: states.states == {("g", "t", 0): "falling_behind"})


def test_the_meter_looks_up_a_bounded_number_at_a_time(broker, clock, monkeypatch):
    monkeypatch.setattr("headwater.broker.monitoring.lag.LOOKUPS_PER_MEASURE", 3)
    monkeypatch.setattr("headwater.broker.monitoring.lag.LOOKUPS_AT_ONCE", 2)
    with Wire(broker.bootstrap) as client:
        client.create_topic("t")
        client.produce("t", batch_of(b"x", timestamp_ms=clock.now_ms()))
        for number in range(10):
            commit(client, f"g{number}", "t", 0)

        def measured() -> int:
            return sum(size_bytes is not None for _, size_bytes, _ in lags(broker).values())

        wait_until(lambda: broker.advance(1) or measured() >= 3)
        for expected in (6, 9, 10):
            wait_until(lambda: broker.advance(5) or measured() >= expected)  # noqa: B023
        assert measured() == 10


def test_retention_waits_for_named_groups(broker, clock):
    with Wire(broker.bootstrap) as client:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        config = {"headwater.retention.wait.groups": "slow, quick"}
        admin.create_topics([NewTopic("t", 1, config=config)])["t"].result(60)
        for _ in range(10):
            client.produce("t", batch_of(b"x" * 500, timestamp_ms=clock.now_ms()))
        commit(client, "quick", "t", 10)
        store = broker.running.store
        partition = store.partitions["t", 0]
        broker.advance(RETENTION_S + HOUR_S)  # all of it is due; slow has read nothing
        wait_until(lambda: broker.advance(300) or store.retention_waits)
        assert partition.log_start_offset == 0
        commit(client, "slow", "t", 7)
        wait_until(lambda: broker.advance(300) or partition.log_start_offset == 7)
        commit(client, "slow", "t", 10)
        wait_until(lambda: broker.advance(300) or partition.log_start_offset == 10)
        assert not store.retention_waits
