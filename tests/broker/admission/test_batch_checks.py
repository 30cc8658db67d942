"""A batch holds the records that it claims, and of a compacted topic each has a key."""

import contextlib
import copy
import gzip
import random
import struct
import threading
import time

import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from support import wire
from support.wire import Wire, produce_request
from tiers import examples

from headwater.broker.admission import batch_checks
from headwater.broker.network import connection
from headwater.errors import MalformedMessage
from headwater.protocol import compression, records
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.record_scan import KEYLESS, KeyScan, LengthScan
from headwater.protocol.records import CRC_AT, CRC_FROM, HEADER_BYTES, Record, build_batch
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
    assert [error.batch_index for error in answer.record_errors] == [1, count - 1]
    assert all("key" in error.batch_index_error_message for error in answer.record_errors)
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
    assert [answer.error_code for answer in answers] == [
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


def test_no_more_records_without_a_key_are_named_than_fit_an_answer(client, topic):
    answer = client.produce(topic, batch_of_keys(*[None] * 30_000, codec=compression.ZSTD))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in answer.record_errors] == list(range(1000))


# ── what a compressed batch claims ──

COMPRESSED = range(1, 5)


def claiming(batch: bytearray, count: int, body: bytes | None = None) -> bytearray:
    """The batch with another number of records in its header, and perhaps another body."""
    if body is not None:
        batch = batch[:HEADER_BYTES] + body
        struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">i", batch, 57, count)
    struct.pack_into(">I", batch, CRC_AT, records.crc32c(bytes(batch[CRC_FROM:])))
    return batch


@pytest.fixture
def plain_topic(client, request) -> str:
    name = "".join(c if c.isalnum() else "_" for c in request.node.name)
    client.create_topic(name)
    return name


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("count", [1, 2**31 - 1])
def test_a_batch_that_does_not_decompress_is_refused(client, plain_topic, codec, count):
    batch = claiming(batch_of_keys(b"a", codec=codec), count, b"fifteen of them")
    assert len(batch) == 76
    answer = client.produce(plain_topic, batch)
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert answer.error_message
    assert client.fetch(plain_topic, 0).high_watermark == 0


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("count", [3, 20_000])
def test_a_batch_with_more_or_fewer_records_than_it_claims_is_refused(
    client, plain_topic, codec, count
):
    batch = batch_of_keys(*[b"key"] * count, codec=codec)
    for claimed in (1, count - 1, count + 1, 2**31 - 1):
        answer = client.produce(plain_topic, claiming(batch[:], claimed))
        assert answer.error_code == ErrorCode.INVALID_RECORD
    assert client.fetch(plain_topic, 0).high_watermark == 0
    assert client.produce(plain_topic, batch).base_offset == 0
    assert client.fetch(plain_topic, 0).high_watermark == count


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_batch_that_is_cut_is_refused(client, plain_topic, codec):
    batch = batch_of_keys(*[b"key"] * 100, codec=codec)
    for cut in (1, 2, 7):
        answer = client.produce(plain_topic, claiming(batch[:], 100, bytes(batch[61:-cut])))
        assert answer.error_code == ErrorCode.INVALID_RECORD


def test_a_batch_that_decompresses_to_too_much_is_refused(client, plain_topic):
    bomb = zstandard.compress(bytes(200 << 20))
    batch = claiming(batch_of_keys(b"a", codec=compression.ZSTD), 1, bomb)
    assert client.produce(plain_topic, batch).error_code == ErrorCode.INVALID_RECORD


FRAMES = {
    "lz4 linked": (3, lambda data: lz4.frame.compress(data, block_linked=True)),
    "lz4 large blocks": (3, lambda data: lz4.frame.compress(data, block_size=7)),
    "lz4 everything": (
        3,
        lambda data: lz4.frame.compress(
            data, block_linked=False, block_checksum=True, content_checksum=True, block_size=4
        ),
    ),
    "lz4 without its size": (3, lambda data: lz4.frame.compress(data, store_size=False)),
    "zstd": (4, zstandard.compress),
    "zstd checksum": (4, zstandard.ZstdCompressor(write_checksum=True, level=9).compress),
    "zstd without its size": (
        4,
        zstandard.ZstdCompressor(write_content_size=False).compress,
    ),
    "zstd stream": (4, lambda data: _streamed(zstandard.ZstdCompressor().compressobj(), data)),
    "gzip": (1, gzip.compress),
    "gzip stored": (1, lambda data: gzip.compress(data, compresslevel=0)),
    "snappy": (2, snappy.compress),
}


