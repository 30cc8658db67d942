"""Produce on the wire: Kafka's error code for every batch that cannot be taken."""

import re
import struct
import time
from uuid import UUID

import pytest
from support import wire
from support.wire import Wire, batch_of, produce_request

from headwater.protocol import compression, records
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headwater.protocol.messages.produce import ProduceRequest
from headwater.protocol.records import CONTROL, CRC_AT, CRC_FROM, MAGIC_AT, TRANSACTIONAL
from headwater.settings import BrokerSettings
from headwater.testing import InProcessBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    settings = BrokerSettings(listen="127.0.0.1:0")
    path = str(tmp_path_factory.mktemp("produce"))
    with InProcessBroker.serving(path, settings) as broker:
        yield broker


@pytest.fixture
def client(broker):
    with Wire(broker.bootstrap) as client:
        yield client


@pytest.fixture
def topic(client, request) -> str:
    name = re.sub(r"[^a-z0-9-]+", "_", request.node.name)
    client.create_topic(name)
    return name


def _with_crc(batch: bytearray) -> bytearray:
    crc = records.crc32c(bytes(batch[CRC_FROM:]))
    batch[CRC_AT:CRC_FROM] = struct.pack(">I", crc)
    return batch


def _changed(at: int, form: str, value: int, batch: bytearray | None = None) -> bytearray:
    """A batch with one field of its header changed, and the CRC made to fit."""
    batch = batch or batch_of(b"x", b"y")
    struct.pack_into(form, batch, at, value)
    return _with_crc(batch)


def _flipped() -> bytearray:
    batch = batch_of(b"x" * 100)
    batch[-20] ^= 1
    return batch


def _of_magic(magic: int) -> bytearray:
    batch = batch_of(b"x")
    batch[MAGIC_AT] = magic
    return batch


@pytest.mark.parametrize("version", range(3, 14))
def test_every_version(client, topic, version):
    topic_id = client.create_topic(topic).topic_id if version >= 13 else None
    for expected in range(2):
        request = produce_request(topic, batch_of(b"value"), topic_id=topic_id)
        answer = client.ask(request, version).responses[0].partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (0, expected)
        assert answer.log_append_time_ms == -1
    assert len(wire.records_in(client.fetch(topic, 0).records)) == 2


@pytest.mark.parametrize("codec", range(5))
def test_each_compression_is_stored_as_sent(client, topic, codec):
    batch = batch_of(*[b"a value that repeats"] * 50, codec=codec)
    assert client.produce(topic, batch).error_code == 0
    stored = client.fetch(topic, 0).records
    assert bytes(stored[CRC_AT:]) == bytes(batch[CRC_AT:])
    assert len(wire.records_in(stored)) == 50


