"""Every API, asked by a user without the right, and by one who has just enough rights.

The rows of authorization_table.py are checked one by one; a served API without a row is a failure.
"""

import asyncio
from collections.abc import Iterator
from uuid import UUID

import msgspec
import pytest
from support.broker.authorization_table import (
    BEFORE_AUTHENTICATION,
    QUEUE,
    ROWS,
    Asked,
    Right,
    Row,
    share_heartbeat,
)
from support.broker.authorization_table import GROUP as BILLING
from support.wire import produce_request

from headwater.broker import api
from headwater.broker.api.registry import APIS, Held
from headwater.broker.security.acls import (
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from headwater.broker.security.authorizer import Principal
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestAddPartitionsToTxnTopic,
)
from headwater.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from headwater.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from headwater.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsRequestCreatableTopic,
)
from headwater.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsRequestDeleteTopicState,
)
from headwater.protocol.messages.describe_cluster import DescribeClusterRequest
from headwater.protocol.messages.describe_groups import DescribeGroupsRequest
from headwater.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from headwater.protocol.messages.describe_transactions import DescribeTransactionsRequest
from headwater.protocol.messages.init_producer_id import InitProducerIdRequest
from headwater.protocol.messages.list_groups import ListGroupsRequest
from headwater.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headwater.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestTopic
from headwater.protocol.messages.offset_commit import (
    OffsetCommitRequestPartition as CommittedPartition,
)
from headwater.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from headwater.protocol.records import Record, build_batch, read_header
from headwater.protocol.schema import Message

api.load_all()

ADMIN, ALICE = Principal("admin"), Principal("alice")
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
EXISTING, ABSENT = "there-is", "there-not"[:8]  # equally long
NO_SUCH_ID = UUID(int=7)
REFUSALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.UNKNOWN_TOPIC_ID,
}


BY_NAME = {served.name: served for served in APIS.values()}


def served_rows() -> Iterator[tuple[str, int]]:
    for name, row in ROWS.items():
        served = BY_NAME[name.split(" ")[0]]
        for version in sorted({served.first, served.last, *row.versions}):
            if version >= row.at_least:
                yield name, version


def rows_about_topics() -> list[tuple[str, int]]:
    return [
        (name, version)
        for name, version in served_rows()
        if ROWS[name].request(Asked("a", UUID(int=1), version))
        != ROWS[name].request(Asked("b", UUID(int=2), version))
    ]


def test_every_api_has_a_row():
    unknown = set(BY_NAME) - {name.split(" ")[0] for name in ROWS} - BEFORE_AUTHENTICATION
    assert not unknown, "say in authorization_table.py which rights they need"


@pytest.fixture
def broker(guarded):
    """One topic, and one group that has committed an offset for it."""
    return furnish(guarded)


@pytest.fixture(scope="module")
def closed_broker(guarded_for_all):
    """As `broker`, for a client without any right: it leaves it as it is."""
    return furnish(guarded_for_all)


def furnish(broker):
    broker.topic(EXISTING)
    row = ROWS["OffsetCommit"]
    assert not any(codes(broker.ask(row.request(asked(broker, 9)), 9, ADMIN)))
    for member_epoch in (0, -1):  # joins, and leaves: the group is there, and empty
        heartbeat = share_heartbeat(asked(broker, 1), member_epoch)
        assert not any(codes(broker.ask(heartbeat, 1, ADMIN)))
    return broker


def allow(broker, operation, kind, name, *, pattern=PatternType.LITERAL, permission="ALLOW"):
    acl = Acl(kind, name, pattern, str(ALICE), "*", operation, Permission[permission])
    broker.runner.run(broker.broker.authorizer.add([acl]))


def asked(broker, version: int, topic: str = EXISTING) -> Asked:
    existing = broker.broker.topic(topic)
    return Asked(topic, NO_SUCH_ID if existing is None else existing.id, version)


def codes(value: object) -> Iterator[int]:
    """All error codes of a response."""
    if isinstance(value, list):
        for part in value:
            yield from codes(part)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            field = getattr(value, name)
            if name.endswith("error_code"):
                yield field
            else:
                yield from codes(field)


def ask(broker, row: Row, version: int, topic: str = EXISTING) -> Message:
    return broker.ask(row.request(asked(broker, version, topic)), version, ALICE)


