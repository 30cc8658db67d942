"""A group's offsets in a transaction: pending until it ends, then committed or dropped."""

import asyncio

import pytest
from support.broker.txn_harness import Producer

from headwater.broker.broker import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headwater.broker.internal_topics.records import partition_for
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.delete_groups import DeleteGroupsRequest
from headwater.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headwater.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from headwater.protocol.messages.write_txn_markers import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersRequestWritableTxnMarker,
    WriteTxnMarkersRequestWritableTxnMarkerTopic,
)

KEY = ("t", 0)
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT


def commit(cluster, group, offset, key=KEY):
    topic, index = key
    partition = OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
    topics = [OffsetCommitRequestTopic(name=topic, partitions=[partition])]
    answer = cluster.ask(OffsetCommitRequest(group_id=group, topics=topics), 8)
    assert answer.topics[0].partitions[0].error_code == 0


def offset(cluster, group="g", key=KEY, **options):
    return cluster.offsets(group, key, **options)[key]


@pytest.mark.parametrize("crash", [None, True, False])
@pytest.mark.parametrize("commits", [True, False])
def test_offsets_count_when_the_transaction_commits(cluster, producer, commits, crash):
    commit(cluster, "g", 5)
    assert producer.send_offsets("g", {KEY: 7, ("u", 1): 9}) == 0

    def restart():
        if crash is not None:
            cluster.restart(crash=crash)

    restart()
    assert offset(cluster) is UNSTABLE
    assert offset(cluster, key=("u", 1)) is UNSTABLE
    assert offset(cluster, key=("t", 1)) == -1
    assert offset(cluster, require_stable=False) == 5
    assert offset(cluster, "other") == -1
    assert producer.end(commit=commits) == 0
    for _ in range(2):
        assert offset(cluster) == (7 if commits else 5)
        assert offset(cluster, key=("u", 1)) == (9 if commits else -1)
        restart()
    # Only the one partition of the group has a marker.
    index = partition_for("g", 50)
    assert len(cluster.markers(OFFSETS_TOPIC, index)) == 1
    assert cluster.markers(OFFSETS_TOPIC, (index + 1) % 50) == []


@pytest.mark.parametrize("crash", [None, True])
def test_what_lies_further_back_in_the_log_wins(cluster, producer, crash):
    """As in Kafka: a plain commit behind the pending one, though in front of the marker."""
    producer.send_offsets("g", {KEY: 7})
    commit(cluster, "g", 3)
    assert offset(cluster) is UNSTABLE
    producer.commit()
    assert offset(cluster) == 3
    producer.send_offsets("g", {KEY: 8})
    producer.commit()
    if crash is not None:
        cluster.restart(crash=crash)
    assert offset(cluster) == 8


def test_two_transactions_for_one_offset(cluster):
    one, two = Producer(cluster, "one"), Producer(cluster, "two")
    for number, producer in enumerate((one, two)):
        producer.init()
        producer.send_offsets("g", {KEY: number + 1})
    assert two.commit() == 0
    assert offset(cluster) is UNSTABLE
    assert offset(cluster, require_stable=False) == 2
    cluster.restart(crash=True)
    assert offset(cluster) is UNSTABLE
    assert one.commit() == 0
    assert offset(cluster) == 2
    cluster.restart(crash=True)
    assert offset(cluster) == 2


def test_an_offset_is_pending_from_the_moment_it_is_appended(cluster, producer):
    """Else a consumer that takes over would go on from the one before it (KIP-447)."""
    producer.send("t", b"x")

    async def in_the_middle():
        call = asyncio.ensure_future(cluster.call(producer.offsets_request("g", {KEY: 7}), 5))
        await asyncio.sleep(0)
        is_unstable = cluster.broker.groups.offsets.is_unstable("g", *KEY)
        assert not call.done()
        await call
        return is_unstable

    producer.has_kip_890 = True
    assert cluster.runner.run(in_the_middle())


def test_a_fenced_producers_offsets_are_dropped(cluster, producer):
    producer.send_offsets("g", {KEY: 7})
    other = Producer(cluster, "payments")
    other.init()
    assert offset(cluster) == -1
    assert producer.send_offsets_only("g", {KEY: 8}) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert other.send_offsets("g", {KEY: 9}) == 0
    assert other.commit() == 0
    assert offset(cluster) == 9


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (0, ErrorCode.INVALID_TXN_STATE),
        (3, ErrorCode.INVALID_TXN_STATE),
        (4, ErrorCode.TRANSACTION_ABORTABLE),
        (5, ErrorCode.NONE),
    ],
)
def test_older_clients_add_the_group_before(cluster, version, code):
    producer = Producer(cluster, "payments")
    producer.init()
    assert producer.send_offsets_only("g", {KEY: 1}, version) == code
    assert offset(cluster) == (-1 if code else UNSTABLE)


@pytest.mark.parametrize(
    ("member", "code"),
    [
        ({"member_id": "nobody", "generation_id": 3}, ErrorCode.ILLEGAL_GENERATION),
        ({}, ErrorCode.NONE),
    ],
)
def test_members_of_a_group_that_there_is_not(cluster, producer, member, code):
    assert producer.send_offsets("g", {KEY: 1}, **member) == code