BAD_BATCHES = {
    "a bit flipped": (_flipped, ErrorCode.CORRUPT_MESSAGE),
    "magic 0": (lambda: _of_magic(0), ErrorCode.INVALID_RECORD),
    "magic 1": (lambda: _of_magic(1), ErrorCode.INVALID_RECORD),
    "magic 3": (lambda: _of_magic(3), ErrorCode.INVALID_RECORD),
    "unknown compression": (
        lambda: _changed(21, ">h", 5),
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ),
    "two batches": (lambda: batch_of(b"x") + batch_of(b"y"), ErrorCode.INVALID_RECORD),
    "half a batch": (lambda: batch_of(b"x" * 100)[:-50], ErrorCode.CORRUPT_MESSAGE),
    "half a header": (lambda: batch_of(b"x")[:30], ErrorCode.CORRUPT_MESSAGE),
    "nothing": (lambda: b"", ErrorCode.CORRUPT_MESSAGE),
    "null": (lambda: None, ErrorCode.CORRUPT_MESSAGE),
    "a length below the header's": (lambda: _changed(8, ">i", 10), ErrorCode.CORRUPT_MESSAGE),
    "a negative length": (lambda: _changed(8, ">i", -1), ErrorCode.CORRUPT_MESSAGE),
    "a control batch": (lambda: batch_of(b"x", attributes=CONTROL), ErrorCode.INVALID_RECORD),
    "a transaction of an unknown producer": (
        lambda: batch_of(b"x", attributes=TRANSACTIONAL),
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    "a count that is not the offsets'": (lambda: _changed(57, ">i", 3), ErrorCode.INVALID_RECORD),
    "no records": (lambda: _changed(57, ">i", 0), ErrorCode.INVALID_RECORD),
    "a negative count": (lambda: _changed(57, ">i", -1), ErrorCode.INVALID_RECORD),
    "a negative offset delta": (lambda: _changed(23, ">i", -1), ErrorCode.INVALID_RECORD),
    "a producer without a sequence": (
        lambda: batch_of(b"x", producer_id=5),
        ErrorCode.INVALID_RECORD,
    ),
    "too large": (lambda: batch_of(bytes(1_100_000)), ErrorCode.MESSAGE_TOO_LARGE),
    "from the far future": (
        lambda: batch_of(b"x", timestamp_ms=int(time.time() * 1000) + 7_200_000),
        ErrorCode.INVALID_TIMESTAMP,
    ),
}


@pytest.mark.parametrize("kind", BAD_BATCHES)
def test_a_batch_that_cannot_be_taken(client, topic, kind):
    make, expected = BAD_BATCHES[kind]
    answer = client.produce(topic, make())
    assert ErrorCode(answer.error_code) == expected
    assert answer.base_offset == -1
    assert answer.error_message
    # Nothing of it is there, and the connection goes on.
    assert client.produce(topic, batch_of(b"good")).base_offset == 0
    assert [record.value for record in wire.records_in(client.fetch(topic, 0).records)] == [b"good"]


def test_more_records_than_can_be_in_its_bytes(client, topic):
    batch = batch_of(b"x")
    struct.pack_into(">i", batch, 23, 2**31 - 2)
    struct.pack_into(">i", batch, 57, 2**31 - 1)
    answer = client.produce(topic, _with_crc(batch))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert client.produce(topic, batch_of(b"good")).base_offset == 0


def test_a_partition_that_is_not_there(client, topic):
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.produce("no-such-topic", batch_of(b"x")).error_code == unknown
    assert client.produce(topic, batch_of(b"x"), partition=99).error_code == unknown
    assert client.produce(topic, batch_of(b"x"), partition=-1).error_code == unknown
    request = produce_request("", batch_of(b"x"), topic_id=UUID(int=12345))
    answer = client.ask(request, 13).responses[0]
    assert answer.topic_id == UUID(int=12345)
    assert answer.partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_zstd_needs_version_7(client, topic):
    batch = batch_of(b"x", codec=compression.ZSTD)
    refused = client.produce(topic, batch, version=6)
    assert refused.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert client.produce(topic, batch, version=7).error_code == 0


def test_acks(client, topic):
    for acks in (7, -2, 2):
        answer = client.produce(topic, batch_of(b"x"), acks=acks)
        assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert client.produce(topic, batch_of(b"1"), acks=1).base_offset == 0
    assert client.produce(topic, batch_of(b"all"), acks=-1).base_offset == 1
    client.send(produce_request(topic, batch_of(b"none"), acks=0), 9, is_answered=False)
    # The next answer on the connection is that of the next request.
    assert client.produce(topic, batch_of(b"1"), acks=1).base_offset == 3


def test_acks_0_with_an_error_ends_the_connection(broker, topic, caplog):
    """There is no other way to notify the client; it looks at its metadata then (as with Kafka)."""
    with Wire(broker.bootstrap) as client:
        request = produce_request("no-such-topic", batch_of(b"x"), acks=0)
        client.send(request, 9, is_answered=False)
        assert client.is_ended()
        assert "no partition no-such-topic-0" in caplog.text


def test_one_bad_partition_does_not_hold_up_the_others(client, topic):
    good, bad = batch_of(b"good"), _flipped()
    request = produce_request(topic, bad)
    request.topic_data += produce_request(topic, good).topic_data
    answers = client.ask(request, 9).responses
    assert [answer.partition_responses[0].error_code for answer in answers] == [2, 0]


def test_a_request_without_topics(client):
    assert client.ask(ProduceRequest(acks=1), 9).responses == []


def test_groups_alone_write_to_their_topic(client):
    answer = client.produce("__consumer_offsets", batch_of(b"x"))
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


# ── idempotent producers ──────────────────────────────────────────────────────────────────────


def _sequenced(*values: bytes, sequence: int, epoch: int = 0) -> bytearray:
    return batch_of(*values, producer_id=99, producer_epoch=epoch, base_sequence=sequence)


def test_a_repeated_batch_is_stored_once(client, topic):
    for sequence in range(5):
        assert client.produce(topic, _sequenced(b"x", sequence=sequence)).base_offset == sequence
    for sequence in range(5):  # the last five are remembered
        answer = client.produce(topic, _sequenced(b"x", sequence=sequence))
        assert (answer.error_code, answer.base_offset) == (0, sequence)
    assert client.fetch(topic, 0).high_watermark == 5


def test_a_gap_is_refused(client, topic):
    assert client.produce(topic, _sequenced(b"x", b"y", sequence=0)).error_code == 0
    refused = client.produce(topic, _sequenced(b"x", sequence=3))
    assert refused.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert client.produce(topic, _sequenced(b"x", sequence=2)).base_offset == 2


def test_an_older_epoch_is_fenced(client, topic):
    assert client.produce(topic, _sequenced(b"x", sequence=0, epoch=3)).error_code == 0
    fenced = client.produce(topic, _sequenced(b"x", sequence=1, epoch=2))
    assert fenced.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    late = client.produce(topic, _sequenced(b"x", sequence=1, epoch=4))
    assert late.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert client.produce(topic, _sequenced(b"x", sequence=0, epoch=4)).error_code == 0


def test_repeats_on_their_way_at_the_same_time(client, topic):
    """The original may not be on disk yet; both are answered, and it is stored once."""
    for _ in range(20):
        client.send(produce_request(topic, _sequenced(b"x", sequence=0)), 9)
    for _ in range(20):
        answer = client.receive().responses[0].partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (0, 0)
    assert client.fetch(topic, 0).high_watermark == 1


# ── timestamps ────────────────────────────────────────────────────────────────────────────────


def test_log_append_time(tmp_path):
    defaults = {"message.timestamp.type": "LogAppendTime"}
    settings = BrokerSettings(listen="127.0.0.1:0", topic_defaults=defaults)
    with (
        InProcessBroker.serving(str(tmp_path), settings) as broker,
        Wire(broker.bootstrap) as client,
    ):
        client.create_topic("stamped")
        before_ms = int(time.time() * 1000)
        answer = client.produce("stamped", batch_of(b"x", b"y", timestamp_ms=1000))
        assert before_ms <= answer.log_append_time_ms <= before_ms + 60_000
        stored = client.fetch("stamped", 0).records
        assert {record.timestamp_ms for record in wire.records_in(stored)} == {
            answer.log_append_time_ms
        }
        records.check_stored(bytes(stored))  # the CRC was computed again


def test_a_topic_by_auto_creation_takes_batches_at_once(client):
    wanted = MetadataRequest(topics=[MetadataRequestTopic(name="at-once")])
    client.send(wanted, 12)
    client.send(produce_request("at-once", batch_of(b"x")), 9)
    assert client.receive().topics[0].error_code == 0
    assert client.receive().responses[0].partition_responses[0].error_code == 0


def test_names_that_only_a_client_knows_are_not_remembered(broker, client):
    refused = broker.running.broker.metrics.refused_batches
    names = {f"nowhere-{number}" for number in range(3)}
    before = refused[""]
    for name in names:
        answer = client.produce(name, batch_of(b"a"))
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert refused[""] == before + 3
    assert not names & set(refused)