def _streamed(stream, data: bytes) -> bytes:
    parts = [stream.compress(data[at : at + 1000]) for at in range(0, len(data), 1000)]
    return b"".join((*parts, stream.flush()))


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("count", [1, 10_000])
def test_frames_as_other_libraries_write_them_are_taken(client, plain_topic, frame, count):
    codec, compress = FRAMES[frame]
    noise = random.Random(count)
    values = [Record(0, 0, b"k", noise.randbytes(count % 97)) for _ in range(count)]
    body = compress(bytes(build_batch(values)[HEADER_BYTES:]))
    batch = claiming(batch_of_keys(b"a", codec=codec), count, body)
    assert client.produce(plain_topic, batch).error_code == 0


@pytest.mark.parametrize("frame", FRAMES)
@given(data=st.one_of(st.binary(max_size=2000), st.integers(0, 300_000).map(bytes)))
@settings(max_examples=examples(25), deadline=None)
def test_nothing_decompresses_to_more_than_its_bound(frame, data):
    codec, compress = FRAMES[frame]
    packed = compress(data)
    bound = compression.decompressed_bound(codec, packed, 1000)
    assert len(data) <= bound <= len(data) + (128 << 10)
    assert bytes(compression.decompress(codec, packed, bound + 1)) == data


@given(codec=st.sampled_from(COMPRESSED), data=st.binary(max_size=100))
@settings(max_examples=examples(200), deadline=None)
def test_a_bound_of_garbage(codec, data):
    magic = {3: b"\x04\x22\x4d\x18", 4: b"\x28\xb5\x2f\xfd"}.get(codec, b"")
    for garbage in (data, magic + data):
        with contextlib.suppress(MalformedMessage):
            assert compression.decompressed_bound(codec, garbage, 50) >= 0


def test_a_frame_of_countless_blocks_is_refused(client, plain_topic):
    """Empty blocks of three bytes each: walking over them takes time."""
    frame = b"\x28\xb5\x2f\xfd\x00\x58" + bytes(3) * 300_000 + b"\x01\x00\x00"
    with pytest.raises(compression.TooManyBlocks):
        compression.decompressed_bound(compression.ZSTD, frame, 10_000)
    batch = claiming(batch_of_keys(b"a", codec=compression.ZSTD), 1, frame)
    assert client.produce(plain_topic, batch).error_code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [compression.LZ4, compression.ZSTD])
def test_countless_frames_are_countless_blocks(codec):
    empty = {
        compression.LZ4: lz4.frame.compress(b"", store_size=False),
        compression.ZSTD: b"\x50\x2a\x4d\x18" + bytes(4),  # skippable
    }
    with pytest.raises(compression.TooManyBlocks):
        compression.decompressed_bound(codec, empty[codec] * 1000, 999)


# ── one check for each request ──


@pytest.fixture
def slow_decompression(monkeypatch):
    """Requests look again every few milliseconds; decompression waits until it is released."""

    class Gate:
        def __init__(self) -> None:
            self.is_open = threading.Event()
            self.calls = 0

    gate, decompress = Gate(), compression.decompress

    def slow(codec, data, limit_bytes, **options):
        if threading.current_thread().name.startswith("read"):
            gate.calls += 1
            assert gate.is_open.wait(60)
        return decompress(codec, data, limit_bytes, **options)

    monkeypatch.setattr(compression, "decompress", slow)
    monkeypatch.setattr(connection, "HELD_LOOK_S", 0.005)
    yield gate
    gate.is_open.set()


def checks(monkeypatch) -> list[int]:
    """Grows with every check of a request."""
    seen: list[int] = []
    check = batch_checks.BatchChecks.check

    def counted(self, request, context):
        seen.append(context.correlation_id)
        return check(self, request, context)

    monkeypatch.setattr(batch_checks.BatchChecks, "check", counted)
    return seen


def until(condition) -> None:
    ends_at = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < ends_at
        time.sleep(0.002)


