import pytest

from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)

SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER = 2, 4


def resource(name, *changes, kind=TOPIC):
    return IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            IncrementalAlterConfigsRequestAlterableConfig(
                name=key, config_operation=operation, value=value
            )
            for operation, key, value in changes
        ],
    )


def alter(asked, *changes, name="orders", kind=TOPIC, version=1, validate_only=False):
    request = IncrementalAlterConfigsRequest(
        resources=[resource(name, *changes, kind=kind)], validate_only=validate_only
    )
    (response,) = asked.ask(request, version).responses
    assert (response.resource_type, response.resource_name) == (kind, name)
    assert (response.error_code == 0) == (response.error_message is None)
    return response


def configs(asked):
    return asked.broker.topic("orders").configs


@pytest.mark.parametrize("version", range(2))
def test_leaves_the_rest_alone(asked, version):
    asked.topic("orders", retention_ms="5000", segment_ms="100")
    changes = [(SET, "retention.bytes", "1000"), (DELETE, "segment.ms", None)]
    assert alter(asked, *changes, version=version).error_code == 0
    assert configs(asked) == {"retention.ms": "5000", "retention.bytes": "1000"}
    asked.reopen()
    assert asked.store.partitions["orders", 0].config.retention_bytes == 1000


def test_lists(asked):
    asked.topic("orders")
    assert alter(asked, (APPEND, "cleanup.policy", "compact")).error_code == 0
    assert configs(asked) == {"cleanup.policy": "delete,compact"}
    alter(asked, (APPEND, "cleanup.policy", " compact , delete"))
    assert configs(asked) == {"cleanup.policy": "delete,compact"}
    alter(asked, (SUBTRACT, "cleanup.policy", "delete"))
    assert configs(asked) == {"cleanup.policy": "compact"}


def test_a_list_begins_with_the_brokers_default(asked_with_defaults):
    asked_with_defaults.topic("orders")
    alter(asked_with_defaults, (APPEND, "cleanup.policy", "delete"))
    assert configs(asked_with_defaults) == {"cleanup.policy": "compact,delete"}


@pytest.mark.parametrize("operation", [APPEND, SUBTRACT])
@pytest.mark.parametrize("name", ["retention.ms", "no.such.setting"])
def test_only_lists_can_be_appended_to(asked, operation, name):
    asked.topic("orders")
    response = alter(asked, (operation, name, "1"))
    assert response.error_code == ErrorCode.INVALID_CONFIG
    assert name in response.error_message


@pytest.mark.parametrize("name", ["retention.ms", "no.such.setting"])
def test_deleting_what_is_not_set_changes_nothing(asked, name):
    asked.topic("orders", segment_ms="100")
    assert alter(asked, (DELETE, name, None)).error_code == 0
    assert configs(asked) == {"segment.ms": "100"}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ((SET, "retention.ms", "soon"), ErrorCode.INVALID_CONFIG),
        ((SET, "no.such.setting", "1"), ErrorCode.INVALID_CONFIG),
        ((APPEND, "cleanup.policy", "burn"), ErrorCode.INVALID_CONFIG),
        ((SUBTRACT, "cleanup.policy", "delete"), ErrorCode.INVALID_CONFIG),
        ((SET, "retention.ms", None), ErrorCode.INVALID_REQUEST),
        ((APPEND, "cleanup.policy", None), ErrorCode.INVALID_REQUEST),
        ((9, "retention.ms", "1"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_wrong_change_is_named_and_nothing_changes(asked, change, code):
    asked.topic("orders")
    response = alter(asked, (SET, "segment.ms", "100"), change)
    assert response.error_code == code
    assert change[1] in response.error_message
    assert configs(asked) == {}


def test_validate_only_changes_nothing(asked):
    asked.topic("orders")
    assert alter(asked, (SET, "retention.ms", "1"), validate_only=True).error_code == 0
    wrong = alter(asked, (SET, "retention.ms", "x"), validate_only=True)
    assert wrong.error_code == ErrorCode.INVALID_CONFIG
    assert configs(asked) == {}


def test_what_stands_twice(asked):
    asked.topic("orders")
    twice = alter(asked, (SET, "retention.ms", "1"), (DELETE, "retention.ms", None))
    assert twice.error_code == ErrorCode.INVALID_REQUEST
    one = resource("orders", (SET, "retention.ms", "1"))
    responses = asked.ask(IncrementalAlterConfigsRequest(resources=[one, one]), 1).responses
    assert [response.error_code for response in responses] == [ErrorCode.INVALID_REQUEST] * 2


def test_what_cannot_be_changed(asked):
    change = (SET, "retention.ms", "1")
    unknown = alter(asked, change, name="nothing")
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    broker = alter(asked, change, name="1", kind=BROKER)
    assert broker.error_code == ErrorCode.INVALID_REQUEST
    assert "headwater.toml" in broker.error_message
    assert alter(asked, change, name="x", kind=99).error_code == ErrorCode.INVALID_REQUEST


def test_two_changes_at_once_both_hold(asked):
    asked.topic("orders")
    requests = [
        IncrementalAlterConfigsRequest(resources=[resource("orders", (SET, name, "100"))])
        for name in ("retention.ms", "segment.ms")
    ]
    asked.ask_at_once(*requests, version=1)
    assert configs(asked) == {"retention.ms": "100", "segment.ms": "100"}
