"""Archived records over the wire: a consumer notices nothing, or gets a retriable error."""

import asyncio
import time
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.broker.queue_harness import GROUP, GROUP_RESOURCE, Consumer
from support.wire import Wire, batch_of, fetch_request, records_in, wait_until

from headwater.log.archive import uploads
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from headwater.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from headwater.protocol.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestListOffsetsPartition,
    ListOffsetsRequestListOffsetsTopic,
)
from headwater.protocol.records import TRANSACTIONAL, read_header
from headwater.settings import BrokerSettings
from headwater.testing import InProcessBroker

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
RECORDS = 100


@pytest.fixture
def broker(tmp_path, monkeypatch):
    monkeypatch.setattr(uploads, "CHUNK_BYTES", 3000)
    settings = BrokerSettings(
        listen="127.0.0.1:0",
        metrics_listen="127.0.0.1:0",
        archive=f"file://{tmp_path / 'archive'}",
    )
    with InProcessBroker.serving(str(tmp_path / "data"), settings) as running:
        yield running


@pytest.fixture
def wire(broker):
    with Wire(broker.bootstrap) as connection:
        yield connection


def create(wire: Wire, name: str, **configs: str):
    given = {
        "remote.storage.enable": "true",
        "segment.bytes": "10000",
        "local.retention.bytes": "0",
        "retention.bytes": "1000000000",
        "retention.ms": "-1",
        **{key.replace("_", "."): value for key, value in configs.items()},
    }
    return wire.create_configured(name, given)


def on_loop(broker: InProcessBroker, work):
    return asyncio.run_coroutine_threadsafe(work, broker._loop).result(60)


def partition_of(broker: InProcessBroker, topic: str):
    return broker.running.store.partitions[topic, 0]


def archive(broker: InProcessBroker, topic: str) -> None:
    """All but the active segment is in the archive only."""
    partition = partition_of(broker, topic)
    wait_until(lambda: len(partition.archived) == len(partition.segments) - 1)
    on_loop(broker, broker.running.broker.retain())
    assert len(partition.segments) == 1
    assert partition.local_start_offset > partition.log_start_offset


def wait_until_readable(wire: Wire, topic: str) -> None:
    """A failure of the archive is the answer for a second."""
    wait_until(lambda: not wire.fetch(topic, 0, min_bytes=1, max_wait_ms=500).error_code)


def filled(broker: InProcessBroker, wire: Wire, topic: str) -> list[bytes]:
    assert create(wire, topic).error_code == 0
    values = [b"%04d" % number + bytes(500) for number in range(RECORDS)]
    for number, value in enumerate(values):
        wire.produce(topic, batch_of(value, timestamp_ms=1_700_000_000_000 + number * 1000))
    archive(broker, topic)
    return values


def read_all(wire: Wire, topic: str, **options) -> list[bytes]:
    found: list[bytes] = []
    deadline_s = time.monotonic() + 20
    while len(found) < RECORDS:
        assert time.monotonic() < deadline_s
        answer = wire.fetch(topic, len(found), **options)
        assert answer.error_code == 0
        found += [record.value for record in records_in(answer.records)]
    return found


@pytest.mark.parametrize("max_wait_ms", [0, 500])
@pytest.mark.parametrize("partition_max_bytes", [1, 2000, 1 << 20])
def test_an_ordinary_fetch_reads_it_all(broker, wire, max_wait_ms, partition_max_bytes):
    values = filled(broker, wire, "t")
    options = {"max_wait_ms": max_wait_ms, "partition_max_bytes": partition_max_bytes}
    assert read_all(wire, "t", min_bytes=1, **options) == values


def test_a_slow_archive_delays_no_other_client_and_no_longer_than_asked(broker, wire):
    filled(broker, wire, "old")
    wire.create_topic("new")
    wire.produce("new", batch_of(b"here"))
    objects = broker.running.store.archive.objects
    get = objects.get
    held = asyncio.Event()

    async def slow(*args):
        await held.wait()
        return await get(*args)

    objects.get = slow
    both = fetch_request("old", 0, max_wait_ms=10_000, min_bytes=1)
    both.topics += fetch_request("new", 0).topics
    began_s = time.monotonic()
    answer = wire.ask(both, 12)
    assert time.monotonic() - began_s < 9  # and not 10
    assert records_in(answer.responses[1].partitions[0].records)[0].value == b"here"
    assert answer.responses[0].partitions[0].error_code == 0
    assert not answer.responses[0].partitions[0].records
    began_s = time.monotonic()
    old = wire.fetch("old", 0, max_wait_ms=300, min_bytes=1)
    assert 0.2 < time.monotonic() - began_s < 5
    assert (old.error_code, records_in(old.records)) == (0, [])
    wire.send(fetch_request("old", 0, max_wait_ms=20_000, min_bytes=1), 12)
    broker._loop.call_soon_threadsafe(held.set)
    assert records_in(wire.receive().responses[0].partitions[0].records)[0].offset == 0


def test_an_archive_that_fails_is_a_storage_error(broker, wire, tmp_path):
    values = filled(broker, wire, "t")
    (tmp_path / "archive").rename(tmp_path / "away")
    answer = wire.fetch("t", 0, max_wait_ms=10_000, min_bytes=1)
    assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    start = partition_of(broker, "t").local_start_offset
    assert records_in(wire.fetch("t", start, max_wait_ms=500).records)[0].offset == start
    (tmp_path / "away").rename(tmp_path / "archive")
    wait_until_readable(wire, "t")
    assert read_all(wire, "t", min_bytes=1, max_wait_ms=500) == values


