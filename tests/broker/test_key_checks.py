"""Every record of a compacted topic has a key, whatever the size of its batch."""

import copy
import struct
import time

import pytest
import wire
from wire import Wire, produce_request

from headwater.errors import MalformedMessage
from headwater.protocol import compression, records
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.key_scan import KeyScan
from headwater.protocol.records import CRC_AT, CRC_FROM, Record, build_batch
from headwater.settings import BrokerSettings
from headwater.testing import InProcessBroker

CODECS = range(5)


def batch_of_keys(*keys: bytes | None, codec: int = 0, value: bytes = b"value") -> bytearray:
    now_ms = int(time.time() * 1000)
    return build_batch([Record(0, now_ms, key, value) for key in keys], codec=codec)


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("keys"))
    with InProcessBroker.serving(path, BrokerSettings(listen="127.0.0.1:0")) as broker:
        yield broker


@pytest.fixture
def client(broker):
    with Wire(broker.bootstrap) as client:
        yield client


@pytest.fixture
def topic(client, request) -> str:
    name = "".join(c if c.isalnum() else "_" for c in request.node.name)
    client.create_configured(name, {"cleanup.policy": "compact"})
    return name


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [3, 5000])
def test_records_without_a_key_are_named(client, topic, codec, count):
    keys: list[bytes | None] = [b"key %d" % number for number in range(count)]
    keys[1] = keys[count - 1] = None
    answer = client.produce(topic, batch_of_keys(*keys, codec=codec))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [each.batch_index for each in answer.record_errors] == [1, count - 1]
    assert all("key" in each.batch_index_error_message for each in answer.record_errors)
    assert client.fetch(topic, 0).high_watermark == 0


@pytest.mark.parametrize("codec", CODECS)
def test_records_with_a_key_are_taken(client, topic, codec):
    keys = [b"", *(b"key %d" % number for number in range(3000))]
    assert client.produce(topic, batch_of_keys(*keys, codec=codec)).base_offset == 0
    assert client.produce(topic, batch_of_keys(b"a", codec=codec)).base_offset == 3001


def test_a_batch_that_grows_a_thousandfold(client, topic):
    batch = batch_of_keys(b"a", b"b", codec=compression.ZSTD, value=bytes(8 << 20))
    assert len(batch) < 16 << 10
    assert client.produce(topic, batch).error_code == 0


def test_a_partition_that_does_not_exist_hides_no_other(client, topic):
    request = produce_request(topic, batch_of_keys(None))
    (data,) = request.topic_data[0].partition_data
    nowhere = copy.copy(data)
    nowhere.index = 99
    request.topic_data[0].partition_data = [nowhere, data]
    answers = client.ask(request, 9).responses[0].partition_responses
    assert [each.error_code for each in answers] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_RECORD,
    ]


def test_the_next_request_does_not_overtake(client, topic):
    """One batch takes a while to look at; those behind it are quick."""
    large = [b"%d" % number for number in range(5000)]
    batches = [batch_of_keys(*large), batch_of_keys(b"x"), batch_of_keys(*large)]
    for batch in batches:
        client.send(produce_request(topic, batch), 9)
    answers = [client.receive().responses[0].partition_responses[0] for _ in range(3)]
    assert [answer.base_offset for answer in answers] == [0, 5000, 5001]


def test_records_out_of_place(client, topic):
    batch = batch_of_keys(b"a", b"b")
    at = bytes(batch).index(b"\x02a") - 1  # the offset delta in front of the key
    batch[at] = 2
    batch[CRC_AT:CRC_FROM] = struct.pack(">I", records.crc32c(bytes(batch[CRC_FROM:])))
    answer = client.produce(topic, batch)
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert answer.record_errors == []


def test_a_topic_that_is_not_compacted_takes_them(client):
    client.create_topic("plain")
    assert client.produce("plain", batch_of_keys(None)).error_code == 0
    assert wire.records_in(client.fetch("plain", 0).records)[0].key is None


# ── the scan itself ──


@pytest.mark.parametrize("cut", range(1, 30))
def test_half_a_batch_is_no_batch(cut):
    body = bytes(batch_of_keys(b"a", b"b", b"c")[61:])
    with pytest.raises(MalformedMessage):
        KeyScan(body[:-cut], 3).step(3)


def test_bytes_behind_the_records():
    body = bytes(batch_of_keys(b"a", b"b")[61:])
    with pytest.raises(MalformedMessage):
        KeyScan(body + b"\x00", 2).step(10)


def test_a_few_at_a_time():
    keys = [None if number % 7 == 0 else b"k" * number for number in range(20_000 // 10)]
    scan = KeyScan(bytes(batch_of_keys(*keys, value=b"")[61:]), len(keys))
    steps = 1
    while not scan.step(100):
        steps += 1
    assert steps == len(keys) // 100
    assert scan.keyless == [number for number, key in enumerate(keys) if key is None]