def test_unknown_partitions_and_long_metadata(cluster, producer):
    producer.send("t", b"x")
    request = producer.offsets_request("g", {KEY: 1, ("t", 9): 1, ("nowhere", 0): 1})
    request.topics[0].partitions[0].committed_metadata = "x" * 5000
    answer = cluster.ask(request, 5)
    codes = [partition.error_code for topic in answer.topics for partition in topic.partitions]
    assert codes == [
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


@pytest.mark.parametrize("crash", [None, True])
def test_a_deleted_group_does_not_come_back_with_a_marker(cluster, producer, crash):
    producer.send_offsets("g", {KEY: 7})
    answer = cluster.ask(DeleteGroupsRequest(groups_names=["g"]), 2)
    assert answer.results[0].error_code == 0
    assert offset(cluster) == -1
    if crash:
        cluster.restart(crash=True)
    producer.commit()
    assert offset(cluster) == -1
    cluster.restart(crash=True)
    assert offset(cluster) == -1


def test_a_deleted_offset_does_not_come_back_with_a_marker(cluster, producer):
    commit(cluster, "g", 3)
    producer.send_offsets("g", {KEY: 7})
    partition = OffsetDeleteRequestPartition(partition_index=0)
    topics = [OffsetDeleteRequestTopic(name="t", partitions=[partition])]
    assert cluster.ask(OffsetDeleteRequest(group_id="g", topics=topics), 0).error_code == 0
    producer.commit()
    assert offset(cluster) == -1
    cluster.restart(crash=True)
    assert offset(cluster) == -1


def test_a_deleted_topics_offsets_do_not_come_back_with_a_marker(cluster, producer):
    producer.send_offsets("g", {("u", 0): 7, KEY: 5})
    cluster.runner.run(cluster.broker.delete_topic("u"))
    producer.commit()
    assert offset(cluster, key=("u", 0)) == -1
    assert offset(cluster) == 5
    cluster.restart(crash=True)
    assert offset(cluster, key=("u", 0)) == -1


def test_what_is_pending_does_not_expire(cluster, producer):
    commit(cluster, "g", 3)
    commit(cluster, "other", 3)
    cluster.advance(7 * 24 * 3600 - 300)
    producer.init(timeout_ms=900_000)
    assert producer.send_offsets("g", {KEY: 7}) == 0
    for _ in range(4):
        cluster.advance(200)
    cluster.until(lambda: cluster.broker.groups.registry.get("other") is None)
    assert producer.commit() == 0
    assert offset(cluster) == 7


def test_a_disk_that_refuses_the_offsets(cluster, producer):
    producer.send("t", b"x")
    cluster.files.refused = OFFSETS_TOPIC
    assert producer.send_offsets("g", {KEY: 7}) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert offset(cluster) == -1
    cluster.files.repair()
    assert producer.send_offsets("g", {KEY: 7}) == 0
    assert producer.commit() == 0
    assert offset(cluster) == 7


def test_offsets_are_not_acknowledged_before_their_group_has_joined(cluster):
    producer = Producer(cluster, "payments")
    producer.init()
    cluster.files.refused = TRANSACTIONS_TOPIC
    assert producer.send_offsets("g", {KEY: 7}) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    cluster.files.repair()
    assert producer.send_offsets("g", {KEY: 8}) == 0
    assert producer.commit() == 0
    assert offset(cluster) == 8


def test_offsets_count_only_when_the_marker_is_durable(cluster, producer):
    commit(cluster, "g", 3)
    assert producer.send_offsets("g", {KEY: 7}) == 0
    cluster.files.refused = OFFSETS_TOPIC
    assert producer.commit() == 0  # it is decided
    assert offset(cluster) == UNSTABLE
    assert offset(cluster, require_stable=False) == 3
    cluster.files.repair()
    cluster.until(
        lambda: (
            cluster.clock.advance(0.5)
            or cluster.broker.groups.offsets.committed("g", *KEY).offset == 7
        )
    )
    assert offset(cluster) == 7


def test_no_marker_while_the_groups_are_being_loaded(cluster, producer, monkeypatch):
    """A group that has been read so far would miss it: its offsets would stay pending."""
    assert producer.send_offsets("g", {KEY: 7}) == 0
    topic = WriteTxnMarkersRequestWritableTxnMarkerTopic(
        name=OFFSETS_TOPIC, partition_indexes=[partition_for("g", 50)]
    )
    marker = WriteTxnMarkersRequestWritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        transaction_result=False,
        coordinator_epoch=1000,
        topics=[topic],
    )

    def write() -> int:
        answer = cluster.ask(WriteTxnMarkersRequest(markers=[marker]), 1)
        return answer.markers[0].topics[0].partitions[0].error_code

    cluster.crash()
    with monkeypatch.context() as at_once:
        at_once.setattr(cluster, "_is_loaded", lambda: True)  # does not wait for it
        cluster.start()
    assert write() == ErrorCode.NOT_LEADER_OR_FOLLOWER
    cluster.until(cluster._is_loaded)
    assert offset(cluster) == UNSTABLE
    assert write() == 0
    assert offset(cluster) == -1
