"""Erasing records of a running broker, beside consumers of another vendor."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as At
from support.client.written import ANONYMOUS, new_topic
from support.log.erasure_harness import bytes_in
from tiers import REAL_KAFKA, in_full

from headwater.broker.api.registry import APIS
from headwater.client import erasing
from headwater.client.erasing import erase_records
from headwater.client.topics import NewTopic, ensure_topics
from headwater.errors import ErasureUnsupported, NotReady, RequestRefused
from headwater.protocol.erased_records import ERASED_HEADER
from headwater.testing import InProcessBroker

TOPIC = "people"
COUNT = 200
PATIENCE_S = 60

Read = tuple[bytes | None, bytes | None, bool]  # key, value, whether it is marked as erased


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[InProcessBroker]:
    broker = InProcessBroker(str(tmp_path / "data"))
    broker.start()
    try:
        configs = {"segment.bytes": "16384", "index.interval.bytes": "1024"}
        ensure_topics(broker.bootstrap, ANONYMOUS, [NewTopic(TOPIC, 1, configs)])
        yield broker
    finally:
        broker.stop()


def value_of(number: int) -> bytes:
    return b"secret-%06d-" % number + b"x" * 100


def write(bootstrap: str, first: int = 0, *, codec: str = "none") -> None:
    """COUNT records of committed transactions, and between them one that was aborted."""
    settings = {
        "bootstrap.servers": bootstrap, "transactional.id": "writer", "compression.type": codec,
        "batch.num.messages": 20,
    }  # fmt: skip
    producer = Producer(settings)
    producer.init_transactions(PATIENCE_S)
    for part in range(4):
        producer.begin_transaction()
        for number in range(COUNT // 4):
            at = first + part * (COUNT // 4) + number
            producer.produce(TOPIC, value_of(at), b"person-%06d" % at, headers={"h": str(at)})
        producer.commit_transaction(PATIENCE_S)
        producer.begin_transaction()
        producer.produce(TOPIC, b"aborted", b"aborted")
        assert producer.flush(PATIENCE_S) == 0
        producer.abort_transaction(PATIENCE_S)


def read(bootstrap: str, count: int = COUNT, isolation: str = "read_committed") -> dict[int, Read]:
    """The first `count` records that a consumer gets, by offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "fetch.message.max.bytes": 4096,
        }
    )
    found: dict[int, Read] = {}
    try:
        consumer.assign([At(TOPIC, 0, 0)])
        while len(found) < count:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"{len(found)} of {count} records arrived"
            assert message.error() is None
            names = [name for name, _ in message.headers() or ()]
            found[message.offset()] = (
                message.key(), message.value(), ERASED_HEADER in names
            )  # fmt: skip
        return found
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", ["none", *in_full("gzip", "snappy", "lz4", "zstd")])
def test_a_consumer_gets_marked_blanks(broker: InProcessBroker, tmp_path: Path, codec: str) -> None:
    write(broker.bootstrap, codec=codec)
    before = read(broker.bootstrap)
    chosen = sorted(before)[::17]
    progress: list[tuple[int, int]] = []
    erased = erase_records(
        broker.bootstrap,
        ANONYMOUS,
        {(TOPIC, 0): chosen},
        on_progress=lambda done, total: progress.append((done, total)),
    )
    assert erased.partitions == {(TOPIC, 0): (len(chosen), 0)}
    assert (erased.erased, erased.already_gone) == (len(chosen), 0)
    assert progress[-1][0] == progress[-1][1] > 0
    wanted = {at: (None, None, True) if at in chosen else was for at, was in before.items()}
    assert read(broker.bootstrap) == wanted
    stored = bytes_in(tmp_path / "data")
    if codec == "none":
        assert all(before[offset][1] not in stored for offset in chosen)
        assert before[1][1] in stored
    again = erase_records(broker.bootstrap, ANONYMOUS, {(TOPIC, 0): chosen})
    assert again.partitions == {(TOPIC, 0): (0, len(chosen))}


