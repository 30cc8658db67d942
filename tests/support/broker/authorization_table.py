"""What each API needs, by Kafka's documentation: a request, its refusal, and what suffices.

A served API that has no row here fails a test. A row is named after its API; an API with several
kinds of questions has several, distinguished by what follows the name. A row says how to ask
(`request`, for one resource of each type and one topic), which error code a client without any
right gets (`refusal`; None: no error, the resources are left out), and which ACLs suffice
(`needs`: each element is enough alone).
"""

from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from headwater.broker.security.acls import Operation as Op
from headwater.broker.security.acls import ResourceType as Type
from headwater.protocol import erasure_messages, records
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_share_group_offsets,
    alter_user_scram_credentials,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_share_group_offsets,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_share_group_offsets,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    share_acknowledge,
    share_fetch,
    share_group_describe,
    share_group_heartbeat,
    sync_group,
    txn_offset_commit,
    write_txn_markers,
)
from headwater.protocol.primitives import NIL_UUID
from headwater.protocol.records import Record
from headwater.protocol.schema import Message

GROUP, QUEUE, TRANSACTION, CLUSTER = "billing", "mails", "payments-1", "kafka-cluster"
TOPIC_CONFIG, BROKER_CONFIG, GROUP_CONFIG = 2, 4, 32

NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NO_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
NO_CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
NO_TRANSACTION = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
NO_SUCH_ID = ErrorCode.UNKNOWN_TOPIC_ID


class Asked(NamedTuple):
    """The one topic that a request is about. By id, its name is not sent."""

    topic: str
    topic_id: UUID
    version: int


class Right(NamedTuple):
    """An ACL that allows; on the topic of the request unless `name` says otherwise."""

    operation: Op
    kind: Type
    name: str | None = None


class Row(NamedTuple):
    """See the module."""

    request: Callable[[Asked], Message]
    refusal: ErrorCode | Callable[[int], ErrorCode | None] | None
    needs: tuple[tuple[Right, ...], ...]
    versions: tuple[int, ...] = ()  # besides the first and the last one served
    at_least: int = 0  # below this version it cannot be asked


def on_topic(operation: Op) -> Right:
    return Right(operation, Type.TOPIC)


def on_group(operation: Op) -> Right:
    return Right(operation, Type.GROUP, GROUP)


def on_queue(operation: Op) -> Right:
    return Right(operation, Type.GROUP, QUEUE)


def on_cluster(operation: Op) -> Right:
    return Right(operation, Type.CLUSTER, CLUSTER)


def on_transaction(operation: Op) -> Right:
    return Right(operation, Type.TRANSACTIONAL_ID, TRANSACTION)


def by_id_since(version: int) -> Callable[[int], ErrorCode]:
    """A client that names a topic by id and may not see it gets the answer of an unknown id."""
    return lambda asked: NO_SUCH_ID if asked >= version else NO_TOPIC


def _batch() -> memoryview:
    return memoryview(records.build_batch([Record(0, 1_700_000_000_000, b"k", b"v")]))


def _produce(asked: Asked) -> Message:
    data = produce.ProduceRequestPartitionProduceData(index=0, records=_batch())
    topic = produce.ProduceRequestTopicProduceData(
        name=asked.topic, topic_id=asked.topic_id, partition_data=[data]
    )
    return produce.ProduceRequest(acks=1, topic_data=[topic])


def _fetch(asked: Asked) -> Message:
    partition = fetch.FetchRequestFetchPartition(partition=0, partition_max_bytes=1000)
    topic = fetch.FetchRequestFetchTopic(
        topic=asked.topic, topic_id=asked.topic_id, partitions=[partition]
    )
    return fetch.FetchRequest(max_bytes=1000, topics=[topic])


def _list_offsets(asked: Asked) -> Message:
    partition = list_offsets.ListOffsetsRequestListOffsetsPartition(timestamp=-1)
    topic = list_offsets.ListOffsetsRequestListOffsetsTopic(
        name=asked.topic, partitions=[partition]
    )
    return list_offsets.ListOffsetsRequest(topics=[topic])


