"""An offset range is read to its end, each record once, or the error says why not."""

import random
from collections.abc import Callable
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from support.client.cutting_proxy import cutting
from support.client.fake_brokers import TOPIC, Cut, FakeCluster, fake_cluster
from support.client.written import ANONYMOUS, batch, new_topic, producer, write_somehow
from support.wire import wait_until
from test_fetching import end_of, rows, values
from tiers import in_full

from headwater.client.reading import range_fetcher
from headwater.client.reading.fetching import Fetcher
from headwater.errors import BrokerUnreachable, DataLost, MalformedMessage, RequestRefused
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.fetch import FetchResponsePartitionData

Fault = Callable[[FakeCluster, FetchResponsePartitionData], None]


def offsets_read(cluster: FakeCluster, start: int = 0, end: int = 300, **options: Any) -> list[int]:
    with Fetcher(cluster.address, ANONYMOUS, patience_s=10, **options) as fetcher:
        found = list(fetcher.read(TOPIC, 0, start, end, columns=("offset",)))
    return [number for batch in found for number in batch.column(0).to_pylist()]


def fails_with(code: ErrorCode) -> Fault:
    def fault(cluster: FakeCluster, data: FetchResponsePartitionData) -> None:
        data.error_code = code
        data.records = None

    return fault


def moves(cluster: FakeCluster, data: FetchResponsePartitionData) -> None:
    cluster.leader = 1 - cluster.leader
    fails_with(ErrorCode.NOT_LEADER_OR_FOLLOWER)(cluster, data)


def hangs_up(cluster: FakeCluster, data: FetchResponsePartitionData) -> None:
    raise Cut


def is_throttled(cluster: FakeCluster, data: FetchResponsePartitionData) -> None:
    data.partition_index = -1


def has_nothing_yet(cluster: FakeCluster, data: FetchResponsePartitionData) -> None:
    data.records = None


@pytest.mark.parametrize(
    "fault",
    [
        moves,
        hangs_up,
        is_throttled,
        has_nothing_yet,
        *map(
            fails_with,
            [
                ErrorCode.FENCED_LEADER_EPOCH,
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                ErrorCode.LEADER_NOT_AVAILABLE,
                ErrorCode.KAFKA_STORAGE_ERROR,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ErrorCode.OFFSET_OUT_OF_RANGE,  # of a leader that has just begun
            ],
        ),
    ],
)
def test_what_passes_is_waited_for(fault: Fault) -> None:
    with fake_cluster() as cluster:
        numbers = count()
        cluster.on_fetch = lambda data: fault(cluster, data) if next(numbers) % 3 == 1 else None
        assert offsets_read(cluster, 7, 293) == list(range(7, 293))
        assert next(numbers) > 6
        assert len(set(cluster.fetches)) < len(cluster.fetches)  # some were asked for again


