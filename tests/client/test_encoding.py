import datetime as dt
import pickle

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.client.written import messages, new_topic, producer
from support.clients.kafka_tools import run_tool

from bench.peers.provision import missing_tools
from headwater.client.writing.batches import DEFAULT_MAX_BYTES, partition_of
from headwater.client.writing.encoding import EncodedBatch, Encoder, encode
from headwater.errors import UsageError
from headwater.protocol import compression, records
from headwater.protocol.records import Record

NOW_MS = 1_763_222_400_000
HEADERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("timestamp", pa.int64()),
        ("partition", pa.int32()),
    ]
)
nullable = st.none() | st.binary(max_size=300)
rows = st.fixed_dictionaries(
    {
        "key": nullable,
        "value": nullable,
        "headers": st.none()
        | st.lists(
            st.fixed_dictionaries({"name": st.text(max_size=20), "value": nullable}), max_size=3
        ),
        "timestamp": st.none() | st.integers(NOW_MS - 100_000, NOW_MS) | st.integers(0, 2**62),
        "partition": st.none() | st.integers(0, 2),
    }
)


def decoded(batches: list[EncodedBatch]) -> list[Record]:
    """As a broker takes them: one after the other, each checked."""
    found: list[Record] = []
    for batch in batches:
        built = batch.build()
        header = records.check_produced(memoryview(built))
        inside = list(records.records_of(built))
        assert [record.offset for record in inside] == list(range(batch.count))
        assert header.max_timestamp == max(record.timestamp_ms for record in inside)
        found += inside
    return found


def expected(given: list[dict], partitions: int) -> dict[int, list[tuple]]:
    wanted: dict[int, list[tuple]] = {}
    for row in given:
        at = row["partition"]
        if at is None:
            at = partition_of(row["key"], partitions)
        wanted.setdefault(at, []).append(
            (
                NOW_MS if row["timestamp"] is None else row["timestamp"],
                row["key"],
                row["value"],
                [(header["name"], header["value"]) for header in row["headers"] or ()],
            )
        )
    return wanted


@settings(deadline=None)
@given(
    given=st.lists(rows, min_size=1, max_size=40),
    codec=st.sampled_from(compression.NAMES),
    max_bytes=st.sampled_from([1, 500, DEFAULT_MAX_BYTES]),
    cut=st.integers(0, 40),
)
def test_what_is_encoded_is_what_a_broker_reads(given, codec, max_bytes, cut) -> None:
    encoder = Encoder(3, compression=codec, max_bytes=max_bytes, now_ms=NOW_MS)
    for part in (given[:cut], given[cut:]):
        encoder.add(pa.RecordBatch.from_pylist(part, SCHEMA))
    encoded = encoder.finish()
    found = {
        partition: [
            (record.timestamp_ms, *record[2:4], record.headers) for record in decoded(batches)
        ]
        for partition, batches in encoded.items()
    }
    assert found == expected(given, 3)
    assert all(
        batch.size_bytes <= max_bytes or batch.count == 1
        for batches in encoded.values()
        for batch in batches
    )


@settings(deadline=None)
@given(
    keys=st.lists(st.none() | st.binary(max_size=40), min_size=1), partitions=st.integers(1, 100)
)
def test_a_key_has_the_partition_that_it_has_everywhere(keys, partitions) -> None:
    encoded = encode(pa.table({"key": pa.array(keys, pa.binary()), "value": keys}), partitions)
    for partition, batches in encoded.items():
        wanted = [key for key in keys if partition_of(key, partitions) == partition]
        assert [record.key for record in decoded(batches)] == wanted


@pytest.mark.parametrize("text", [pa.string(), pa.large_string(), pa.string_view()])
def test_text_is_its_bytes_whatever_arrow_calls_it(text) -> None:
    values = pa.array(["zeroth", "first", None, "sänd", "", "last"], text).slice(1)
    table = pa.table({"key": pa.nulls(5), "value": values})
    found = decoded(encode(table, 1)[0])
    assert [record.value for record in found] == [b"first", None, "sänd".encode(), b"", b"last"]


def test_a_slice_of_columns_is_only_that_slice() -> None:
    given = [
        {"key": b"%d" % n, "value": None, "headers": [{"name": f"h{n}", "value": b"%d" % n}]}
        for n in range(10)
    ]
    whole = pa.RecordBatch.from_pylist(given, SCHEMA)
    found = decoded(encode(whole.slice(4, 3), 1)[0])
    assert [(record.key, record.headers) for record in found] == [
        (b"%d" % n, [(f"h{n}", b"%d" % n)]) for n in (4, 5, 6)
    ]


