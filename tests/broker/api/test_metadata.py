"""Metadata: every version, creation on demand, questions by id."""

from uuid import UUID

import pytest
from support.wire import Wire

from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.init_producer_id import InitProducerIdRequest
from headwater.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headwater.settings import BrokerSettings
from headwater.testing import InProcessBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    settings = BrokerSettings(listen="127.0.0.1:0", default_partitions=3, node_id=5)
    with InProcessBroker.serving(str(tmp_path_factory.mktemp("metadata")), settings) as broker:
        yield broker


@pytest.fixture
def client(broker):
    with Wire(broker.bootstrap) as client:
        yield client


def _of(*names: str, **fields) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], **fields)


@pytest.mark.parametrize("version", range(14))
def test_every_version(broker, client, version):
    name = f"by-version-{version}"
    answer = client.ask(_of(name), version)
    host, port = broker.bootstrap.split(":")
    assert [(broker.node_id, broker.host, broker.port) for broker in answer.brokers] == [
        (5, host, int(port))
    ]
    (topic,) = answer.topics
    assert (topic.error_code, topic.name) == (0, name)  # created by the question
    assert [partition.partition_index for partition in topic.partitions] == [0, 1, 2]
    for partition in topic.partitions:
        assert (partition.error_code, partition.leader_id) == (0, 5)
        assert (partition.replica_nodes, partition.isr_nodes) == ([5], [5])
        assert partition.leader_epoch >= 0 if version >= 7 else partition.leader_epoch == -1
    if version >= 1:
        assert answer.controller_id == 5
    if version >= 2:
        assert answer.cluster_id
    if version >= 10:
        assert topic.topic_id != UUID(int=0)


def test_all_topics(client):
    client.create_topic("one-of-all")
    for version, everything in ((0, []), (1, None), (12, None)):
        answer = client.ask(MetadataRequest(topics=everything), version)
        names = {topic.name: topic.is_internal for topic in answer.topics}
        assert "one-of-all" in names
        if version:
            assert names["__consumer_offsets"] is True
    assert client.ask(MetadataRequest(topics=[]), 1).topics == []


def test_no_creation_if_the_client_does_not_want_it(client):
    for _ in range(2):
        answer = client.ask(_of("unwanted", allow_auto_topic_creation=False), 12)
        assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("name", ["__transaction_state", "__share_group_state"])
def test_no_creation_of_what_a_coordinator_makes_itself(client, name):
    (topic,) = client.ask(_of(name), 12).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    answer = client.ask(InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=9), 4)
    assert answer.error_code == 0


def test_no_creation_if_the_broker_does_not_do_it(tmp_path):
    settings = BrokerSettings(listen="127.0.0.1:0", auto_create_topics=False)
    with (
        InProcessBroker.serving(str(tmp_path), settings) as broker,
        Wire(broker.bootstrap) as client,
    ):
        answer = client.ask(_of("unwanted"), 12)
        assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "\u00e4", "x" * 250, "../../etc"])
def test_a_name_that_cannot_be_one(broker, client, name, tmp_path):
    answer = client.ask(_of(name, "beside"), 12)
    codes = [topic.error_code for topic in answer.topics]
    assert codes == [ErrorCode.INVALID_TOPIC_EXCEPTION, 0]


def test_by_id(client):
    topic_id = client.create_topic("by-id").topic_id
    wanted = [
        MetadataRequestTopic(topic_id=topic_id, name=None),
        MetadataRequestTopic(topic_id=UUID(int=9), name=None),
    ]
    existing, unknown = client.ask(MetadataRequest(topics=wanted), 12).topics
    assert (existing.error_code, existing.name) == (0, "by-id")
    assert (unknown.error_code, unknown.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, UUID(int=9))


def test_authorized_operations_only_when_asked_for(client):
    client.create_topic("operations")
    plain = client.ask(_of("operations"), 10).topics[0]
    asked = client.ask(_of("operations", include_topic_authorized_operations=True), 10).topics[0]
    assert plain.topic_authorized_operations == -(2**31)
    assert asked.topic_authorized_operations & (1 << 3 | 1 << 4) == 1 << 3 | 1 << 4


def test_the_same_new_topic_from_many_at_once(broker):
    with Wire(broker.bootstrap) as first, Wire(broker.bootstrap) as second:
        for _ in range(10):
            first.send(_of("raced"), 12)
            second.send(_of("raced"), 12)
        ids = {client.receive().topics[0].topic_id for client in (first, second) for _ in range(10)}
    assert len(ids) == 1