def _offset_for_leader_epoch(asked: Asked) -> Message:
    partition = offset_for_leader_epoch.OffsetForLeaderEpochRequestOffsetForLeaderPartition()
    topic = offset_for_leader_epoch.OffsetForLeaderEpochRequestOffsetForLeaderTopic(
        topic=asked.topic, partitions=[partition]
    )
    return offset_for_leader_epoch.OffsetForLeaderEpochRequest(topics=[topic])


def _metadata(asked: Asked) -> Message:
    by_id = asked.version >= 12
    return metadata.MetadataRequest(
        topics=[
            metadata.MetadataRequestTopic(
                name=None if by_id else asked.topic, topic_id=asked.topic_id if by_id else NIL_UUID
            )
        ],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )


def _offset_commit(asked: Asked) -> Message:
    topic = offset_commit.OffsetCommitRequestTopic(
        name=asked.topic,
        topic_id=asked.topic_id,
        partitions=[offset_commit.OffsetCommitRequestPartition(committed_offset=1)],
    )
    return offset_commit.OffsetCommitRequest(group_id=GROUP, topics=[topic])


def _offset_fetch(asked: Asked) -> Message:
    old = offset_fetch.OffsetFetchRequestTopic(name=asked.topic, partition_indexes=[0])
    new = offset_fetch.OffsetFetchRequestTopics(
        name=asked.topic, topic_id=asked.topic_id, partition_indexes=[0]
    )
    group = offset_fetch.OffsetFetchRequestGroup(group_id=GROUP, topics=[new])
    return offset_fetch.OffsetFetchRequest(group_id=GROUP, topics=[old], groups=[group])


def _offset_delete(asked: Asked) -> Message:
    partition = offset_delete.OffsetDeleteRequestPartition(partition_index=0)
    topic = offset_delete.OffsetDeleteRequestTopic(name=asked.topic, partitions=[partition])
    return offset_delete.OffsetDeleteRequest(group_id=GROUP, topics=[topic])


def _join_group(asked: Asked) -> Message:
    protocol = join_group.JoinGroupRequestProtocol(name="range", metadata=b"\0\0")
    return join_group.JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=100,
        protocol_type="consumer",
        protocols=[protocol],
    )


def _consumer_heartbeat(asked: Asked) -> Message:
    return consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
        group_id="new-" + GROUP,
        member_id="AAAAAAAAAAAAAAAAAAAAAA",
        rebalance_timeout_ms=1000,
        subscribed_topic_names=[asked.topic],
        topic_partitions=[],
    )


def _sync_group(asked: Asked) -> Message:
    return sync_group.SyncGroupRequest(
        group_id=GROUP, member_id="m", protocol_type="consumer", protocol_name="range"
    )


def _leave_group(asked: Asked) -> Message:
    member = leave_group.LeaveGroupRequestMemberIdentity(member_id="m")
    return leave_group.LeaveGroupRequest(group_id=GROUP, member_id="m", members=[member])


def _create_topics(asked: Asked) -> Message:
    topic = create_topics.CreateTopicsRequestCreatableTopic(
        name=asked.topic, num_partitions=1, replication_factor=1
    )
    return create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=1000)


def _delete_topics(asked: Asked) -> Message:
    topic = delete_topics.DeleteTopicsRequestDeleteTopicState(topic_id=asked.topic_id)
    return delete_topics.DeleteTopicsRequest(topics=[topic], topic_names=[asked.topic])


def _delete_records(asked: Asked) -> Message:
    partition = delete_records.DeleteRecordsRequestDeleteRecordsPartition(offset=0)
    topic = delete_records.DeleteRecordsRequestDeleteRecordsTopic(
        name=asked.topic, partitions=[partition]
    )
    return delete_records.DeleteRecordsRequest(topics=[topic])