@pytest.mark.parametrize(("name", "version"), list(served_rows()))
def test_without_a_right_it_is_refused(closed_broker, name, version):
    broker, row = closed_broker, ROWS[name]
    expected = row.refusal(version) if callable(row.refusal) else row.refusal
    answer = ask(broker, row, version)
    found = {code for code in codes(answer) if code}
    assert found == ({expected} if expected else set()), answer
    before = broker.broker.topic(EXISTING)
    assert before is not None
    assert (before.partitions, before.configs) == (1, {})


@pytest.mark.parametrize(
    ("name", "version", "needs"),
    [
        (name, version, needs)
        for name, version in served_rows()
        for needs in range(len(ROWS[name].needs))
    ],
)
def test_what_kafka_documents_suffices(broker, name, version, needs):
    row = ROWS[name]
    for right in row.needs[needs]:
        allow(broker, right.operation, right.kind, right.name or EXISTING)
    answer = ask(broker, row, version)
    assert not REFUSALS & {code for code in codes(answer) if code}, answer


@pytest.mark.parametrize(
    ("name", "version", "missing"),
    [
        (name, version, missing)
        for name, version in served_rows()
        for missing in range(len(ROWS[name].needs[0]))
        if len(ROWS[name].needs[0]) > 1
        and name != "ShareAcknowledge"  # needs a session before it asks for topics
    ],
)
def test_each_of_several_rights_is_needed(broker, name, version, missing):
    row = ROWS[name]
    rights = [right for at, right in enumerate(row.needs[0]) if at != missing]
    for right in rights:
        allow(broker, right.operation, right.kind, right.name or EXISTING)
    answer = ask(broker, row, version)
    assert REFUSALS & {code for code in codes(answer) if code}, answer


@pytest.mark.parametrize(("name", "version"), rows_about_topics())
def test_no_client_learns_whether_a_topic_exists(closed_broker, name, version):
    assert_equal_answers(closed_broker, ROWS[name], version)


@pytest.mark.parametrize(
    ("name", "version"),
    [about_topic for about_topic in rows_about_topics() if len(ROWS[about_topic[0]].needs[0]) > 1],
)
def test_nor_does_who_lacks_but_the_right_to_the_topic(broker, name, version):
    for right in ROWS[name].needs[0]:
        if right.kind not in (TOPIC, CLUSTER):
            allow(broker, right.operation, right.kind, right.name)
    assert_equal_answers(broker, ROWS[name], version)


def assert_equal_answers(broker, row: Row, version: int) -> None:
    existing, absent = (
        _without(broker, ask(broker, row, version, topic), topic, version)
        for topic in (EXISTING, ABSENT)
    )
    assert existing == absent


def _without(broker, answer: Message, topic: str, version: int) -> bytes:
    """The bytes of an answer without the name and the id that the question had."""
    data = bytes(answer.encode(version)).replace(topic.encode(), b"?")
    return data.replace(asked(broker, version, topic).topic_id.bytes, b"?").replace(
        str(asked(broker, version, topic).topic_id).encode(), b"?"
    )