def test_a_request_that_looks_again_starts_no_further_scan(
    client, topic, slow_decompression, monkeypatch
):
    seen = checks(monkeypatch)
    keys = [b"key %d" % number for number in range(5000)]
    client.send(produce_request(topic, batch_of_keys(*keys, codec=compression.LZ4)), 9)
    until(lambda: len(seen) > 10)
    slow_decompression.is_open.set()
    assert client.receive().responses[0].partition_responses[0].base_offset == 0
    assert slow_decompression.calls == 1


def test_an_outcome_counts_for_its_own_request_only(client, topic, slow_decompression, monkeypatch):
    """The second request has its batch at the same index, and none of its records has a key."""
    seen = checks(monkeypatch)
    keys = [b"key %d" % number for number in range(5000)]
    client.send(produce_request(topic, batch_of_keys(*keys, codec=compression.LZ4)), 9)
    client.send(produce_request(topic, batch_of_keys(*[None] * 5000, codec=compression.LZ4)), 9)
    until(lambda: len(seen) > 10)
    slow_decompression.is_open.set()
    answers = [client.receive().responses[0].partition_responses[0] for _ in range(2)]
    assert [answer.error_code for answer in answers] == [0, ErrorCode.INVALID_RECORD]
    assert slow_decompression.calls == 2


def test_a_client_that_goes_leaves_nothing_behind(broker, topic, slow_decompression):
    server = broker.running.server
    keys = [b"key %d" % number for number in range(5000)]
    with Wire(broker.bootstrap) as going:
        going.send(produce_request(topic, batch_of_keys(*keys, codec=compression.LZ4)), 9)
        until(lambda: slow_decompression.calls == 1)
    until(lambda: going.socket.fileno() == -1 and len(server.connections) <= 1)
    slow_decompression.is_open.set()
    until(lambda: server.buffered_bytes == 0)
    with Wire(broker.bootstrap) as again:
        assert again.fetch(topic, 0).high_watermark == 0


def test_what_checks_decompress_is_counted_and_bounded(tmp_path, monkeypatch):
    """Twenty requests of some hundred bytes that decompress to 8 MiB each."""
    active: list[int] = []
    most, counted = [0], []
    lock = threading.Lock()
    scan = batch_checks._scan

    def measured(batch, limit_bytes, *buffer):
        with lock:
            active.append(limit_bytes)
            most[0] = max(most[0], sum(active))
            counted.append(broker.running.server.buffered_bytes)
        try:
            return scan(batch, limit_bytes, *buffer)
        finally:
            with lock:
                active.remove(limit_bytes)

    monkeypatch.setattr(batch_checks, "_scan", measured)
    bomb = batch_of_keys(b"a", b"b", codec=compression.ZSTD, value=bytes(4 << 20))
    settings = BrokerSettings(listen="127.0.0.1:0", max_buffered_bytes=128 << 20)
    with (
        InProcessBroker.serving(str(tmp_path), settings) as broker,
        wire.many(broker.bootstrap, 20) as clients,
    ):
        clients[0].create_configured("t", {"cleanup.policy": "compact"})
        counted.clear()
        for client in clients:
            client.send(produce_request("t", bomb), 9)
        for client in clients:
            assert client.receive().responses[0].partition_responses[0].error_code == 0
        assert any(
            size_bytes >= 8 << 20 for size_bytes in counted
        )  # the server stops reading at its limit
        assert most[0] <= 32 << 20
        until(lambda: broker.running.server.buffered_bytes == 0)


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
    assert scan.refused == [(number, KEYLESS) for number, key in enumerate(keys) if key is None]


@pytest.mark.parametrize("size_bytes", [0, 60, 100, 8000, 9000, 3 << 20])
def test_lengths_of_every_number_of_bytes(size_bytes):
    body = bytes(batch_of_keys(b"a", b"b", b"c", value=bytes(size_bytes))[HEADER_BYTES:])
    assert LengthScan(body, 3).step(3)
    assert not LengthScan(memoryview(body), 3).step(2)
    for wrong, count in ((body[:-1], 3), (body + b"\0", 3), (body, 2), (body, 4), (b"", 1)):
        with pytest.raises(MalformedMessage):
            LengthScan(wrong, count).step(10)


@pytest.mark.parametrize("body", [b"\x01", b"\xff" * 20, b"\xff\xff\xff\xff\x0f", b"\x80\x80"])
def test_lengths_that_are_none(body):
    with pytest.raises(MalformedMessage):
        LengthScan(body, 1).step(1)