def test_aborted_transactions_are_reported_from_the_archive(broker, wire):
    assert create(wire, "t").error_code == 0
    partition = partition_of(broker, "t")

    async def write() -> None:
        for number in range(40):
            producer_id, done = number % 3, asyncio.get_running_loop().create_future()
            view = memoryview(
                batch_of(
                    b"%04d" % number + bytes(600),
                    producer_id=producer_id,
                    producer_epoch=0,
                    base_sequence=number // 3,
                    attributes=TRANSACTIONAL,
                )
            )
            partition.append(view, read_header(view), done.set_result)
            await done
            done = asyncio.get_running_loop().create_future()
            partition.append_marker(
                producer_id, 0, commit=number % 4 != 0, coordinator_epoch=0, done=done.set_result
            )
            await done

    on_loop(broker, write())

    def aborted() -> dict[int, set[int]]:
        """First offsets of aborted transactions, by the offset asked for."""
        reported: dict[int, set[int]] = {}
        offset = 0
        while offset < 80:
            answer = wire.fetch(
                "t", offset, isolation_level=1, max_wait_ms=500, min_bytes=1,
                partition_max_bytes=2000,
            )  # fmt: skip
            assert answer.error_code == 0
            if answer.records:
                read = records_in(answer.records)
                upto = read[-1].offset
                reported[offset] = {
                    transaction.first_offset
                    for transaction in answer.aborted_transactions or ()
                    if transaction.first_offset <= upto
                }
                offset = upto + 1
        return reported

    before = set().union(*aborted().values())
    assert before == {2 * number for number in range(0, 40, 4)}
    archive(broker, "t")
    assert set().union(*aborted().values()) == before
    broker.restart(crash=True)
    with Wire(broker.bootstrap) as again:
        wire.socket, old = again.socket, wire.socket
        assert set().union(*aborted().values()) == before
        wire.socket = old


def list_offset(wire: Wire, topic: str, timestamp: int):
    wanted = ListOffsetsRequestListOffsetsPartition(
        partition_index=0, current_leader_epoch=-1, timestamp=timestamp
    )
    topics = [ListOffsetsRequestListOffsetsTopic(name=topic, partitions=[wanted])]
    answer = wire.ask(ListOffsetsRequest(replica_id=-1, topics=topics), 11)
    assert answer.topics[0].partitions[0].error_code == 0
    return answer.topics[0].partitions[0]


def test_list_offsets_covers_local_and_archived_segments(broker, wire):
    filled(broker, wire, "t")
    start = partition_of(broker, "t").local_start_offset
    assert list_offset(wire, "t", -2).offset == 0
    assert list_offset(wire, "t", -4).offset == start
    assert list_offset(wire, "t", -5).offset == start - 1
    assert list_offset(wire, "t", -6).offset == start
    for offset in (0, 7, 42, start, RECORDS - 1):
        assert list_offset(wire, "t", 1_700_000_000_000 + offset * 1000).offset == offset
    assert list_offset(wire, "t", -3).offset == RECORDS - 1


def test_log_dirs_cover_local_and_archived_segments(broker, wire, tmp_path):
    filled(broker, wire, "t")
    local, archived = wire.ask(DescribeLogDirsRequest(topics=None), 4).results
    assert archived.log_dir == f"file://{tmp_path / 'archive'}"
    ((topic,),) = [archived.topics]
    partition = partition_of(broker, "t")
    assert topic.partitions[0].partition_size == sum(e.size_bytes for e in partition.archived)
    assert topic.partitions[0].offset_lag == RECORDS - partition.local_start_offset
    here = {topic.name: topic.partitions[0].partition_size for topic in local.topics}
    assert here["t"] == partition.size_bytes


def test_a_compacted_topic_is_refused(wire):
    answer = create(wire, "t", cleanup_policy="compact")
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    assert "compacted" in answer.error_message


def test_the_metrics_are_documented(broker, wire):
    filled(broker, wire, "t")
    read_all(wire, "t", max_wait_ms=500)
    with urlopen(f"http://{broker.metrics_address}/metrics") as response:
        families = {
            family.name: family
            for family in text_string_to_metric_families(response.read().decode())
        }
    page = OPERATIONS.read_text()
    for family in families.values():
        name = family.name + ("_total" if family.type == "counter" else "")
        assert f"`{name}" in page, f"{name} is not in docs/operations.md"
    assert families["headwater_archive_bytes"].samples[0].value > 0
    assert families["headwater_archive_fetched_bytes"].samples[0].value > 0
    assert families["headwater_archive_cache_bytes"].samples[0].value > 0
    assert families["headwater_archive_failing"].samples[0].value == 0


def test_a_queue_delivers_archived_records_and_says_when_it_cannot(broker, wire, tmp_path):
    values = filled(broker, wire, "t")
    consumer = Consumer(broker.bootstrap, broker.running.store.catalog.topics["t"].id)
    reset = IncrementalAlterConfigsRequestAlterableConfig(
        name="share.auto.offset.reset", config_operation=0, value="earliest"
    )
    group = IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=GROUP_RESOURCE, resource_name=GROUP, configs=[reset]
    )
    answer = wire.ask(IncrementalAlterConfigsRequest(resources=[group]), 1)
    assert answer.responses[0].error_code == 0
    (tmp_path / "archive").rename(tmp_path / "away")
    refused = consumer.fetch(max_wait_ms=10_000)
    assert refused.responses[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    (tmp_path / "away").rename(tmp_path / "archive")
    wait_until_readable(wire, "t")
    found: list[bytes] = []
    deadline_s = time.monotonic() + 20
    while len(found) < RECORDS:
        assert time.monotonic() < deadline_s
        found += consumer.values(max_wait_ms=500)
    assert found == values
    consumer.close()
