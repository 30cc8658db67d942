"""Which requests the audit log knows of, and what it says of them."""

import asyncio
import json

import pytest
from support.broker.authorization_table import GROUP, ROWS, Asked
from support.wire import LoneConnection

from headwater.broker import api
from headwater.broker.api.registry import APIS, RequestContext
from headwater.broker.security.audit import AuditLog
from headwater.broker.security.audited_changes import CHANGES
from headwater.broker.security.authorizer import Principal
from headwater.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsRequestScramCredentialUpsertion,
)
from headwater.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsRequestCreatableTopic,
)
from headwater.protocol.messages.delete_topics import DeleteTopicsRequest
from headwater.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headwater.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headwater.protocol.primitives import NIL_UUID

api.load_all()

ADMIN, ALICE = Principal("admin"), Principal("alice")
# Reading, writing, consuming, logging in: nothing that an administrator would ask about later.
# (OffsetCommit by who is no member writes its own line.)
NO_CHANGE = {
    "AddOffsetsToTxn", "AddPartitionsToTxn", "ApiVersions", "ConsumerGroupDescribe",
    "ConsumerGroupHeartbeat", "DescribeAcls", "DescribeClientQuotas", "DescribeCluster",
    "DescribeConfigs", "DescribeErasure", "DescribeGroups", "DescribeLogDirs", "DescribeProducers",
    "DescribeShareGroupOffsets", "DescribeTopicPartitions", "DescribeTransactions",
    "DescribeUserScramCredentials", "ElectLeaders", "EndTxn", "Fetch", "FindCoordinator",
    "Heartbeat", "InitProducerId", "JoinGroup", "LeaveGroup", "ListConfigResources", "ListGroups",
    "ListOffsets", "ListTransactions", "Metadata", "OffsetCommit", "OffsetFetch",
    "OffsetForLeaderEpoch", "Produce", "SaslAuthenticate", "SaslHandshake", "ShareAcknowledge",
    "ShareFetch", "ShareGroupDescribe", "ShareGroupHeartbeat", "SyncGroup", "TxnOffsetCommit",
}  # fmt: skip


def test_every_api_is_classified_as_changing_or_not():
    unknown = {served.name for served in APIS.values()} - set(CHANGES) - NO_CHANGE
    assert not unknown, "say in audited_changes.py what they change, or here that they do not"


@pytest.fixture
def audited(guarded, tmp_path):
    """A broker with one topic and one group; `audited.lines()` is what its audit log says."""
    guarded.topic("orders")
    guarded.append("orders", 1)
    guarded.ask(ROWS["OffsetCommit"].request(Asked("orders", NIL_UUID, 9)), 9, ADMIN)
    path = tmp_path / "audit.jsonl"
    guarded.broker.audit = AuditLog(str(path), guarded.broker.clock)
    guarded.broker.authorizer._audit = guarded.broker.audit

    def lines():
        guarded.runner.run(guarded.broker.audit.close())
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines()]

    guarded.lines = lines
    return guarded


@pytest.mark.parametrize(
    ("name", "resource_type", "resource", "operation"),
    [
        ("CreateTopics", "TOPIC", "new", "CREATE"),
        ("DeleteTopics", "TOPIC", "orders", "DELETE"),
        ("CreatePartitions", "TOPIC", "orders", "ALTER"),
        ("DeleteRecords", "TOPIC", "orders", "DELETE"),
        ("EraseRecords", "TOPIC", "orders", "DELETE"),
        ("AlterConfigs", "TOPIC", "orders", "ALTER_CONFIGS"),
        ("IncrementalAlterConfigs", "TOPIC", "orders", "ALTER_CONFIGS"),
        ("DeleteGroups", "GROUP", GROUP, "DELETE"),
        ("OffsetDelete", "GROUP", GROUP, "DELETE"),
        (
            "CreateAcls",
            "ACL",
            "ALLOW User:x from * READ on LITERAL TOPIC orders",
            "CREATE",
        ),
        ("AlterClientQuotas", "QUOTA", "user=x", "ALTER_CONFIGS"),
    ],
)
def test_a_change_has_its_line(audited, name, resource_type, resource, operation):
    topic = "new" if name == "CreateTopics" else "orders"
    served = APIS[next(key for key, api in APIS.items() if api.name == name)]
    request = ROWS[name].request(Asked(topic, NIL_UUID, served.first))
    audited.ask(request, served.first, ADMIN)
    (line,) = audited.lines()
    assert line["event"] == "change"
    assert line["api"] == name
    assert line["principal"] == "User:admin"
    assert line["host"] == "127.0.0.1"
    assert (line["resource_type"], line["resource"]) == (resource_type, resource)
    assert line["operation"] == operation
    assert "error" not in line