def _erase_records(asked: Asked) -> Message:
    partition = erasure_messages.EraseRecordsRequestPartition(offsets=[0])
    topic = erasure_messages.EraseRecordsRequestTopic(name=asked.topic, partitions=[partition])
    return erasure_messages.EraseRecordsRequest(erasure_id="0" * 32, topics=[topic])


def _create_partitions(asked: Asked) -> Message:
    topic = create_partitions.CreatePartitionsRequestCreatePartitionsTopic(
        name=asked.topic, count=5, assignments=None
    )
    return create_partitions.CreatePartitionsRequest(topics=[topic])


def _describe_configs(asked: Asked) -> Message:
    resource = describe_configs.DescribeConfigsRequestDescribeConfigsResource(
        resource_type=TOPIC_CONFIG, resource_name=asked.topic, configuration_keys=None
    )
    return describe_configs.DescribeConfigsRequest(resources=[resource])


def _alter_configs(asked: Asked) -> Message:
    config = alter_configs.AlterConfigsRequestAlterableConfig(name="retention.ms", value="1000")
    resource = alter_configs.AlterConfigsRequestAlterConfigsResource(
        resource_type=TOPIC_CONFIG, resource_name=asked.topic, configs=[config]
    )
    return alter_configs.AlterConfigsRequest(resources=[resource])


def _incremental_alter_configs(asked: Asked) -> Message:
    config = incremental_alter_configs.IncrementalAlterConfigsRequestAlterableConfig(
        name="retention.ms", value="1000"
    )
    resource = incremental_alter_configs.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=TOPIC_CONFIG, resource_name=asked.topic, configs=[config]
    )
    return incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])


def _describe_log_dirs(asked: Asked) -> Message:
    topic = describe_log_dirs.DescribeLogDirsRequestDescribableLogDirTopic(
        topic=asked.topic, partitions=[0]
    )
    return describe_log_dirs.DescribeLogDirsRequest(topics=[topic])


def _elect_leaders(asked: Asked) -> Message:
    topic = elect_leaders.ElectLeadersRequestTopicPartitions(topic=asked.topic, partitions=[0])
    return elect_leaders.ElectLeadersRequest(topic_partitions=[topic])


def _describe_topic_partitions(asked: Asked) -> Message:
    topic = describe_topic_partitions.DescribeTopicPartitionsRequestTopicRequest(name=asked.topic)
    return describe_topic_partitions.DescribeTopicPartitionsRequest(topics=[topic])


def _create_acls(asked: Asked) -> Message:
    creation = create_acls.CreateAclsRequestAclCreation(
        resource_type=Type.TOPIC, resource_name=asked.topic, principal="User:x", host="*",
        operation=Op.READ, permission_type=3,
    )  # fmt: skip
    return create_acls.CreateAclsRequest(creations=[creation])


def _delete_acls(asked: Asked) -> Message:
    wanted = delete_acls.DeleteAclsRequestDeleteAclsFilter(
        resource_type_filter=Type.TOPIC, resource_name_filter=asked.topic,
        principal_filter="User:x", host_filter=None, operation=Op.ANY, permission_type=1,
    )  # fmt: skip
    return delete_acls.DeleteAclsRequest(filters=[wanted])


def _describe_acls(asked: Asked) -> Message:
    return describe_acls.DescribeAclsRequest(
        resource_type_filter=Type.TOPIC, resource_name_filter=asked.topic,
        principal_filter=None, host_filter=None, operation=Op.ANY, permission_type=1,
    )  # fmt: skip


def _add_partitions(asked: Asked) -> Message:
    topic = add_partitions_to_txn.AddPartitionsToTxnRequestAddPartitionsToTxnTopic(
        name=asked.topic, partitions=[0]
    )
    transaction = add_partitions_to_txn.AddPartitionsToTxnRequestAddPartitionsToTxnTransaction(
        transactional_id=TRANSACTION, topics=[topic]
    )
    return add_partitions_to_txn.AddPartitionsToTxnRequest(
        transactions=[transaction],
        v3_and_below_transactional_id=TRANSACTION,
        v3_and_below_topics=[topic],
    )


