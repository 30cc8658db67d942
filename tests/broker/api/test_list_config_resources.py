from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.list_config_resources import ListConfigResourcesRequest

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32


def listed(asked, *kinds, version=1):
    response = asked.ask(ListConfigResourcesRequest(resource_types=list(kinds)), version)
    assert response.error_code == 0
    return {
        (resource.resource_type, resource.resource_name) for resource in response.config_resources
    }


def test_version_0_lists_client_metrics_of_which_there_are_none(asked):
    asked.topic("orders")
    assert listed(asked, version=0) == set()


def test_topics_and_the_broker(asked):
    asked.topic("orders")
    topics = {(TOPIC, "orders"), (TOPIC, "__consumer_offsets")}
    assert listed(asked) == topics | {(BROKER, "1")}
    assert listed(asked, TOPIC) == topics
    assert listed(asked, BROKER, METRICS) == {(BROKER, "1")}
    assert listed(asked, METRICS, GROUP, LOGGER) == set()


def test_an_unknown_kind(asked):
    response = asked.ask(ListConfigResourcesRequest(resource_types=[TOPIC, 3]), 1)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert response.config_resources == []
