"""The archive in a real S3 server: signed requests over HTTP, read back by ordinary consumers."""

import asyncio
import os
import time
from dataclasses import replace

import pytest
from confluent_kafka import Consumer, TopicPartition
from support.wire import Wire, batch_of, fetch_request, records_in, wait_until
from tiers import long

from bench.peers.ports import free_port
from bench.peers.s3proxy import s3_server
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.delete_topics import DeleteTopicsRequest
from headwater.settings import BrokerSettings
from headwater.testing import InProcessBroker

pytestmark = pytest.mark.java

BATCHES = 120
BATCH_BYTES = 100_000


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def settings(s3, monkeypatch):
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return BrokerSettings(
        listen="127.0.0.1:0", archive="s3://headwater/logs", archive_endpoint=s3.endpoint
    )


def create_archived(wire: Wire, name: str, **configs: str) -> None:
    configs = {
        "remote.storage.enable": "true",
        "segment.bytes": "3000000",
        "local.retention.bytes": "0",
        "retention.bytes": "1000000000",
        **configs,
    }
    answer = wire.create_configured(name, configs)
    assert answer.error_code == 0, answer.error_message


def filled(broker: InProcessBroker, wire: Wire, name: str) -> list[bytes]:
    """Values of a topic of which all but the last segment is in the archive only."""
    values = []
    for number in range(BATCHES):
        value = b"%08d" % number + os.urandom(BATCH_BYTES)
        values.append(value)
        assert wire.produce(name, batch_of(value)).error_code == 0
    store = broker.running.store
    partition = store.partitions[name, 0]
    wait_until(lambda: len(partition.archived) == len(partition.segments) - 1)
    retain(broker)
    assert len(partition.segments) == 1
    return values


def retain(broker: InProcessBroker) -> None:
    work = broker.running.broker.retain()
    asyncio.run_coroutine_threadsafe(work, broker._loop).result(60)


def consume(broker: InProcessBroker, name: str, count: int, **options) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "g", "check.crcs": True, **options}
    )
    consumer.assign([TopicPartition(name, 0, 0)])
    found: list[bytes] = []
    deadline_s = time.monotonic() + 30
    while len(found) < count:
        assert time.monotonic() < deadline_s
        for message in consumer.consume(500, 0.5):
            assert message.error() is None, message.error()
            found.append(message.value())
    consumer.close()
    return found


def test_a_consumer_reads_what_is_only_in_s3(tmp_path, settings, s3):
    with InProcessBroker.serving(str(tmp_path), settings) as broker, Wire(broker.bootstrap) as wire:
        create_archived(wire, "read")
        values = filled(broker, wire, "read")
        assert consume(broker, "read", BATCHES) == values
        topic_id = broker.running.store.catalog.topics["read"].id.hex
        objects = list(s3.bucket_path.glob(f"logs/*/{topic_id}/0/*.log"))
        assert len(objects) == len(broker.running.store.partitions["read", 0].archived)
        broker.restart(crash=True)
        assert consume(broker, "read", BATCHES) == values


def test_a_large_segment_goes_up_in_parts_and_comes_back(tmp_path, settings, s3):
    with InProcessBroker.serving(str(tmp_path), settings) as broker, Wire(broker.bootstrap) as wire:
        create_archived(wire, "large", **{"segment.bytes": "11000000"})
        values = filled(broker, wire, "large")
        topic_id = broker.running.store.catalog.topics["large"].id.hex
        (found,) = s3.bucket_path.glob(f"logs/*/{topic_id}/0/{0:020d}.log")
        assert found.stat().st_size > 10_000_000  # more than a part
        assert consume(broker, "large", BATCHES) == values


def test_a_deleted_topic_is_deleted_in_s3(tmp_path, settings, s3):
    with InProcessBroker.serving(str(tmp_path), settings) as broker, Wire(broker.bootstrap) as wire:
        create_archived(wire, "gone")
        filled(broker, wire, "gone")
        topic_id = broker.running.store.catalog.topics["gone"].id.hex
        assert list(s3.bucket_path.glob(f"logs/*/{topic_id}/**/*.log"))
        answer = wire.ask(DeleteTopicsRequest(topic_names=["gone"], timeout_ms=10_000), 5)
        assert answer.responses[0].error_code == 0
        wait_until(lambda: not broker.running.store.archive.deletions.pending)
        assert not [
            path for path in s3.bucket_path.glob(f"logs/*/{topic_id}/**/*") if path.is_file()
        ]


def test_a_damaged_object_is_corrupt_and_the_rest_is_served(tmp_path, settings, s3):
    with InProcessBroker.serving(str(tmp_path), settings) as broker, Wire(broker.bootstrap) as wire:
        create_archived(wire, "damaged")
        filled(broker, wire, "damaged")
        partition = broker.running.store.partitions["damaged", 0]
        (path,) = s3.bucket_path.glob(f"logs/*/{partition.topic_id}/0/{0:020d}.log")
        with path.open("r+b") as file:
            file.seek(50_000)
            file.write(b"\x00" * 100)
        answer = wire.fetch("damaged", 0, max_wait_ms=10_000, min_bytes=1)
        assert answer.error_code == ErrorCode.CORRUPT_MESSAGE
        second = partition.archived[1].base_offset
        answer = wire.fetch("damaged", second, max_wait_ms=10_000, min_bytes=1)
        assert answer.error_code == 0
        assert records_in(answer.records)[0].offset == second


def test_wrong_credentials_keep_everything_local(tmp_path, settings, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with InProcessBroker.serving(str(tmp_path), settings) as broker, Wire(broker.bootstrap) as wire:
        create_archived(wire, "refused")
        values = [b"%08d" % number + os.urandom(BATCH_BYTES) for number in range(40)]
        for value in values:
            wire.produce("refused", batch_of(value))
        archive = broker.running.store.archive
        wait_until(lambda: archive.uploads.failures)
        retain(broker)
        assert archive.waiting_bytes
        assert "wrong" not in archive.uploads.last_error
        assert consume(broker, "refused", 40) == values


@long
def test_while_s3_is_away_other_partitions_are_served_and_it_comes_back(tmp_path, settings):
    port = free_port()
    (tmp_path / "s3").mkdir()
    settings = replace(settings, archive_endpoint=f"http://127.0.0.1:{port}")
    with (
        InProcessBroker.serving(str(tmp_path / "data"), settings) as broker,
        Wire(broker.bootstrap) as wire,
    ):
        with s3_server(tmp_path / "s3", port):
            create_archived(wire, "old")
            values = filled(broker, wire, "old")
        wire.create_topic("new")
        wire.produce("new", batch_of(b"here"))
        both = fetch_request("old", 0, max_wait_ms=5_000, min_bytes=1)
        both.topics += fetch_request("new", 0).topics
        began_s = time.monotonic()
        answer = wire.ask(both, 12)
        assert time.monotonic() - began_s < 2
        assert records_in(answer.responses[1].partitions[0].records)[0].value == b"here"
        old = wire.fetch("old", 0, max_wait_ms=20_000, min_bytes=1)
        assert old.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        with s3_server(tmp_path / "s3", port):
            assert consume(broker, "old", BATCHES) == values
