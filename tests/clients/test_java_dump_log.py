"""Kafka's own DumpLogSegments reads the files that the broker has written, and finds no fault."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from support.clients.broker_under_test import Broker, running_broker
from support.clients.kafka_tools import run_tool

from bench.peers.provision import missing_tools
from headwater.client.erasing import erase_records
from headwater.settings import ClientSettings

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(bool(missing_tools("java", "mvn")), reason="needs java and mvn on the PATH"),
]

SEGMENT_BYTES = 1024 * 1024  # Kafka's minimum
COUNT = 3000
NOT_YET = (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def dump(*args: str) -> str:
    done = run_tool("DumpLogSegments", *args)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mismatch" not in done.stdout.lower(), done.stdout
    assert "not valid" not in done.stdout, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def log_dir(broker: Broker) -> Path:
    if broker.log_dir is None:
        pytest.skip("the broker's files are not on this machine")
    return broker.log_dir


def create_topic(broker: Broker, name: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    topic = NewTopic(
        name, 1, 1, config={key.replace("_", "."): value for key, value in config.items()}
    )
    admin.create_topics([topic])[name].result(60)


def produce(broker: Broker, topic: str, values: Iterator[str], **settings: str) -> None:
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "enable.idempotence": True,
            "batch.size": 16384,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
    )
    for number, value in enumerate(values):
        producer.produce(topic, value, key=f"key {number}", headers={"number": str(number)})
        producer.poll(0)
    assert producer.flush(60) == 0


@pytest.fixture(scope="module")
def rolled(broker: Broker, log_dir: Path) -> Path:
    """The directory of a partition with sealed segments, written by an idempotent producer."""
    create_topic(broker, "dump-rolled", segment_bytes=str(SEGMENT_BYTES))
    produce(broker, "dump-rolled", (f"value {n} ".ljust(1000, ".") for n in range(COUNT)))
    return next(log_dir.rglob("dump-rolled-0"))


def sealed(partition: Path, suffix: str) -> list[str]:
    """The files of all segments but the active one, oldest first."""
    bases = sorted(file.stem for file in partition.glob("*.log"))
    assert len(bases) > 2, f"the log has not rolled: {bases}"
    return [str(partition / f"{base}{suffix}") for base in bases[:-1]]


def test_records_are_read_back(rolled: Path) -> None:
    files = ",".join(str(file) for file in sorted(rolled.glob("*.log")))
    said = dump("--deep-iteration", "--print-data-log", "--files", files)
    records = re.findall(
        r"offset: (\d+) .*headerKeys: \[number\] key: key (\d+) payload: value (\d+) \.+$",
        said,
        re.MULTILINE,
    )
    assert records == [(str(n), str(n), str(n)) for n in range(COUNT)]
    batches = re.findall(r"baseOffset: .* isvalid: (\w+)", said)
    assert batches
    assert set(batches) == {"true"}
    assert re.search(r"baseSequence: 0 lastSequence: \d+ producerId: \d+ producerEpoch: 0 ", said)


def test_offset_index(rolled: Path) -> None:
    files = ",".join(sealed(rolled, ".index"))
    assert dump("--index-sanity-check", "--files", files).count("passed sanity check") > 1
    entries = re.findall(r"offset: (\d+) position: (\d+)", dump("--files", files))
    assert len(entries) > 100


def test_time_index(rolled: Path) -> None:
    files = ",".join(sealed(rolled, ".timeindex"))
    assert dump("--index-sanity-check", "--files", files).count("passed sanity check") > 1
    entries = re.findall(r"timestamp: (\d+) offset: (\d+)", dump("--files", files))
    assert entries


def test_producer_snapshot(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        if broker.log_dir is None:
            pytest.skip("the broker's files are not on this machine")
        create_topic(broker, "dump-snapshot")
        produce(broker, "dump-snapshot", (f"value {n}" for n in range(100)))
    # It is taken at the latest when the broker stops, and named after the offset that comes next.
    (newest,) = tmp_path.rglob("dump-snapshot-0/*100.snapshot")
    said = dump("--files", str(newest))
    assert re.search(r"producerId: \d+ producerEpoch: 0 .*lastSequence: 99 ", said), said


@pytest.fixture(scope="module")
def transactional(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a partition with a committed, an aborted and an open transaction, as a
    clean stop leaves it.
    """
    path = tmp_path_factory.mktemp("dump-transactions")
    with running_broker(path) as broker:
        if broker.log_dir is None:
            pytest.skip("the broker's files are not on this machine")
        create_topic(broker, "dump-transactions")
        settings = {"bootstrap.servers": broker.address, "transactional.id": "dump"}
        producer = Producer(settings)
        producer.init_transactions(30)
        for number, end in enumerate(
            [producer.commit_transaction, producer.abort_transaction, lambda _: None]
        ):
            producer.begin_transaction()
            for count in range(10):
                producer.produce("dump-transactions", f"value {number} {count}")
            assert producer.flush(60) == 0
            end(30)
        directory = broker.log_dir
    return next(directory.rglob("dump-transactions-0"))


def test_control_batches(transactional: Path) -> None:
    files = ",".join(str(file) for file in sorted(transactional.glob("*.log")))
    said = dump("--deep-iteration", "--print-data-log", "--files", files)
    markers = re.findall(
        r"isControl: true .*?endTxnMarker: (\w+) coordinatorEpoch: (\d+)", said, re.DOTALL
    )
    assert [kind for kind, _ in markers] == ["COMMIT", "ABORT"]
    assert len(re.findall(r"payload: value \d \d", said)) == 30
    assert set(re.findall(r"isTransactional: (\w+)", said)) == {"true"}


