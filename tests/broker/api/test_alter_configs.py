import pytest

from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterableConfig,
    AlterConfigsRequestAlterConfigsResource,
)

TOPIC, BROKER = 2, 4


def resource(name, *configs, kind=TOPIC):
    return AlterConfigsRequestAlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            AlterConfigsRequestAlterableConfig(name=key, value=value) for key, value in configs
        ],
    )


def alter(asked, *resources, version=2, validate_only=False):
    request = AlterConfigsRequest(resources=list(resources), validate_only=validate_only)
    return asked.ask(request, version).responses


def code_of(asked, *args, **options):
    (response,) = alter(asked, resource(*args, **options))
    assert response.error_message
    return ErrorCode(response.error_code)


@pytest.mark.parametrize("version", range(3))
def test_replaces_all_settings(asked, version):
    asked.topic("orders", retention_ms="5000", segment_ms="100")
    (response,) = alter(asked, resource("orders", ("retention.bytes", "1000")), version=version)
    assert (response.error_code, response.error_message) == (0, None)
    assert (response.resource_type, response.resource_name) == (TOPIC, "orders")
    assert asked.broker.topic("orders").configs == {"retention.bytes": "1000"}
    assert asked.store.partitions["orders", 0].config.retention_bytes == 1000
    asked.reopen()
    assert asked.broker.topic("orders").configs == {"retention.bytes": "1000"}


def test_no_settings_is_all_defaults(asked):
    asked.topic("orders", retention_ms="5000")
    alter(asked, resource("orders"))
    assert asked.broker.topic("orders").configs == {}


def test_validate_only_changes_nothing(asked):
    asked.topic("orders", retention_ms="5000")
    good = resource("orders", ("retention.ms", "1"))
    assert alter(asked, good, validate_only=True)[0].error_code == 0
    bad = resource("orders", ("retention.ms", "x"))
    assert alter(asked, bad, validate_only=True)[0].error_code == ErrorCode.INVALID_CONFIG
    assert asked.broker.topic("orders").configs == {"retention.ms": "5000"}


def test_a_refused_resource_does_not_hold_up_the_others(asked):
    asked.topic("good")
    asked.topic("bad")
    wrong = resource("bad", ("segment.ms", "10"), ("retention.ms", "soon"))
    good = resource("good", ("retention.ms", "5000"))
    refused, changed = alter(asked, wrong, good)
    assert refused.error_code == ErrorCode.INVALID_CONFIG
    assert "retention.ms" in refused.error_message
    assert asked.broker.topic("bad").configs == {}
    assert changed.error_code == 0
    assert asked.broker.topic("good").configs == {"retention.ms": "5000"}


def test_what_stands_twice(asked):
    asked.topic("orders")
    twice = resource("orders", ("retention.ms", "1"), ("retention.ms", "2"))
    assert alter(asked, twice)[0].error_code == ErrorCode.INVALID_REQUEST
    one = resource("orders", ("retention.ms", "1"))
    assert [result.error_code for result in alter(asked, one, one)] == [
        ErrorCode.INVALID_REQUEST
    ] * 2
    assert asked.broker.topic("orders").configs == {}


def test_what_cannot_be_changed(asked):
    asked.topic("orders")
    setting = ("retention.ms", "1")
    assert code_of(asked, "nothing", setting) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code_of(asked, "orders", ("retention.ms", None)) is ErrorCode.INVALID_REQUEST
    assert code_of(asked, "orders", ("no.such", "1")) is ErrorCode.INVALID_CONFIG
    assert code_of(asked, "1", setting, kind=8) is ErrorCode.INVALID_REQUEST
    assert code_of(asked, "g", setting, kind=32) is ErrorCode.INVALID_CONFIG


def test_the_brokers_settings_stand_in_the_file(asked):
    (response,) = alter(asked, resource("1", ("log.retention.ms", "1"), kind=BROKER))
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert "headwater.toml" in response.error_message


def test_a_full_disk_leaves_the_settings(asked):
    asked.topic("orders")
    asked.files.is_full = True
    assert code_of(asked, "orders", ("retention.ms", "1")) is ErrorCode.KAFKA_STORAGE_ERROR
    asked.files.is_full = False
    assert asked.broker.topic("orders").configs == {}