def test_times_of_any_unit_are_milliseconds() -> None:
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678_901, dt.UTC)
    table = pa.table(
        {"key": [None], "value": [b""], "timestamp": pa.array([at], pa.timestamp("us", "UTC"))}
    )
    assert decoded(encode(table, 1)[0])[0].timestamp_ms == int(at.timestamp() * 1000)


def test_who_sends_it_is_written_last_and_it_survives_the_way_to_another_process() -> None:
    table = pa.table({"key": [b"k"] * 3, "value": [b"v"] * 3})
    (batch,) = pickle.loads(pickle.dumps(encode(table, 1)))[0]
    built = batch.build(producer_id=7, producer_epoch=3, base_sequence=9, is_transactional=True)
    header = records.check_produced(memoryview(built))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 9)
    assert header.attributes == records.TRANSACTIONAL | compression.LZ4


def test_nothing_is_no_batch() -> None:
    assert encode(SCHEMA.empty_table(), 3) == {}


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"value": [b""]}, "made of the columns"),
        ({"key": [b""], "value": [b""], "colour": [b""]}, "made of the columns"),
        ({"key": [1], "value": [b""]}, "bytes or text"),
        ({"key": [b""], "value": [b""], "partition": [3]}, "no partition 3"),
        ({"key": [b""], "value": [b""], "partition": [-1]}, "no partition -1"),
        ({"key": [b""], "value": [b""], "partition": ["0"]}, "an integer"),
        ({"key": [b""], "value": [b""], "timestamp": ["now"]}, "time or milliseconds"),
        ({"key": [b""], "value": [b""], "headers": [b"h"]}, "list of structs"),
        ({"key": [b""], "value": [b""], "headers": [[{"n": None, "v": b""}]]}, "no name"),
    ],
)
def test_columns_that_are_no_records(columns, says) -> None:
    with pytest.raises(UsageError, match=says):
        encode(pa.table(columns), 3)


def _written(address: str) -> tuple[str, list[tuple]]:
    topic = new_topic(address, 2)
    given = [
        {
            "key": b"key-%d" % (n % 50),
            "value": b"value-%d " % n + b"x" * (n % 700),
            "headers": [{"name": "n", "value": b"%d" % n}] if n % 3 == 0 else None,
            "timestamp": NOW_MS + n * 7 % 1000,
        }
        for n in range(5_000)
    ]
    for codec in compression.NAMES:
        with producer(address, compression="none") as writer:
            encoded = encode(
                pa.Table.from_pylist(given, SCHEMA), 2, compression=codec, max_bytes=200_000
            )
            assert all(len(batches) > 1 for batches in encoded.values())
            writer.send({(topic, at): batches for at, batches in encoded.items()})
            writer.commit()
    return topic, [(row["key"], row["value"], row["headers"], row["timestamp"]) for row in given]


def test_librdkafka_reads_what_was_encoded(address) -> None:
    topic, given = _written(address)
    for partition in (0, 1):
        wanted = [
            (key, value, [(h["name"], h["value"]) for h in headers or ()], (1, at_ms))
            for key, value, headers, at_ms in given
            if partition_of(key, 2) == partition
        ] * len(compression.NAMES)
        found = [
            (message.key(), message.value(), message.headers() or [], message.timestamp())
            for message in messages(address, topic, partition)
        ]
        assert found == wanted


@pytest.mark.java
@pytest.mark.skipif(bool(missing_tools("java", "mvn")), reason="needs java and mvn on the PATH")
def test_java_reads_what_was_encoded(headwater_address) -> None:
    topic, given = _written(headwater_address)
    count = len(given) * len(compression.NAMES)
    said = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "--bootstrap-server", headwater_address, "--topic", topic,
        "--from-beginning", "--max-messages", str(count), "--timeout-ms", "20000",
        "--formatter-property", "print.key=true",
    )  # fmt: skip
    wanted = sorted(f"{key.decode()}\t{value.decode()}" for key, value, *_ in given)
    assert sorted(said.stdout.splitlines()) == sorted(wanted * len(compression.NAMES)), said.stderr