class TestMetadata:
    def topics(self, broker, *names, create=False, version=9):
        wanted = [MetadataRequestTopic(name=name) for name in names] if names else None
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=create)
        return {
            topic.name: ErrorCode(topic.error_code)
            for topic in broker.ask(request, version, ALICE).topics
        }

    def test_of_all_topics_those_unseen_are_left_out(self, broker):
        broker.topic("open")
        assert self.topics(broker) == {}
        allow(broker, Operation.WRITE, TOPIC, "open")
        assert self.topics(broker) == {"open": ErrorCode.NONE}

    def test_describe_shows_what_there_is_and_is_not(self, broker):
        allow(broker, Operation.DESCRIBE, TOPIC, "*")
        assert self.topics(broker, EXISTING, ABSENT) == {
            EXISTING: ErrorCode.NONE,
            ABSENT: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }

    def test_creating_needs_create(self, broker):
        allow(broker, Operation.DESCRIBE, TOPIC, "*")
        refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert self.topics(broker, "new", create=True) == {"new": refused}
        assert broker.broker.topic("new") is None
        allow(broker, Operation.CREATE, TOPIC, "new")
        assert self.topics(broker, "new", "new-2", create=True) == {
            "new": ErrorCode.NONE,
            "new-2": refused,
        }
        allow(broker, Operation.CREATE, CLUSTER, "kafka-cluster")
        assert self.topics(broker, "new-2", create=True) == {"new-2": ErrorCode.NONE}

    def test_create_alone_does_not_show_topics(self, broker):
        allow(broker, Operation.CREATE, TOPIC, "new")
        refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert self.topics(broker, "new", create=True) == {"new": refused}

    def test_a_name_that_cannot_be_is_refused_all_the_same(self, broker):
        refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert self.topics(broker, "no name!") == {"no name!": refused}

    def test_operations_are_those_that_are_allowed(self, broker):
        allow(broker, Operation.READ, TOPIC, EXISTING)
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=EXISTING)], include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        )  # fmt: skip
        answer = broker.ask(request, 9, ALICE)
        assert answer.topics[0].topic_authorized_operations == (
            1 << Operation.READ | 1 << Operation.DESCRIBE
        )
        assert answer.cluster_authorized_operations == 0
        allow(broker, Operation.ALTER, CLUSTER, "kafka-cluster")
        answer = broker.ask(request, 9, ALICE)
        assert answer.cluster_authorized_operations == (
            1 << Operation.ALTER | 1 << Operation.DESCRIBE
        )

    def test_a_super_user_may_do_all(self, broker):
        request = DescribeClusterRequest(include_cluster_authorized_operations=True)
        operations = broker.ask(request, 0, ADMIN).cluster_authorized_operations
        assert operations == sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))


