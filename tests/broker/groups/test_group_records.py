"""The bytes in `__consumer_offsets` are Kafka's."""

from uuid import UUID

import pytest
from support.broker.group_clients import Consumer, stabilise
from support.broker.group_harness import GroupCluster

from headwater.broker.internal_topics.records import Record, decode, encode, partition_for
from headwater.protocol.messages import internal as m


def test_a_commit_is_written_as_kafka_writes_it():
    topic_id = UUID("00112233-4455-6677-8899-aabbccddeeff")
    key, value = encode(
        Record(
            m.OffsetCommitKey(group="g", topic="t", partition=1),
            m.OffsetCommitValue(
                offset=5, leader_epoch=2, metadata="m", commit_timestamp=7, topic_id=topic_id
            ),
        )
    )
    assert key == bytes.fromhex("0001 0001 67 0001 74 00000001")
    assert value == bytes.fromhex(
        "0004"  # version
        "0000000000000005 00000002 02 6d 0000000000000007"
        "01 00 10 00112233445566778899aabbccddeeff"  # one tagged field: tag 0, 16 bytes
    )


def test_a_commit_with_its_own_expiry_is_written_in_the_version_that_has_one():
    _, value = encode(
        Record(
            m.OffsetCommitKey(group="g", topic="t", partition=1),
            m.OffsetCommitValue(offset=5, metadata="m", commit_timestamp=7, expire_timestamp=9),
        )
    )
    assert value == bytes.fromhex("0001 0000000000000005 0001 6d 0000000000000007 0000000000000009")


def test_group_metadata_is_written_in_version_3():
    key, value = encode(
        Record(
            m.GroupMetadataKey(group="g"),
            m.GroupMetadataValue(
                protocol_type="consumer", generation=3, protocol=None, leader=None
            ),
        )
    )
    assert key == bytes.fromhex("0002 0001 67")
    assert value == bytes.fromhex(
        "0003 0008 636f6e73756d6572 00000003 ffff ffff ffffffffffffffff 00000000"
    )


def test_a_tombstone_has_no_value():
    assert encode(Record(m.GroupMetadataKey(group="g"), None)) == (b"\x00\x02\x00\x01g", None)


@pytest.mark.parametrize("version", range(5))
def test_commits_of_every_version_are_read(version):
    value = m.OffsetCommitValue(offset=5, metadata="m", commit_timestamp=7)
    stored = version.to_bytes(2, "big") + bytes(value.encode(version))
    for key_type in (0, 1):
        key = key_type.to_bytes(2, "big") + bytes(m.OffsetCommitKey(group="g", topic="t").encode(0))
        assert decode(key, stored) == Record(m.OffsetCommitKey(group="g", topic="t"), value)


def test_records_of_other_kinds_are_skipped():
    assert decode(b"\x00\x10\x00\x01g", b"\x00\x00") is None


@pytest.mark.parametrize(
    ("group_id", "java_hash_code"),
    [
        ("", 0),
        ("g", 103),
        ("my-group", -1906497762),
        ("grüße", 98768023),
        ("🎈", 1773260),
        ("console-consumer-4711", 836489572),
    ],
)
def test_a_group_lives_where_kafka_looks_for_it(group_id, java_hash_code):
    assert partition_for(group_id, 2**31) == abs(java_hash_code)
    assert partition_for(group_id, 50) == abs(java_hash_code) % 50


def test_the_one_hash_code_without_an_absolute_value_is_0():
    assert partition_for("polygenelubricants", 50) == 0  # famous for its -2147483648


async def test_unreadable_and_foreign_records_do_not_keep_the_groups_from_loading(caplog):
    cluster = await GroupCluster.start()
    await stabilise(Consumer(cluster))
    for key, value in [
        (b"\x00\x01\x00\x05g", b"\x00\x03"),  # cut off
        (b"\x00\x02\x00\x01h", b"\x00\x63nonsense"),
        (b"", b"x"),
        (b"\x00\x0b\x00\x01s", b"\x00\x00\x00"),  # a share group
    ]:
        await cluster.log.append(0, [(key, value)])
    await cluster.crash_and_restart()
    assert [group.group_id for group in cluster.groups.registry] == ["g"]
    assert "unreadable" in caplog.text
