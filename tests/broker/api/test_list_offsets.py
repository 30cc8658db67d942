"""ListOffsets: the ends of a log and its records by time, in every version."""

import asyncio

import pytest
from support.wire import Wire, batch_of

from headwater.protocol import compression, records
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestListOffsetsPartition,
    ListOffsetsRequestListOffsetsTopic,
)
from headwater.protocol.records import Record
from headwater.testing import InProcessBroker

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """With a topic `timed` of 9 records: times 1000, 2000, … in batches of three; one is late."""
    path = str(tmp_path_factory.mktemp("list-offsets"))
    with InProcessBroker.serving(path) as broker, Wire(broker.bootstrap) as client:
        client.create_topic("timed")
        times = [1000, 2000, 3000, 4000, 9500, 5000, 7000, 8000, 9000]
        for start, codec in ((0, compression.NONE), (3, compression.ZSTD), (6, compression.LZ4)):
            some = [Record(0, time, b"k", b"v") for time in times[start : start + 3]]
            client.produce("timed", records.build_batch(some, codec=codec))
        client.create_topic("empty")
        yield client


def _ask(client: Wire, timestamp: int, version: int = 8, *, topic="timed", partition=0, epoch=-1):
    wanted = ListOffsetsRequestListOffsetsPartition(
        partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch
    )
    topics = [ListOffsetsRequestListOffsetsTopic(name=topic, partitions=[wanted])]
    return client.ask(ListOffsetsRequest(topics=topics), version).topics[0].partitions[0]


@pytest.mark.parametrize("version", range(1, 12))
def test_every_version(client, version):
    for timestamp, offset in ((EARLIEST, 0), (LATEST, 9), (3000, 2)):
        answer = _ask(client, timestamp, version)
        assert (answer.error_code, answer.offset) == (0, offset)


@pytest.mark.parametrize(
    ("timestamp", "found"),
    [
        (0, (0, 1000)),
        (1000, (0, 1000)),
        (1001, (1, 2000)),
        (2999, (2, 3000)),
        (3001, (3, 4000)),
        (4001, (4, 9500)),  # the first at or after, in the order of the log
        (9000, (4, 9500)),
        (9500, (4, 9500)),
        (9501, (-1, -1)),
    ],
)
def test_by_time(client, timestamp, found):
    answer = _ask(client, timestamp)
    assert (answer.error_code, answer.offset, answer.timestamp) == (0, *found)


def test_the_largest_timestamp(client):
    answer = _ask(client, MAX_TIMESTAMP)
    assert (answer.offset, answer.timestamp) == (4, 9500)
    assert _ask(client, MAX_TIMESTAMP, 6).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_questions_about_tiers(client):
    for timestamp, since, offset in ((-4, 8, 0), (-5, 9, -1), (-6, 11, 0)):
        answer = _ask(client, timestamp, since)
        assert (answer.error_code, answer.offset) == (0, offset)
        assert _ask(client, timestamp, since - 1).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert _ask(client, -7, 11).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_an_empty_log(client):
    assert _ask(client, EARLIEST, topic="empty").offset == 0
    assert _ask(client, LATEST, topic="empty").offset == 0
    for timestamp in (0, 10**15, MAX_TIMESTAMP):
        answer = _ask(client, timestamp, topic="empty")
        assert (answer.error_code, answer.offset, answer.timestamp) == (0, -1, -1)


def test_what_is_not_there(client):
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert _ask(client, LATEST, topic="no-such-topic").error_code == unknown
    assert _ask(client, LATEST, partition=7).error_code == unknown
    assert _ask(client, LATEST, epoch=99).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_a_batch_whose_records_are_no_records(client):
    """It is stored as sent; who looks into it gets an error, and the connection goes on."""
    client.create_topic("nonsense")
    batch = batch_of(*[b"x" * 50] * 10, timestamp_ms=5000)
    batch[70:120] = b"\xff" * 50
    batch[17:21] = records.crc32c(bytes(batch[21:])).to_bytes(4, "big")
    assert client.produce("nonsense", batch).error_code == 0
    assert _ask(client, 1, topic="nonsense").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert _ask(client, LATEST, topic="nonsense").offset == 10


@pytest.mark.parametrize("crash", [True, False])
def test_by_time_after_a_checkpoint_and_a_restart(tmp_path, crash):
    """Records that came before the checkpoint but after the last entry of the time index."""
    broker = InProcessBroker(str(tmp_path))
    broker.start()
    with Wire(broker.bootstrap) as client:
        client.create_topic("timed")
        for timestamp_ms in (1000, 2000, 3000):
            client.produce("timed", batch_of(b"x", timestamp_ms=timestamp_ms))
    work = broker.running.store.checkpoints.write()
    asyncio.run_coroutine_threadsafe(work, broker._loop).result(60)
    broker.restart(crash=crash)
    with Wire(broker.bootstrap) as client:
        for timestamp_ms, offset in ((1000, 0), (1500, 1), (2500, 2), (3000, 2), (3001, -1)):
            assert _ask(client, timestamp_ms).offset == offset
        assert _ask(client, MAX_TIMESTAMP).offset == 2
    broker.stop()