def test_answers_that_begin_too_early() -> None:
    with fake_cluster() as cluster:

        def begins_too_early(data: FetchResponsePartitionData) -> None:
            before = cluster.log[: cluster.fetches[-1] // 10][-2:]
            data.records = b"".join([*before, data.records])

        cluster.on_fetch = begins_too_early
        assert offsets_read(cluster, 7, 293) == list(range(7, 293))


def test_batches_that_are_larger_than_what_is_asked_for() -> None:
    """The broker sends but the beginning of one; the next request asks for more."""
    with fake_cluster(batches=5, value_bytes=40_000) as cluster:
        cluster.limit_bytes = 1 << 30
        assert offsets_read(cluster, 3, 50) == list(range(3, 50))


@pytest.mark.parametrize("size", [70_001, 1000, 123_457])
def test_short_answers(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(range_fetcher, "_MAX_BYTES", size)
    with fake_cluster() as cluster:
        cluster.limit_bytes = max(size, 11_000)
        assert offsets_read(cluster) == list(range(300))


def test_what_retention_has_deleted_is_an_error() -> None:
    with fake_cluster() as cluster:
        cluster.start = 120
        with pytest.raises(
            DataLost, match="offset 7 was to be read, the first that is there is 120"
        ) as lost:
            offsets_read(cluster, 7)
        assert (lost.value.topic, lost.value.partition) == (TOPIC, 0)
        assert (lost.value.wanted, lost.value.first, lost.value.end) == (7, 120, 300)


def test_what_retention_deletes_meanwhile_is_an_error() -> None:
    with fake_cluster() as cluster:

        def deletes(data: FetchResponsePartitionData) -> None:
            cluster.start = 200

        cluster.on_fetch = deletes
        with Fetcher(cluster.address, ANONYMOUS, patience_s=10) as fetcher:
            found = []
            with pytest.raises(DataLost) as lost:
                for batch in fetcher.read(TOPIC, 0, 0, 300, columns=("offset",)):
                    found += batch.column(0).to_pylist()
        # What came before has been given, and the error says where it stopped.
        assert found == list(range(lost.value.wanted))
        assert 0 < len(found) < 200 == lost.value.first


def test_a_log_that_was_cut_is_an_error() -> None:
    with fake_cluster() as cluster:
        cluster.end = 100
        with pytest.raises(DataLost, match="offset 200 was to be read, the log ends at 100"):
            offsets_read(cluster, 200)
        cluster.log = cluster.log[:10]
        with (
            Fetcher(cluster.address, ANONYMOUS, patience_s=0.3) as fetcher,
            pytest.raises(DataLost, match="offset 100 was to be read, the log ends at 100"),
        ):
            list(fetcher.read(TOPIC, 0, 50, 300))


def test_nothing_up_to_the_end_is_believed_of_compacted_topics_only() -> None:
    """Of others it may be on its way from an archive: that must not be skipped."""
    with fake_cluster() as cluster:
        cluster.log = cluster.log[:20]
        with (
            Fetcher(cluster.address, ANONYMOUS, patience_s=0.3) as fetcher,
            pytest.raises(BrokerUnreachable, match="nothing has come behind offset 200 of 300"),
        ):
            list(fetcher.read(TOPIC, 0, 50, 300))
        cluster.cleanup_policy = "compact,delete"
        assert offsets_read(cluster, 50) == list(range(50, 200))
        assert offsets_read(cluster, 250) == []


def test_a_damaged_batch_is_an_error_that_names_it() -> None:
    with fake_cluster() as cluster:
        damaged = bytearray(cluster.log[20])
        damaged[500] ^= 1
        cluster.log[20] = bytes(damaged)
        with pytest.raises(MalformedMessage, match=r"t-0 .*offset 200"):
            offsets_read(cluster)
        assert offsets_read(cluster, 0, 200) == list(range(200))  # it is behind the range
        cluster.log[20] = (200).to_bytes(8) + bytes(8) + b"\1" + bytes(500)
        with pytest.raises(MalformedMessage, match=r"t-0 .*offset 200: .*record format v1"):
            offsets_read(cluster)


def test_a_refusal_is_no_reason_to_wait() -> None:
    with fake_cluster() as cluster:
        cluster.on_fetch = lambda data: fails_with(ErrorCode.TOPIC_AUTHORIZATION_FAILED)(
            cluster, data
        )
        with pytest.raises(RequestRefused, match="cannot be read") as refused:
            offsets_read(cluster)
        assert "--allow read --topic t" in refused.value.hint


def test_the_next_answer_is_asked_for_before_this_one_is_used() -> None:
    with fake_cluster() as cluster, Fetcher(cluster.address, ANONYMOUS) as fetcher:
        reading = fetcher.read(TOPIC, 0, 0, 300, columns=("offset",))
        first = next(reading)
        wait_until(lambda: cluster.fetches == [0, first.num_rows])
        # Another read, and a question, go past the answer that is waiting.
        assert end_of(fetcher, TOPIC) == 300
        assert len(values(fetcher, TOPIC, 100, 105)) == 5
        rest = pa.Table.from_batches(reading)
        assert rest.column(0).to_pylist() == list(range(first.num_rows, 300))


def test_a_read_that_is_given_up(headwater_address: str) -> None:
    topic = new_topic(headwater_address)
    with producer(headwater_address) as writer:
        writer.send({(topic, 0): [batch(b"x" * 100_000) for _ in range(200)]})
        writer.commit()
    with Fetcher(headwater_address, ANONYMOUS) as fetcher:
        for _ in range(3):
            reading = fetcher.read(topic, 0, 0, 200)
            next(reading)
            reading.close()
        assert not fetcher._cluster._borrowed
        reading = fetcher.read(topic, 0, 0, 200)
        next(reading)
        fetcher.close()
        with pytest.raises(BrokerUnreachable, match="closed"):
            list(reading)


@pytest.mark.parametrize("seed", [1, *in_full(2)])
def test_connections_that_are_cut(address: str, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(range_fetcher, "_MAX_BYTES", 20_000)
    monkeypatch.setattr(range_fetcher, "_MIN_BYTES", 20_000)
    topic, expected = new_topic(address, 3), {0: [], 1: [], 2: []}
    rng = random.Random(seed)
    with producer(address) as writer:
        for number in range(25):
            write_somehow(writer, topic, rng, number, expected)
        writer.fence()
        writer.send({(topic, 0): [batch(b"x" * 30_000) for _ in range(30)]})
        writer.commit()
        writer.fence()
        expected[0] += [b"x" * 30_000] * 30
    with cutting(monkeypatch, seed, odds=0.1) as proxy, Fetcher(address, ANONYMOUS) as fetcher:
        for partition, written in expected.items():
            end = end_of(fetcher, topic, partition)
            found = rows(fetcher, topic, 0, end, ("value",), partition)
            assert [row["value"] for row in found] == written
    assert proxy.cuts