def test_deleted_acls_are_named_one_by_one(audited):
    create, delete = (ROWS[name].request(Asked("t", NIL_UUID, 1)) for name in
                      ("CreateAcls", "DeleteAcls"))  # fmt: skip
    audited.ask(create, 1, ADMIN)
    audited.ask(delete, 1, ADMIN)
    made, deleted = audited.lines()
    assert deleted["operation"] == "DELETE"
    assert deleted["resource"] == made["resource"]


def test_a_new_password_leaves_no_trace_of_itself(audited):
    secret = b"0123456789abcdef0123456789abcdef"
    upsertion = AlterUserScramCredentialsRequestScramCredentialUpsertion(
        name="bob", mechanism=1, iterations=4096, salt=b"salt-of-bob", salted_password=secret
    )
    audited.ask(AlterUserScramCredentialsRequest(upsertions=[upsertion]), 0, ADMIN)
    (line,) = audited.lines()
    assert (line["resource_type"], line["resource"]) == ("USER", "bob")
    assert line["detail"] == "SCRAM-SHA-256 password set"
    text = json.dumps(line)
    assert "salt-of-bob" not in text
    assert secret.decode() not in text


def test_a_refusal_is_a_denial_and_no_change(audited):
    audited.ask(ROWS["DeleteTopics"].request(Asked("orders", NIL_UUID, 1)), 1, ALICE)
    assert {line["event"] for line in audited.lines()} == {"denied"}


def test_what_is_only_validated_is_no_change(audited):
    topic = CreateTopicsRequestCreatableTopic(name="x", num_partitions=1, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic], validate_only=True)
    audited.ask(request, 7, ADMIN)
    assert audited.lines() == []


def test_a_topic_that_is_made_by_asking_for_it_has_its_line(audited):
    request = MetadataRequest(topics=[MetadataRequestTopic(name="made")])
    audited.ask(request, 9, ADMIN)
    audited.ask(request, 9, ADMIN)
    (line,) = audited.lines()
    assert (line["api"], line["operation"], line["resource"]) == ("Metadata", "CREATE", "made")


def test_who_goes_away_at_once_is_written_down_all_the_same(audited):
    served = APIS[DeleteTopicsRequest.api_key]

    async def ask_and_go():
        context = RequestContext(1, 1, "app", "127.0.0.1", LoneConnection(), ADMIN, served.name)
        request = DeleteTopicsRequest(topic_names=["orders"])
        answer = asyncio.ensure_future(served.handle(audited.broker, request, context))
        await asyncio.sleep(0)
        answer.cancel()
        await asyncio.wait_for(asyncio.wait(audited.broker._changes), timeout=30)

    audited.runner.run(ask_and_go())
    (line,) = audited.lines()
    assert (line["operation"], line["resource"]) == ("DELETE", "orders")


def committing(offset: int, **fields) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = OffsetCommitRequestTopic(name="orders", partitions=[partition])
    return OffsetCommitRequest(
        group_id=GROUP, **{"generation_id_or_member_epoch": -1, "member_id": "", **fields},
        topics=[topic],
    )  # fmt: skip


def test_a_group_that_is_moved_by_who_is_no_member_has_a_line(audited):
    for offset in (50, 51, 52, 7, 7, 3):  # three of a consumer by itself, then seeks
        audited.ask(committing(offset), 9, ADMIN)
    lines = audited.lines()
    assert {(line["resource_type"], line["resource"], line["operation"]) for line in lines} == {
        ("GROUP", GROUP, "ALTER")
    }
    assert {line["principal"] for line in lines} == {str(ADMIN)}
    details = [line["detail"] for line in lines if "repeated" not in line]
    assert [detail.split(": ", 1)[1] for detail in details][1:] == ["0: 52 → 7", "0: 7 → 3"]
    assert details[0].startswith("offsets in orders: 0: ")
    assert [line["repeated"] for line in lines if "repeated" in line] == [3]


def test_a_move_that_is_refused_has_no_line_of_a_change(audited):
    audited.ask(committing(5, generation_id_or_member_epoch=4, member_id="nobody"), 9, ADMIN)
    audited.ask(committing(5), 9, ALICE)
    assert [line["event"] for line in audited.lines()] == ["denied"]