def test_describe_topic_partitions_puts_what_is_refused_behind_the_rest(broker):
    request = DescribeTopicPartitionsRequest
    broker.topic("a")
    broker.topic("z")
    allow(broker, Operation.READ, TOPIC, "z")
    answer = broker.ask(request(), 0, ALICE)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [("z", 0)]
    named = ROWS["DescribeTopicPartitions"].request(asked(broker, 0, "a")).topics
    named += ROWS["DescribeTopicPartitions"].request(asked(broker, 0, "z")).topics
    answer = broker.ask(request(topics=named), 0, ALICE)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [
        ("z", 0),
        ("a", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ]


class TestDeleteTopics:
    def delete(self, broker, *wanted):
        states = [DeleteTopicsRequestDeleteTopicState(**state) for state in wanted]
        answer = broker.ask(DeleteTopicsRequest(topics=states), 6, ALICE)
        return {
            (response.name, ErrorCode(response.error_code).name) for response in answer.responses
        }

    def test_a_user_that_sees_a_topic_learns_why_not(self, broker):
        allow(broker, Operation.DESCRIBE, TOPIC, "*")
        topic_id = broker.broker.topic(EXISTING).id
        refused = "TOPIC_AUTHORIZATION_FAILED"
        assert self.delete(broker, {"name": EXISTING}) == {(EXISTING, refused)}
        assert self.delete(broker, {"name": None, "topic_id": topic_id}) == {(None, refused)}
        assert self.delete(broker, {"name": ABSENT}) == {(ABSENT, "UNKNOWN_TOPIC_OR_PARTITION")}

    def test_a_name_and_an_id_together_do_not_reveal_that_they_are_one(self, broker):
        topic_id = broker.broker.topic(EXISTING).id
        assert self.delete(broker, {"name": EXISTING}, {"name": None, "topic_id": topic_id}) == {
            (EXISTING, "TOPIC_AUTHORIZATION_FAILED"),
            (None, "UNKNOWN_TOPIC_ID"),
        }


def test_the_settings_of_a_new_topic_need_describe_configs(broker):
    allow(broker, Operation.CREATE, TOPIC, "n", pattern=PatternType.PREFIXED)
    request = CreateTopicsRequest(
        topics=[
            CreateTopicsRequestCreatableTopic(name="new", num_partitions=1, replication_factor=1)
        ]
    )
    (made,) = broker.ask(request, 7, ALICE).topics
    assert (made.error_code, made.topic_config_error_code) == (
        0,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    )
    assert (made.num_partitions, made.configs) == (-1, [])
    assert broker.broker.topic("new") is not None


class TestGroups:
    def commit(self, broker, group: str) -> None:
        topic = OffsetCommitRequestTopic(name=EXISTING, partitions=[CommittedPartition()])
        request = OffsetCommitRequest(group_id=group, topics=[topic])
        answer = broker.ask(request, 9, ADMIN)
        assert answer.topics[0].partitions[0].error_code == 0

    def test_groups_unseen_are_left_out_of_the_list(self, broker):
        self.commit(broker, "a")
        self.commit(broker, "b")

        def listed():
            return {group.group_id for group in broker.ask(ListGroupsRequest(), 5, ALICE).groups}

        assert listed() == set()
        allow(broker, Operation.DESCRIBE, GROUP, "a")
        assert listed() == {"a"}
        allow(broker, Operation.DESCRIBE, CLUSTER, "kafka-cluster")
        assert listed() == {"a", "b", BILLING, QUEUE}

    def test_of_all_offsets_those_of_topics_unseen_are_left_out(self, broker):
        self.commit(broker, "a")
        allow(broker, Operation.DESCRIBE, GROUP, "a")
        group = OffsetFetchRequestGroup(group_id="a", topics=None)

        def topics():
            answer = broker.ask(OffsetFetchRequest(groups=[group]), 9, ALICE).groups[0]
            assert answer.error_code == 0
            return [topic.name for topic in answer.topics]

        assert topics() == []
        allow(broker, Operation.DESCRIBE, TOPIC, EXISTING)
        assert topics() == [EXISTING]

    def test_operations_on_a_group(self, broker):
        self.commit(broker, "a")
        allow(broker, Operation.READ, GROUP, "a")
        request = DescribeGroupsRequest(groups=["a"], include_authorized_operations=True)
        (group,) = broker.ask(request, 5, ALICE).groups
        assert group.authorized_operations == 1 << Operation.READ | 1 << Operation.DESCRIBE

    def test_a_pattern_matches_only_topics_that_the_member_may_see(self, broker):
        broker.topic("there-too")
        allow(broker, Operation.READ, GROUP, "g")
        allow(broker, Operation.READ, TOPIC, EXISTING)

        def heartbeat(**fields):
            request = ConsumerGroupHeartbeatRequest(
                group_id="g", member_id="AAAAAAAAAAAAAAAAAAAAAA", **fields
            )
            answer = broker.ask(request, 1, ALICE)
            assert answer.error_code == 0
            return answer

        def names(answer):
            by_id = broker.broker.store.catalog.by_id
            return {
                by_id[topic_partition.topic_id].name
                for topic_partition in answer.assignment.topic_partitions
            }

        joined = heartbeat(
            rebalance_timeout_ms=1000, subscribed_topic_regex="there-.*", topic_partitions=[]
        )
        assert names(joined) == {EXISTING}
        allow(broker, Operation.DESCRIBE, TOPIC, "there-too")
        assert names(heartbeat(member_epoch=joined.member_epoch)) == {EXISTING, "there-too"}

    def test_a_group_with_topics_unseen_is_not_described(self, broker):
        heartbeat = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="AAAAAAAAAAAAAAAAAAAAAA", rebalance_timeout_ms=1000,
            subscribed_topic_names=[EXISTING], topic_partitions=[],
        )  # fmt: skip
        assert broker.ask(heartbeat, 1, ADMIN).error_code == 0
        allow(broker, Operation.DESCRIBE, GROUP, "g")

        def described():
            request = ConsumerGroupDescribeRequest(group_ids=["g"])
            return broker.ask(request, 1, ALICE).groups[0]

        refused = described()
        assert refused.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert EXISTING not in repr(refused)
        allow(broker, Operation.DESCRIBE, TOPIC, EXISTING)
        assert described().error_code == 0
        assert len(described().members) == 1


def test_a_change_of_acls_is_in_force_with_the_next_request(broker):
    row = ROWS["Fetch"]
    right: Right = row.needs[0][0]
    refused, allowed = {ErrorCode.TOPIC_AUTHORIZATION_FAILED}, {ErrorCode.NONE}

    def fetched():
        return set(codes(ask(broker, row, 12).responses))

    assert fetched() == refused
    allow(broker, right.operation, right.kind, EXISTING)
    assert fetched() == allowed
    allow(broker, right.operation, right.kind, EXISTING, permission="DENY")
    assert fetched() == refused