def _txn_offset_commit(asked: Asked) -> Message:
    partition = txn_offset_commit.TxnOffsetCommitRequestPartition(committed_offset=1)
    topic = txn_offset_commit.TxnOffsetCommitRequestTopic(name=asked.topic, partitions=[partition])
    return txn_offset_commit.TxnOffsetCommitRequest(
        transactional_id=TRANSACTION, group_id=GROUP, topics=[topic]
    )


def _write_txn_markers(asked: Asked) -> Message:
    topic = write_txn_markers.WriteTxnMarkersRequestWritableTxnMarkerTopic(
        name=asked.topic, partition_indexes=[0]
    )
    marker = write_txn_markers.WriteTxnMarkersRequestWritableTxnMarker(
        producer_id=1, topics=[topic]
    )
    return write_txn_markers.WriteTxnMarkersRequest(markers=[marker])


def _describe_producers(asked: Asked) -> Message:
    topic = describe_producers.DescribeProducersRequestTopicRequest(
        name=asked.topic, partition_indexes=[0]
    )
    return describe_producers.DescribeProducersRequest(topics=[topic])


def share_heartbeat(asked: Asked, member_epoch: int = 0) -> Message:
    return share_group_heartbeat.ShareGroupHeartbeatRequest(
        group_id=QUEUE,
        member_id="AAAAAAAAAAAAAAAAAAAAAA",
        member_epoch=member_epoch,
        subscribed_topic_names=[asked.topic],
    )


def _share_fetch(asked: Asked) -> Message:
    partition = share_fetch.ShareFetchRequestFetchPartition(partition_index=0)
    topic = share_fetch.ShareFetchRequestFetchTopic(topic_id=asked.topic_id, partitions=[partition])
    return share_fetch.ShareFetchRequest(
        group_id=QUEUE, member_id="AAAAAAAAAAAAAAAAAAAAAA", topics=[topic], max_records=1
    )


def _share_acknowledge(asked: Asked) -> Message:
    partition = share_acknowledge.ShareAcknowledgeRequestAcknowledgePartition(partition_index=0)
    topic = share_acknowledge.ShareAcknowledgeRequestAcknowledgeTopic(
        topic_id=asked.topic_id, partitions=[partition]
    )
    return share_acknowledge.ShareAcknowledgeRequest(
        group_id=QUEUE, member_id="AAAAAAAAAAAAAAAAAAAAAA", topics=[topic]
    )


def _describe_share_offsets(asked: Asked) -> Message:
    topic = describe_share_group_offsets.DescribeShareGroupOffsetsRequestTopic(
        topic_name=asked.topic, partitions=[0]
    )
    group = describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup(
        group_id=QUEUE, topics=[topic]
    )
    return describe_share_group_offsets.DescribeShareGroupOffsetsRequest(groups=[group])


def _alter_share_offsets(asked: Asked) -> Message:
    topic = alter_share_group_offsets.AlterShareGroupOffsetsRequestTopic(
        topic_name=asked.topic,
        partitions=[alter_share_group_offsets.AlterShareGroupOffsetsRequestPartition()],
    )
    return alter_share_group_offsets.AlterShareGroupOffsetsRequest(group_id=QUEUE, topics=[topic])


def _delete_share_offsets(asked: Asked) -> Message:
    topic = delete_share_group_offsets.DeleteShareGroupOffsetsRequestTopic(topic_name=asked.topic)
    return delete_share_group_offsets.DeleteShareGroupOffsetsRequest(group_id=QUEUE, topics=[topic])


def _alter_quotas(asked: Asked) -> Message:
    entity = alter_client_quotas.AlterClientQuotasRequestEntityData(
        entity_type="user", entity_name="x"
    )
    change = alter_client_quotas.AlterClientQuotasRequestOpData(
        key="producer_byte_rate", value=1000.0
    )
    entry = alter_client_quotas.AlterClientQuotasRequestEntryData(entity=[entity], ops=[change])
    return alter_client_quotas.AlterClientQuotasRequest(entries=[entry])


