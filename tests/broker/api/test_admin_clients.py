"""The admin APIs as confluent-kafka and kafka-python use them, over the wire."""

import warnings

import confluent_kafka.admin as confluent
import pytest
from confluent_kafka import ElectionType, KafkaException, Producer, TopicPartition

with warnings.catch_warnings():
    # kafka-python 3.0 reads its schemas by a way that Python 3.11 calls deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import TopicPartition as KafkaPythonPartition
    from kafka import errors
    from kafka.admin import (
        ConfigResource,
        ConfigResourceType,
        KafkaAdminClient,
        NewPartitions,
        NewTopic,
    )

WAIT_S = 60
ORDERS = confluent.ConfigResource("topic", "orders")


@pytest.fixture
def admin(headwater_broker):
    quiet = {"log_level": 0}  # it may lose the broker first
    return confluent.AdminClient({"bootstrap.servers": headwater_broker.bootstrap, **quiet})


@pytest.fixture
def python_admin(headwater_broker):
    client = KafkaAdminClient(bootstrap_servers=headwater_broker.bootstrap)
    yield client
    client.close()


def result_of(futures):
    (future,) = futures.values()
    return future.result(WAIT_S)


def refusal_of(futures):
    with pytest.raises(KafkaException) as refused:
        result_of(futures)
    return refused.value.args[0]


def create(admin, *args, **options):
    return admin.create_topics([confluent.NewTopic(*args, **options)])


def alter(admin, operation, name, value):
    entry = confluent.ConfigEntry(name, value, incremental_operation=operation)
    resource = confluent.ConfigResource("topic", "orders", incremental_configs=[entry])
    return admin.incremental_alter_configs([resource])


def test_confluent_topics_and_partitions(admin):
    result_of(create(admin, "orders", 3, 1, config={"retention.ms": "5000"}))
    assert refusal_of(create(admin, "orders", 3, 1)).name() == "TOPIC_ALREADY_EXISTS"
    assert refusal_of(create(admin, "bad", 1, 2)).name() == "INVALID_REPLICATION_FACTOR"
    result_of(create(admin, "assigned", 2, replica_assignment=[[1], [1]]))
    result_of(admin.create_partitions([confluent.NewPartitions("orders", 5)]))
    fewer = admin.create_partitions([confluent.NewPartitions("orders", 4)])
    assert refusal_of(fewer).name() == "INVALID_PARTITIONS"
    topics = admin.list_topics(timeout=WAIT_S).topics
    assert (len(topics["orders"].partitions), len(topics["assigned"].partitions)) == (5, 2)
    result_of(admin.delete_topics(["orders"]))
    assert refusal_of(admin.delete_topics(["orders"])).name() == "UNKNOWN_TOPIC_OR_PART"


def test_confluent_settings(admin):
    result_of(create(admin, "orders", 1, 1, config={"retention.ms": "5000"}))
    operations = confluent.AlterConfigOpType
    result_of(alter(admin, operations.APPEND, "cleanup.policy", "compact"))
    result_of(alter(admin, operations.SET, "segment.ms", "100"))
    result_of(alter(admin, operations.DELETE, "retention.ms", None))
    refused = refusal_of(alter(admin, operations.SET, "segment.ms", "soon"))
    assert (refused.name(), "segment.ms" in refused.str()) == ("INVALID_CONFIG", True)

    configs = result_of(admin.describe_configs([ORDERS]))
    own = {name: entry.value for name, entry in configs.items() if not entry.is_default}
    assert own == {"cleanup.policy": "delete,compact", "segment.ms": "100"}
    retention = configs["retention.ms"]
    assert retention.source == confluent.ConfigSource.DEFAULT_CONFIG.value
    assert list(retention.synonyms) == ["log.retention.ms"]
    broker = result_of(admin.describe_configs([confluent.ConfigResource("broker", "1")]))
    assert broker["node.id"].value == "1"
    assert all(entry.is_read_only for entry in broker.values())


def test_confluent_records_leaders_and_cluster(admin, headwater_broker):
    result_of(create(admin, "orders", 1, 1))
    producer = Producer({"bootstrap.servers": headwater_broker.bootstrap, "log_level": 0})
    for _ in range(10):
        producer.produce("orders", b"x")
    assert producer.flush(WAIT_S) == 0
    deleted = result_of(admin.delete_records([TopicPartition("orders", 0, 4)]))
    assert deleted.low_watermark == 4
    beyond = admin.delete_records([TopicPartition("orders", 0, 11)])
    assert refusal_of(beyond).name() == "OFFSET_OUT_OF_RANGE"

    preferred = ElectionType.PREFERRED
    elected = admin.elect_leaders(preferred, [TopicPartition("orders", 0)]).result(WAIT_S)
    assert [error.name() for error in elected.values()] == ["ELECTION_NOT_NEEDED"]
    assert admin.elect_leaders(preferred).result(WAIT_S) == {}

    cluster = admin.describe_cluster(include_authorized_operations=True).result(WAIT_S)
    (node,) = cluster.nodes
    assert f"{node.host}:{node.port}" == headwater_broker.bootstrap
    assert (cluster.controller.id, bool(cluster.cluster_id)) == (1, True)
    assert cluster.authorized_operations


def test_kafka_python_topics_and_settings(python_admin):
    admin = python_admin
    admin.create_topics([NewTopic("orders", 3, 1, topic_configs={"retention.ms": "5000"})])
    with pytest.raises(errors.TopicAlreadyExistsError):
        admin.create_topics([NewTopic("orders", 3, 1)])
    with pytest.raises(errors.InvalidConfigurationError):
        admin.create_topics([NewTopic("bad", 1, 1, topic_configs={"retention.ms": "x"})])
    admin.create_partitions({"orders": NewPartitions(5)})

    def own_settings():
        resource = ConfigResource(ConfigResourceType.TOPIC, "orders")
        described = admin.describe_configs([resource], config_filter="modified")
        return {name: entry["value"] for name, entry in described["topic"]["orders"].items()}

    def changed(value):
        return [ConfigResource(ConfigResourceType.TOPIC, "orders", {"segment.ms": value})]

    admin.alter_configs(changed("100"))
    assert own_settings() == {"retention.ms": "5000", "segment.ms": "100"}
    admin.alter_configs(changed("200"), incremental=False)
    assert own_settings()["segment.ms"] == "200"
    admin.reset_configs(changed(None))
    assert "segment.ms" not in own_settings()
    listed = admin.list_config_resources()
    assert listed == {"topic": ["__consumer_offsets", "orders"], "broker": ["1"]}

    described = admin.describe_topic_partitions(["orders"], response_partition_limit=2)
    assert len(described["topics"][0]["partitions"]) == 2
    assert described["next_cursor"]["partition_index"] == 2
    admin.delete_topics(["orders"])
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        admin.delete_topics(["orders"])


def test_kafka_python_records_and_disks(python_admin):
    admin = python_admin
    admin.create_topics([NewTopic("orders", 1, 1)])
    partition = KafkaPythonPartition("orders", 0)
    assert admin.delete_records({partition: -1})[partition]["low_watermark"] == 0
    with pytest.raises(errors.OffsetOutOfRangeError):
        admin.delete_records({partition: 7})
    (described,) = admin.describe_log_dirs()
    (log_dir,) = described["log_dirs"]
    assert {topic["name"] for topic in log_dir["topics"]} == {"__consumer_offsets", "orders"}
    assert 0 < log_dir["usable_bytes"] <= log_dir["total_bytes"]
    assert admin.describe_cluster()["controller_id"] == 1
