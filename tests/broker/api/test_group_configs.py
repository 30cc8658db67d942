"""Settings of groups, as administrators change and read them."""

import pytest

from headwater.broker.groups.configs import SETTINGS, OffsetReset
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterableConfig,
    AlterConfigsRequestAlterConfigsResource,
)
from headwater.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsRequestDescribeConfigsResource,
)
from headwater.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from headwater.protocol.messages.list_config_resources import ListConfigResourcesRequest

GROUP = 32
SET, DELETE, APPEND = range(3)
DEFAULT, OF_THE_GROUP = 5, 8


def alter(asked, *changes, name="jobs", validate_only=False):
    (response,) = asked.ask(
        IncrementalAlterConfigsRequest(
            validate_only=validate_only,
            resources=[
                IncrementalAlterConfigsRequestAlterConfigsResource(
                    resource_type=GROUP,
                    resource_name=name,
                    configs=[
                        IncrementalAlterConfigsRequestAlterableConfig(
                            name=key, config_operation=operation, value=value
                        )
                        for operation, key, value in changes
                    ],
                )
            ],
        ),
        1,
    ).responses
    return response


def replace(asked, configs, name="jobs"):
    (response,) = asked.ask(
        AlterConfigsRequest(
            resources=[
                AlterConfigsRequestAlterConfigsResource(
                    resource_type=GROUP,
                    resource_name=name,
                    configs=[
                        AlterConfigsRequestAlterableConfig(name=key, value=value)
                        for key, value in configs.items()
                    ],
                )
            ]
        ),
        2,
    ).responses
    return response.error_code


def described(asked, name="jobs"):
    (result,) = asked.ask(
        DescribeConfigsRequest(
            include_synonyms=True,
            resources=[
                DescribeConfigsRequestDescribeConfigsResource(
                    resource_type=GROUP, resource_name=name, configuration_keys=None
                )
            ],
        ),
        4,
    ).results
    return {config.name: config for config in result.configs}


def listed(asked):
    answer = asked.ask(ListConfigResourcesRequest(resource_types=[GROUP]), 1)
    return [resource.resource_name for resource in answer.config_resources]


def test_a_change_takes_effect_is_described_and_survives(asked):
    assert alter(asked, (SET, "share.record.lock.duration.ms", "1500")).error_code == 0
    assert alter(asked, (SET, "headwater.share.order", "key")).error_code == 0
    for _ in range(2):
        settings = asked.broker.group_configs.share("jobs")
        assert (settings.record_lock_duration_ms, settings.order) == (1500, "key")
        assert asked.broker.group_configs.share("other").record_lock_duration_ms == 30_000
        configs = described(asked)
        assert set(configs) == set(SETTINGS)
        assert configs["share.record.lock.duration.ms"].config_source == OF_THE_GROUP
        synonyms = configs["share.record.lock.duration.ms"].synonyms
        assert [(synonym.name, synonym.value) for synonym in synonyms] == [
            ("share.record.lock.duration.ms", "1500"),
            ("group.share.record.lock.duration.ms", "30000"),
        ]
        assert configs["share.session.timeout.ms"].config_source == DEFAULT
        assert listed(asked) == ["jobs"]
        asked.reopen()


def test_back_to_the_default(asked):
    alter(asked, (SET, "share.delivery.count.limit", "3"), (SET, "headwater.share.order", "key"))
    alter(asked, (DELETE, "headwater.share.order", None))
    assert asked.broker.group_configs.overrides("jobs") == {"share.delivery.count.limit": "3"}
    alter(asked, (DELETE, "share.delivery.count.limit", None))
    assert asked.broker.group_configs.share("jobs").delivery_count_limit == 5
    assert listed(asked) == []


def test_replacing_all_of_them(asked):
    alter(asked, (SET, "share.delivery.count.limit", "3"))
    assert replace(asked, {"share.isolation.level": "read_committed"}) == 0
    assert asked.broker.group_configs.overrides("jobs") == {
        "share.isolation.level": "read_committed"
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("share.record.lock.duration.ms", "999"),
        ("share.record.lock.duration.ms", "soon"),
        ("share.delivery.count.limit", "1"),
        ("share.partition.max.record.locks", "99"),
        ("share.isolation.level", "serializable"),
        ("share.auto.offset.reset", "somewhere"),
        ("share.auto.offset.reset", "by_duration:-PT1H"),
        ("share.auto.offset.reset", "by_duration:P"),
        ("share.auto.offset.reset", "by_duration:PT"),
        ("share.renew.acknowledge.enable", "perhaps"),
        ("headwater.share.order", "random"),
        ("no.such.setting", "1"),
        ("share.session.timeout.ms", "5000"),  # not longer than the heartbeat interval
        ("consumer.heartbeat.interval.ms", "45000"),
    ],
)
def test_what_is_refused_changes_nothing(asked, name, value):
    refused = alter(asked, (SET, "share.delivery.count.limit", "3"), (SET, name, value))
    if name == "share.delivery.count.limit":
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        refused = alter(asked, (SET, name, value))
    assert refused.error_code == ErrorCode.INVALID_CONFIG
    assert name in refused.error_message
    assert asked.broker.group_configs.overrides("jobs") == {}


def test_only_a_check(asked):
    change = (SET, "share.delivery.count.limit", "3")
    assert alter(asked, change, validate_only=True).error_code == 0
    assert asked.broker.group_configs.overrides("jobs") == {}


def test_a_group_has_a_name_and_no_lists(asked):
    change = (SET, "share.delivery.count.limit", "3")
    assert alter(asked, change, name="").error_code == ErrorCode.INVALID_REQUEST
    append = (APPEND, "share.isolation.level", "read_committed")
    assert alter(asked, append).error_code == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    ("text", "reset"),
    [
        ("earliest", OffsetReset("earliest")),
        ("latest", OffsetReset("latest")),
        ("by_duration:PT1H", OffsetReset("by_duration", 3_600_000)),
        ("by_duration:P1DT2H3M4.5S", OffsetReset("by_duration", 93_784_500)),
    ],
)
def test_where_a_partition_begins(asked, text, reset):
    assert alter(asked, (SET, "share.auto.offset.reset", text)).error_code == 0
    assert asked.broker.group_configs.share("jobs").auto_offset_reset == reset