def _alter_scram(asked: Asked) -> Message:
    deletion = alter_user_scram_credentials.AlterUserScramCredentialsRequestScramCredentialDeletion(
        name="x", mechanism=1
    )
    return alter_user_scram_credentials.AlterUserScramCredentialsRequest(deletions=[deletion])


def _find_coordinator(kind: int, key: str) -> Callable[[Asked], Message]:
    return lambda asked: find_coordinator.FindCoordinatorRequest(
        key=key, key_type=kind, coordinator_keys=[key]
    )


# Asked before, or in order, to know who the client is.
BEFORE_AUTHENTICATION = {"ApiVersions", "SaslHandshake", "SaslAuthenticate"}

ROWS: dict[str, Row] = {
    "Produce": Row(_produce, by_id_since(13), ((on_topic(Op.WRITE),),), (12,)),
    "Fetch": Row(_fetch, by_id_since(13), ((on_topic(Op.READ),),), (12,)),
    "ListOffsets": Row(_list_offsets, NO_TOPIC, ((on_topic(Op.DESCRIBE),),)),
    "OffsetForLeaderEpoch": Row(
        _offset_for_leader_epoch,
        NO_TOPIC,
        ((on_topic(Op.DESCRIBE),), (on_cluster(Op.CLUSTER_ACTION),)),
    ),
    "Metadata": Row(_metadata, by_id_since(12), ((on_topic(Op.DESCRIBE),),), (9, 11)),
    "DescribeTopicPartitions": Row(
        _describe_topic_partitions, NO_TOPIC, ((on_topic(Op.DESCRIBE),),)
    ),
    "DescribeCluster": Row(
        lambda _: describe_cluster.DescribeClusterRequest(
            include_cluster_authorized_operations=True
        ),
        None,
        ((on_cluster(Op.DESCRIBE),),),
    ),
    "OffsetCommit": Row(_offset_commit, NO_GROUP, ((on_group(Op.READ), on_topic(Op.READ)),), (9,)),
    "OffsetFetch": Row(
        _offset_fetch, NO_GROUP, ((on_group(Op.DESCRIBE), on_topic(Op.DESCRIBE)),), (2, 7, 9)
    ),
    "OffsetDelete": Row(_offset_delete, NO_GROUP, ((on_group(Op.DELETE), on_topic(Op.READ)),)),
    "FindCoordinator": Row(_find_coordinator(0, GROUP), NO_GROUP, ((on_group(Op.DESCRIBE),),)),
    "FindCoordinator (transaction)": Row(
        _find_coordinator(1, TRANSACTION),
        NO_TRANSACTION,
        ((on_transaction(Op.DESCRIBE),),),
        (1,),
        at_least=1,
    ),
    "FindCoordinator (share group)": Row(
        _find_coordinator(2, f"{QUEUE}:AAAAAAAAAAAAAAAAAAAAAA:0"),
        NO_CLUSTER,
        ((on_cluster(Op.CLUSTER_ACTION),),),
        at_least=6,
    ),
    "JoinGroup": Row(_join_group, NO_GROUP, ((on_group(Op.READ),),)),
    "SyncGroup": Row(_sync_group, NO_GROUP, ((on_group(Op.READ),),)),
    "Heartbeat": Row(
        lambda _: heartbeat.HeartbeatRequest(group_id=GROUP, member_id="m"),
        NO_GROUP,
        ((on_group(Op.READ),),),
    ),
    "LeaveGroup": Row(_leave_group, NO_GROUP, ((on_group(Op.READ),),)),
    "DescribeGroups": Row(
        lambda _: describe_groups.DescribeGroupsRequest(
            groups=[GROUP], include_authorized_operations=True
        ),
        NO_GROUP,
        ((on_group(Op.DESCRIBE),),),
    ),
    "ListGroups": Row(
        lambda _: list_groups.ListGroupsRequest(),
        None,
        ((on_group(Op.DESCRIBE),), (on_cluster(Op.DESCRIBE),)),
    ),
    "DeleteGroups": Row(
        lambda _: delete_groups.DeleteGroupsRequest(groups_names=[GROUP]),
        NO_GROUP,
        ((on_group(Op.DELETE),),),
    ),
    "ConsumerGroupHeartbeat": Row(
        _consumer_heartbeat,
        NO_GROUP,
        ((Right(Op.READ, Type.GROUP, "new-" + GROUP), on_topic(Op.DESCRIBE)),),
    ),
    "ConsumerGroupDescribe": Row(
        lambda _: consumer_group_describe.ConsumerGroupDescribeRequest(group_ids=[GROUP]),
        NO_GROUP,
        ((on_group(Op.DESCRIBE),),),
    ),
    "CreateTopics": Row(
        _create_topics, NO_TOPIC, ((on_topic(Op.CREATE),), (on_cluster(Op.CREATE),))
    ),
    "DeleteTopics": Row(
        _delete_topics, by_id_since(6), ((on_topic(Op.DELETE),), (on_cluster(Op.DELETE),)), (5,)
    ),
    "DeleteRecords": Row(_delete_records, NO_TOPIC, ((on_topic(Op.DELETE),),)),
    "EraseRecords": Row(_erase_records, NO_TOPIC, ((on_topic(Op.DELETE),),)),
    # An erasure that the client may not see is one that does not exist.
    "DescribeErasure": Row(
        lambda _: erasure_messages.DescribeErasureRequest(erasure_id="0" * 32),
        ErrorCode.RESOURCE_NOT_FOUND,
        ((on_topic(Op.DELETE),),),
    ),
    "CreatePartitions": Row(_create_partitions, NO_TOPIC, ((on_topic(Op.ALTER),),)),
    "DescribeConfigs": Row(_describe_configs, NO_TOPIC, ((on_topic(Op.DESCRIBE_CONFIGS),),)),
    "AlterConfigs": Row(_alter_configs, NO_TOPIC, ((on_topic(Op.ALTER_CONFIGS),),)),
    "IncrementalAlterConfigs": Row(
        _incremental_alter_configs, NO_TOPIC, ((on_topic(Op.ALTER_CONFIGS),),)
    ),
    "ListConfigResources": Row(
        lambda _: list_config_resources.ListConfigResourcesRequest(resource_types=[TOPIC_CONFIG]),
        NO_CLUSTER,
        ((on_cluster(Op.DESCRIBE_CONFIGS),),),
    ),
    # Before version 3 there is no room for the error.
    "DescribeLogDirs": Row(
        _describe_log_dirs,
        lambda version: NO_CLUSTER if version >= 3 else None,
        ((on_cluster(Op.DESCRIBE),),),
        (3,),
    ),
    "ElectLeaders": Row(_elect_leaders, NO_CLUSTER, ((on_cluster(Op.ALTER),),)),
    "DescribeAcls": Row(_describe_acls, NO_CLUSTER, ((on_cluster(Op.DESCRIBE),),)),
    "CreateAcls": Row(_create_acls, NO_CLUSTER, ((on_cluster(Op.ALTER),),)),
    "DeleteAcls": Row(_delete_acls, NO_CLUSTER, ((on_cluster(Op.ALTER),),)),
    "DescribeClientQuotas": Row(
        lambda _: describe_client_quotas.DescribeClientQuotasRequest(),
        NO_CLUSTER,
        ((on_cluster(Op.DESCRIBE_CONFIGS),),),
    ),
    "AlterClientQuotas": Row(_alter_quotas, NO_CLUSTER, ((on_cluster(Op.ALTER_CONFIGS),),)),
    "DescribeUserScramCredentials": Row(
        lambda _: describe_user_scram_credentials.DescribeUserScramCredentialsRequest(users=None),
        NO_CLUSTER,
        ((on_cluster(Op.DESCRIBE),),),
    ),
    "AlterUserScramCredentials": Row(_alter_scram, NO_CLUSTER, ((on_cluster(Op.ALTER),),)),
    # KIP-679: who may write to some topic may do so idempotently.
    "InitProducerId": Row(
        lambda _: init_producer_id.InitProducerIdRequest(transactional_id=None),
        NO_CLUSTER,
        ((on_cluster(Op.IDEMPOTENT_WRITE),), (on_topic(Op.WRITE),)),
    ),
    "InitProducerId (transaction)": Row(
        lambda _: init_producer_id.InitProducerIdRequest(
            transactional_id=TRANSACTION, transaction_timeout_ms=1000
        ),
        NO_TRANSACTION,
        ((on_transaction(Op.WRITE),),),
    ),
    "AddPartitionsToTxn": Row(
        _add_partitions, NO_TRANSACTION, ((on_transaction(Op.WRITE), on_topic(Op.WRITE)),)
    ),
    "AddOffsetsToTxn": Row(
        lambda _: add_offsets_to_txn.AddOffsetsToTxnRequest(
            transactional_id=TRANSACTION, group_id=GROUP
        ),
        NO_TRANSACTION,
        ((on_transaction(Op.WRITE), on_group(Op.READ)),),
    ),
    "EndTxn": Row(
        lambda _: end_txn.EndTxnRequest(transactional_id=TRANSACTION),
        NO_TRANSACTION,
        ((on_transaction(Op.WRITE),),),
    ),
    "TxnOffsetCommit": Row(
        _txn_offset_commit,
        NO_TRANSACTION,
        ((on_transaction(Op.WRITE), on_group(Op.READ), on_topic(Op.READ)),),
    ),
    "WriteTxnMarkers": Row(
        _write_txn_markers,
        NO_CLUSTER,
        ((on_cluster(Op.CLUSTER_ACTION),), (on_cluster(Op.ALTER),)),
    ),
    "DescribeProducers": Row(_describe_producers, NO_TOPIC, ((on_topic(Op.READ),),)),
    "DescribeTransactions": Row(
        lambda _: describe_transactions.DescribeTransactionsRequest(
            transactional_ids=[TRANSACTION]
        ),
        NO_TRANSACTION,
        ((on_transaction(Op.DESCRIBE),),),
    ),
    "ListTransactions": Row(
        lambda _: list_transactions.ListTransactionsRequest(),
        None,
        ((on_transaction(Op.DESCRIBE),),),
    ),
    "ShareGroupHeartbeat": Row(
        share_heartbeat,
        NO_GROUP,
        ((on_queue(Op.READ), on_topic(Op.DESCRIBE)),),
    ),
    "ShareGroupDescribe": Row(
        lambda _: share_group_describe.ShareGroupDescribeRequest(group_ids=[QUEUE]),
        NO_GROUP,
        ((on_queue(Op.DESCRIBE),),),
    ),
    "ShareFetch": Row(_share_fetch, NO_GROUP, ((on_queue(Op.READ), on_topic(Op.READ)),)),
    "ShareAcknowledge": Row(
        _share_acknowledge, NO_GROUP, ((on_queue(Op.READ), on_topic(Op.READ)),)
    ),
    "DescribeShareGroupOffsets": Row(
        _describe_share_offsets, NO_GROUP, ((on_queue(Op.DESCRIBE), on_topic(Op.DESCRIBE)),)
    ),
    "AlterShareGroupOffsets": Row(
        _alter_share_offsets, NO_GROUP, ((on_queue(Op.READ), on_topic(Op.READ)),)
    ),
    "DeleteShareGroupOffsets": Row(
        _delete_share_offsets, NO_GROUP, ((on_queue(Op.DELETE), on_topic(Op.READ)),)
    ),
}