def test_transaction_index(transactional: Path) -> None:
    (file,) = transactional.glob("*.txnindex")
    said = dump("--files", str(file))
    # 10 records and a marker; then 10 and a marker again, and everything is decided.
    found = re.findall(
        r"producerId: \d+ firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)", said
    )
    assert found == [("11", "21", "22")], said


def test_an_open_transaction_in_the_producer_snapshot(transactional: Path) -> None:
    newest = max(transactional.glob("*.snapshot"))
    said = dump("--files", str(newest))
    assert re.search(r"currentTxnFirstOffset: (?:OptionalLong\[|Some\()?22", said), said


def test_compressions_are_stored_as_sent(broker: Broker, log_dir: Path) -> None:
    create_topic(broker, "dump-codecs")
    for codec in CODECS:
        values = (f"{codec} {n} " + "x" * 100 for n in range(100))
        produce(broker, "dump-codecs", values, compression_codec=codec, linger_ms="50")
    (file,) = next(log_dir.rglob("dump-codecs-0")).glob("*.log")
    said = dump("--deep-iteration", "--print-data-log", "--files", str(file))
    stored = list(dict.fromkeys(re.findall(r"compresscodec: (\w+)", said)))
    assert stored == CODECS
    payloads = re.findall(r"payload: (\w+) (\d+) x+$", said, re.MULTILINE)
    assert payloads == [(codec, str(n)) for codec in CODECS for n in range(100)]


@pytest.fixture(scope="module")
def erased(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a partition with batches of all codecs, and of transactions, in which every
    seventh record was erased.
    """
    if os.environ.get("HEADWATER_TEST_BOOTSTRAP"):
        pytest.skip("Apache Kafka erases no records")
    with running_broker(tmp_path_factory.mktemp("dump-erased")) as broker:
        create_topic(broker, "dump-erased", segment_bytes=str(SEGMENT_BYTES))
        for codec in CODECS:
            values = (f"value {codec} {n} ".ljust(1000, ".") for n in range(500))
            produce(broker, "dump-erased", values, compression_codec=codec, linger_ms="50")
        settings = {"bootstrap.servers": broker.address, "transactional.id": "dump"}
        producer = Producer(settings)
        producer.init_transactions(30)
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            for number in range(50):
                producer.produce("dump-erased", f"value in transaction {number}", key="key 1")
            assert producer.flush(60) == 0
            end(30)
        erase_records(broker.address, ClientSettings(), {("dump-erased", 0): range(0, 2600, 7)})
        assert broker.log_dir is not None
        directory = broker.log_dir
    return next(directory.rglob("dump-erased-0"))


def test_erased_records(erased: Path) -> None:
    files = ",".join(str(file) for file in sorted(erased.glob("*.log")))
    said = dump("--deep-iteration", "--print-data-log", "--files", files)
    assert set(re.findall(r"baseOffset: .* isvalid: (\w+)", said)) == {"true"}
    assert set(re.findall(r"compresscodec: (\w+)", said)) == set(CODECS)
    markers = re.findall(r"endTxnMarker: (\w+)", said)
    assert markers == ["COMMIT", "ABORT"]
    records = {
        int(offset): (key, payload)
        for offset, key, payload in re.findall(
            r"^\| offset: (\d+) .*?headerKeys: \[([^\]]*)\](?: key: key \d+)?"
            r"(?: payload: value (.*?))?[ .]*$",
            said,
            re.MULTILINE,
        )
    }
    assert len(records) == 2600
    # The markers' own offsets are 2550 and 2601.
    for offset, (headers, payload) in records.items():
        is_blank = offset % 7 == 0 and offset != 2550 and offset < 2600
        assert (headers == "headwater.erased") == is_blank, offset
        assert bool(payload) != is_blank, offset
    indexes = [min(erased.glob(f"*.{kind}")) for kind in ("index", "timeindex")]
    assert all(file.stat().st_size for file in indexes)
    for file in indexes:
        assert "passed sanity check" in dump("--index-sanity-check", "--files", str(file))
    (aborted,) = [file for file in erased.glob("*.txnindex") if file.stat().st_size]
    assert re.search(r"firstOffset: 2551 lastOffset: 2601", dump("--files", str(aborted)))


def commit(consumer: Consumer, position: TopicPartition) -> None:
    """Commits; the first commit of all may find Kafka's coordinator still loading."""
    deadline = time.monotonic() + 20
    while True:
        try:
            consumer.commit(offsets=[position], asynchronous=False)
        except KafkaException as refused:
            if refused.args[0].code() not in NOT_YET or time.monotonic() > deadline:
                raise
        else:
            return


def test_committed_offsets_are_in_kafkas_format(broker: Broker, log_dir: Path) -> None:
    create_topic(broker, "dump-committed")
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "dump-group"})
    try:
        commit(consumer, TopicPartition("dump-committed", 0, 4711, metadata="a note"))
    finally:
        consumer.close()
    files = [file for file in log_dir.rglob("__consumer_offsets-*/*.log") if file.stat().st_size]
    said = dump("--offsets-decoder", "--files", ",".join(map(str, files)))
    (line,) = [line for line in said.splitlines() if "dump-group" in line and "4711" in line]
    assert "dump-committed" in line
    assert "a note" in line
