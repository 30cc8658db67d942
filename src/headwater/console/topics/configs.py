"""The configuration of a topic, and which settings differ from the default."""

from typing import Any, Final

from headwater.client.cluster import Cluster
from headwater.client.refusals import error_name
from headwater.errors import RequestRefused
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsRequestDescribeConfigsResource,
    DescribeConfigsResponse,
)

_TOPIC: Final = 2  # kind of resource
_SOURCES: Final = {
    1: "topic", 2: "broker, for the time being", 3: "all brokers, for the time being", 4: "broker",
    5: "default", 6: "broker's logger", 7: "client metrics", 8: "group",
}  # fmt: skip


def read_configs(cluster: Cluster, topic: str) -> list[dict[str, Any]] | None:
    """By name; None if the user may not read them. Raises RequestRefused."""
    resource = DescribeConfigsRequestDescribeConfigsResource(
        resource_type=_TOPIC, resource_name=topic, configuration_keys=None
    )
    answer = cluster.ask_any(
        DescribeConfigsRequest(resources=[resource], include_documentation=True),
        DescribeConfigsResponse,
        cluster.patience(f"the settings of topic {topic} cannot be read"),
        first=1,
        last=4,
    )
    (result,) = answer.results
    if result.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return None
    if result.error_code:
        raise RequestRefused(
            f"the settings of topic {topic} cannot be read", detail=error_name(result.error_code)
        )
    return [
        {
            "name": config.name,
            "value": None if config.is_sensitive else config.value,
            "source": _SOURCES.get(config.config_source, "unknown"),
            "is_changed": config.config_source == 1,
            "documentation": getattr(config, "documentation", None),
        }
        for config in sorted(result.configs, key=lambda config: config.name)
    ]
