import pytest

from headwater.log.config import SETTINGS
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsRequestDescribeConfigsResource,
)

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32


def describe(asked, kind, name, keys=None, *, version=4, synonyms=False, documentation=False):
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequestDescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=keys
            )
        ],
        include_synonyms=synonyms,
        include_documentation=documentation,
    )
    (result,) = asked.ask(request, version).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def configs(asked, kind, name, keys=None, **options):
    result = describe(asked, kind, name, keys, **options)
    assert (result.error_code, result.error_message) == (0, None)
    return {config.name: config for config in result.configs}


def synonyms_of(config):
    return [(synonym.name, synonym.value, synonym.source) for synonym in config.synonyms]


@pytest.mark.parametrize("version", range(1, 5))
def test_a_topic(asked, version):
    asked.topic("orders", retention_ms="5000")
    described = configs(asked, TOPIC, "orders", version=version)
    assert set(described) == set(SETTINGS)
    retention = described["retention.ms"]
    assert (retention.value, retention.config_source) == ("5000", 1)
    assert not retention.read_only
    assert not retention.is_sensitive
    assert (described["cleanup.policy"].value, described["cleanup.policy"].config_source) == (
        "delete",
        5,
    )
    assert described["retention.ms"].synonyms == []
    if version >= 3:
        kinds = {name: described[name].config_type for name in ("retention.ms", "cleanup.policy")}
        assert kinds == {"retention.ms": 5, "cleanup.policy": 7}
        assert described["retention.ms"].documentation is None


def test_synonyms_carry_kafkas_names_in_order_of_precedence(asked):
    asked.topic("orders", retention_ms="5000", segment_ms="9000")
    described = configs(asked, TOPIC, "orders", synonyms=True)
    week = "604800000"
    own = [("retention.ms", "5000", 1), ("log.retention.ms", week, 5)]
    assert synonyms_of(described["retention.ms"]) == own
    assert synonyms_of(described["segment.ms"]) == [
        ("segment.ms", "9000", 1),
        ("log.roll.ms", week, 5),
    ]
    assert synonyms_of(described["max.message.bytes"]) == [("message.max.bytes", "1048588", 5)]
    assert synonyms_of(described["min.insync.replicas"]) == [("min.insync.replicas", "1", 5)]
    assert synonyms_of(described["leader.replication.throttled.replicas"]) == []


def test_defaults_from_the_configuration_file(asked_with_defaults):
    asked = asked_with_defaults
    asked.topic("orders", cleanup_policy="delete")
    described = configs(asked, TOPIC, "orders", synonyms=True)
    assert (described["retention.ms"].value, described["retention.ms"].config_source) == ("1000", 4)
    assert (described["cleanup.policy"].value, described["cleanup.policy"].config_source) == (
        "delete",
        1,
    )
    assert synonyms_of(described["cleanup.policy"]) == [
        ("cleanup.policy", "delete", 1),
        ("log.cleanup.policy", "compact", 4),
        ("log.cleanup.policy", "delete", 5),
    ]
    described = configs(asked, BROKER, "1")
    retention = described["log.retention.ms"]
    assert (retention.value, retention.config_source, retention.read_only) == ("1000", 4, True)


def test_documentation_when_asked_for(asked):
    asked.topic("orders")
    described = configs(asked, TOPIC, "orders", documentation=True)
    assert all(config.documentation for config in described.values())
    described = configs(asked, BROKER, "1", documentation=True)
    assert all(config.documentation for config in described.values())


def test_only_the_named_settings(asked):
    asked.topic("orders")
    keys = ["retention.ms", "no.such.setting"]
    assert set(configs(asked, TOPIC, "orders", keys)) == {"retention.ms"}
    assert set(configs(asked, TOPIC, "orders", [])) == set(SETTINGS)


def test_this_broker(asked):
    described = configs(asked, BROKER, "1", synonyms=True)
    values = {name: config.value for name, config in described.items()}
    assert values["node.id"] == "1"
    assert values["log.dirs"] == asked.store.path
    assert values["num.partitions"] == "3"
    assert values["auto.create.topics.enable"] == "true"
    assert values["advertised.listeners"] == "PLAINTEXT://broker.example:9092"
    assert values["message.max.bytes"] == "1048588"
    assert values["offsets.topic.num.partitions"] == "50"
    assert values["group.min.session.timeout.ms"] == "6000"
    assert all(config.read_only for config in described.values())
    sources = {name: described[name].config_source for name in ("num.partitions", "node.id")}
    assert sources == {"num.partitions": 4, "node.id": 4}
    assert described["auto.create.topics.enable"].config_source == 5
    assert all(config.synonyms[0].value == config.value for config in described.values())
    assert len(described) == len(describe(asked, BROKER, "1").configs)


def test_all_brokers_have_nothing_set_at_run_time(asked):
    assert configs(asked, BROKER, "") == {}


def test_groups_and_client_metrics(asked):
    described = configs(asked, GROUP, "billing")
    assert described["consumer.session.timeout.ms"].value == "45000"
    assert not described["consumer.session.timeout.ms"].read_only
    assert configs(asked, METRICS, "subscription") == {}


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "nothing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "2", ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ErrorCode.INVALID_REQUEST),
        (LOGGER, "1", ErrorCode.INVALID_REQUEST),
        (METRICS, "", ErrorCode.INVALID_REQUEST),
        (GROUP, "", ErrorCode.INVALID_REQUEST),
        (0, "x", ErrorCode.INVALID_REQUEST),
        (99, "x", ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_cannot_be_described(asked, kind, name, code):
    result = describe(asked, kind, name)
    assert result.error_code == code
    assert result.error_message
    assert result.configs == []


def test_a_resource_named_often_is_described_once(asked):
    asked.topic("orders")
    resource = DescribeConfigsRequestDescribeConfigsResource(
        resource_type=TOPIC, resource_name="orders", configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[resource] * 10_000)
    assert len(asked.ask(request, 4).results) == 1
