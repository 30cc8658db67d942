import asyncio
from uuid import uuid4

import pytest

from headwater.broker.api import erase_records as served
from headwater.broker.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from headwater.broker.security.authorizer import Principal
from headwater.log.erasure import eraser
from headwater.protocol.erasure_messages import (
    DescribeErasureRequest,
    EraseRecordsRequest,
    EraseRecordsRequestPartition,
    EraseRecordsRequestTopic,
)
from headwater.protocol.error_codes import ErrorCode

ADMIN, ALICE = Principal("admin"), Principal("alice")
PATIENCE_S = 60


def request(erasure_id, topic, *partitions):
    wanted = [
        EraseRecordsRequestPartition(partition_index=index, offsets=list(offsets))
        for index, offsets in partitions
    ]
    topics = [EraseRecordsRequestTopic(name=topic, partitions=wanted)]
    return EraseRecordsRequest(erasure_id=erasure_id, topics=topics)


def code(asked, topic, *partitions, erasure_id=None):
    answer = asked.ask(request(erasure_id or uuid4().hex, topic, *partitions), 0)
    return ErrorCode(answer.error_code)


def ended(asked, erasure_id):
    """The last answer of DescribeErasure."""

    async def wait():
        async with asyncio.timeout(PATIENCE_S):
            while True:
                answer = await asked.call(DescribeErasureRequest(erasure_id=erasure_id), 0)
                assert not answer.error_code
                if answer.has_ended:
                    return answer
                await asyncio.sleep(0.01)

    return asked.runner.run(wait())


def test_it_is_accepted_and_done(asked):
    asked.topic("orders", 2)
    asked.append("orders", 10)
    asked.append("orders", 3, partition=1)
    erasure_id = uuid4().hex
    assert code(asked, "orders", (0, [3, 4]), (1, [0]), erasure_id=erasure_id) == ErrorCode.NONE
    answer = ended(asked, erasure_id)
    assert answer.failure == ""
    found = [
        (partition.partition_index, partition.erased, partition.already_gone)
        for partition in answer.partitions
    ]
    assert found == [(0, 2, 0), (1, 1, 0)]
    # The same id again is the same erasure, also after a restart.
    asked.reopen()
    assert code(asked, "orders", (0, [3, 4]), (1, [0]), erasure_id=erasure_id) == ErrorCode.NONE
    assert ended(asked, erasure_id).partitions == answer.partitions


def test_it_is_continued_by_the_next_process(asked):
    asked.topic("orders")
    asked.append("orders", 10)
    erasure_id = uuid4().hex

    async def accept_and_die():
        await asked.call(request(erasure_id, "orders", (0, [3])), 0)
        await asked.broker.abandon()

    asked.runner.run(accept_and_die())
    asked.open()
    answer = ended(asked, erasure_id)
    assert sum(partition.erased + partition.already_gone for partition in answer.partitions) == 1
    log = asked.store.partitions["orders", 0]
    assert len(log.segments) == 2, "the active segment was sealed"


@pytest.mark.parametrize("offset", [10, -1, 2**63 - 1])
def test_offsets_that_no_record_has(asked, offset):
    asked.topic("orders")
    asked.append("orders", 10)
    erasure_id = uuid4().hex
    answer = asked.ask(request(erasure_id, "orders", (0, [3, offset])), 0)
    assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert str(offset) in answer.error_message
    described = asked.ask(DescribeErasureRequest(erasure_id=erasure_id), 0)
    assert described.error_code == ErrorCode.RESOURCE_NOT_FOUND, "all of it is refused"


def test_an_offset_in_front_of_the_start_is_gone(asked):
    asked.topic("orders", segment_bytes=str(1 << 20))
    asked.append("orders", 10)
    asked.runner.run(asked.store.delete_records({asked.store.partitions["orders", 0]: 10}))
    assert code(asked, "orders", (0, [3])) == ErrorCode.NONE


def test_topics_whose_records_are_not_erased(asked):
    asked.topic("orders")
    assert code(asked, "none", (0, [0])) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code(asked, "orders", (1, [0])) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code(asked, "__consumer_offsets", (0, [0])) == ErrorCode.INVALID_TOPIC_EXCEPTION
    asked.topic("__headwater_positions")
    assert code(asked, "__headwater_positions", (0, [0])) == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_requests_that_are_malformed(asked, monkeypatch):
    asked.topic("orders")
    asked.append("orders", 10)
    for erasure_id in ("", "x" * 32, "0" * 31):
        answer = asked.ask(request(erasure_id, "orders", (0, [0])), 0)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert code(asked, "orders", (0, [])) == ErrorCode.INVALID_REQUEST
    monkeypatch.setattr(served, "MAX_OFFSETS", 3)
    assert code(asked, "orders", (0, [1, 2, 3, 4])) == ErrorCode.INVALID_REQUEST


def test_what_waits_is_bounded(asked, monkeypatch):
    asked.topic("orders")
    asked.append("orders", 10)
    monkeypatch.setattr(eraser, "MAX_WAITING_OFFSETS", 3)
    assert code(asked, "orders", (0, [1, 2, 3, 4])) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert code(asked, "orders", (0, [1, 2, 3])) == ErrorCode.NONE


def test_a_full_disk_accepts_none(asked):
    asked.topic("orders")
    asked.append("orders", 10)
    asked.files.is_full = True
    assert code(asked, "orders", (0, [1])) == ErrorCode.KAFKA_STORAGE_ERROR
    asked.files.is_full = False
    assert code(asked, "orders", (0, [1])) == ErrorCode.NONE


def test_only_who_may_delete_learns_of_it(guarded):
    guarded.topic("orders")
    guarded.append("orders", 10)
    erasure_id = uuid4().hex
    assert not guarded.ask(request(erasure_id, "orders", (0, [1])), 0, ADMIN).error_code
    described = DescribeErasureRequest(erasure_id=erasure_id)
    assert guarded.ask(described, 0, ALICE).error_code == ErrorCode.RESOURCE_NOT_FOUND
    acl = Acl(
        ResourceType.TOPIC, "orders", PatternType.LITERAL, str(ALICE), "*", Operation.DELETE,
        Permission.ALLOW,
    )  # fmt: skip
    guarded.runner.run(guarded.broker.authorizer.add([acl]))
    assert not guarded.ask(described, 0, ALICE).error_code