@pytest.mark.parametrize(("name", "version"), [("Fetch", 12), ("Fetch", 13), ("ShareFetch", 1)])
def test_who_waits_for_records_does_not_get_those_that_come_when_the_right_is_gone(
    broker, name, version
):
    row = ROWS[name]
    for right in row.needs[0]:
        allow(broker, right.operation, right.kind, right.name or EXISTING)
    request = row.request(asked(broker, version))
    request.max_wait_ms, request.min_bytes, request.max_bytes = 20_000, 1, 1 << 20
    authorizer = broker.broker.authorizer
    log = broker.store.partitions[EXISTING, 0]

    async def scenario():
        waiting = asyncio.ensure_future(broker.call(request, version, ALICE))
        while not log.waiters:
            assert not waiting.done()
            await asyncio.sleep(0)
        everything = AclFilter(
            ResourceType.ANY, None, PatternType.ANY, None, None, Operation.ANY, Permission.ANY
        )
        await authorizer.remove(await authorizer.matching(everything))
        batch = build_batch([Record(0, broker.broker.clock.now_ms(), b"k", b"secret")])
        log.append(memoryview(batch), read_header(batch), lambda _: None)
        return await waiting

    answer = broker.runner.run(scenario())
    assert REFUSALS & set(codes(answer.responses))
    assert b"secret" not in bytes(answer.encode(version))


def test_a_long_list_of_what_is_refused_does_not_hold_up_others(broker):
    names = [MetadataRequestTopic(name=f"t{number}") for number in range(10_000)]
    turns = 0

    async def scenario():
        nonlocal turns
        asking = asyncio.ensure_future(broker.call(MetadataRequest(topics=names), 12, ALICE))
        while not asking.done():
            turns += 1
            await asyncio.sleep(0)

    broker.runner.run(scenario())
    assert turns >= 20


def test_to_produce_in_a_transaction_needs_a_right_to_it(broker):
    allow(broker, Operation.WRITE, TOPIC, EXISTING)
    batch = build_batch([Record(0, broker.broker.clock.now_ms(), b"k", b"v")])
    request = produce_request(EXISTING, batch)
    request.transactional_id = "pay"

    def produced():
        return set(codes(broker.ask(request, 9, ALICE).responses))

    assert produced() == {ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
    allow(broker, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "pay")
    assert produced() == {ErrorCode.NONE}


def test_of_a_transaction_topics_unseen_are_left_out(broker):
    begin = InitProducerIdRequest(transactional_id="pay", transaction_timeout_ms=60_000)
    while (begun := broker.ask(begin, 4, ADMIN)).error_code:
        assert begun.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    topic = AddPartitionsToTxnRequestAddPartitionsToTxnTopic(name=EXISTING, partitions=[0])
    added = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="pay",
        v3_and_below_producer_id=begun.producer_id,
        v3_and_below_producer_epoch=begun.producer_epoch,
        v3_and_below_topics=[topic],
    )
    assert not any(codes(broker.ask(added, 3, ADMIN)))

    def topics():
        request = DescribeTransactionsRequest(transactional_ids=["pay"])
        (state,) = broker.ask(request, 0, ALICE).transaction_states
        assert state.error_code == 0
        return [topic.topic for topic in state.topics]

    allow(broker, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "pay")
    assert topics() == []
    allow(broker, Operation.DESCRIBE, TOPIC, EXISTING)
    assert topics() == [EXISTING]


@pytest.mark.parametrize(
    "configs",
    [
        {"cleanup_policy": "compact"},  # a thread looks for the keys of a large batch
        {
            "headwater_overload_policy": "backpressure",
            "headwater_overload_group": "slow",
            "headwater_overload_bytes": "1000",
        },
    ],
)
def test_who_may_not_write_learns_nothing_by_having_to_wait(broker, configs):
    broker.topic("waits", **configs)
    batch = build_batch([Record(0, broker.broker.clock.now_ms(), b"k", b"v")] * 2000)
    request = produce_request("waits", batch)

    def is_held() -> bool:
        try:
            broker.ask(request, 9, ADMIN)
        except Held:
            return True
        return False

    assert is_held() or is_held()  # the first that a group has not read may come in
    answer = broker.ask(request, 9, ALICE)
    assert set(codes(answer.responses)) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}


def test_denials_are_counted_and_decisions_remembered_within_bounds(broker, monkeypatch):
    monkeypatch.setattr("headwater.broker.security.authorizer.MAX_DECISIONS", 10)
    row = ROWS["ListOffsets"]
    for number in range(50):
        ask(broker, row, 1, f"topic-{number}")
    authorizer = broker.broker.authorizer
    assert authorizer.denials[Operation.DESCRIBE, TOPIC] == 50
    assert len(authorizer._decisions) <= 10