def test_consumers_read_on_meanwhile(broker: InProcessBroker) -> None:
    """Each record is as it was or blank, and blank from some moment on; none is missing."""
    write(broker.bootstrap)
    before = read(broker.bootstrap)
    blank = (None, None, True)
    stopped, failures, rounds = threading.Event(), [], []

    def follow() -> None:
        try:
            seen: set[int] = set()
            while not stopped.is_set():
                found = read(broker.bootstrap)
                assert found.keys() == before.keys()
                for at, record in found.items():
                    assert record == blank or (record == before[at] and at not in seen), at
                    if record == blank:
                        seen.add(at)
                rounds.append(1)
        except BaseException as error:
            failures.append(error)

    reader = threading.Thread(target=follow)
    reader.start()
    try:
        for start in range(0, 100, 20):
            chosen = [
                offset for offset in sorted(before) if offset % 100 in range(start, start + 2)
            ]
            erase_records(broker.bootstrap, ANONYMOUS, {(TOPIC, 0): chosen})
    finally:
        stopped.set()
        reader.join(PATIENCE_S)
    assert not failures, failures
    assert rounds


def test_the_producers_go_on(broker: InProcessBroker) -> None:
    """An idempotent producer whose batches were rewritten sends its next ones."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for number in range(200):
        producer.produce(TOPIC, value_of(number))
        if number % 50 == 49:
            assert producer.flush(PATIENCE_S) == 0
            erase_records(broker.bootstrap, ANONYMOUS, {(TOPIC, 0): [number - 5]})
    found = read(broker.bootstrap, 200)
    assert [at for at, record in found.items() if record[2]] == list(range(44, 200, 50))
    broker.restart(crash=True)
    assert read(broker.bootstrap, 200) == found


def test_many_offsets_are_several_requests(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasing, "OFFSETS_PER_REQUEST", 7)
    monkeypatch.setattr(erasing, "REQUESTS_AT_ONCE", 3)
    write(broker.bootstrap)
    offsets = sorted(read(broker.bootstrap))[:50]
    erased = erase_records(broker.bootstrap, ANONYMOUS, {(TOPIC, 0): offsets})
    assert len(erased.erasure_ids) == 8
    assert erased.partitions == {(TOPIC, 0): (50, 0)}


def test_what_is_refused(broker: InProcessBroker) -> None:
    write(broker.bootstrap)

    def refusal(topic: str, partition: int, offset: int) -> str:
        with pytest.raises(RequestRefused) as refused:
            erase_records(broker.bootstrap, ANONYMOUS, {(topic, partition): [0, offset]})
        return str(refused.value)

    assert "there is no topic" in refusal("unknown", 0, 1)
    assert "there is no topic" in refusal(TOPIC, 3, 1)
    assert "offset 100000" in refusal(TOPIC, 0, 100_000)
    assert "internal" in refusal("__consumer_offsets", 0, 0)
    assert not [record for record in read(broker.bootstrap).values() if record[2]]
    assert erase_records(broker.bootstrap, ANONYMOUS, {}).partitions == {}


def test_a_time_that_is_too_short(broker: InProcessBroker) -> None:
    write(broker.bootstrap)
    with pytest.raises(NotReady) as late:
        erase_records(broker.bootstrap, ANONYMOUS, {(TOPIC, 0): [0]}, timeout_s=0)
    assert "continues by itself" in late.value.hint


def test_a_broker_without_it(broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(APIS, 10001)
    with pytest.raises(ErasureUnsupported) as unsupported:
        erase_records(broker.bootstrap, ANONYMOUS, {(TOPIC, 0): [0]})
    assert "tombstones" in unsupported.value.hint


@pytest.mark.parametrize("kind", [REAL_KAFKA])
def test_apache_kafka_has_it_not(kind: str, request: pytest.FixtureRequest) -> None:
    address: str = request.getfixturevalue(f"{kind}_address")
    topic = new_topic(address)
    with pytest.raises(ErasureUnsupported):
        erase_records(address, ANONYMOUS, {(topic, 0): [0]})
