"""ListConfigResources: what DescribeConfigs can be asked about (KIP-1142). Versions 0–1.

Version 0 lists client metrics, of which there are none. Version 1 lists the kinds asked for, or
all of them if none is named: topics, this broker, and the groups that have settings of their own.
Client metrics have none. An unknown kind is UNSUPPORTED_VERSION, as in Kafka. Needs
DESCRIBE_CONFIGS on the cluster.

Deviations: broker loggers, which are not offered, are not listed.
"""

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.configs import resources
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListConfigResourcesResponseConfigResource,
)

KNOWN = {
    resources.TOPIC,
    resources.BROKER,
    resources.BROKER_LOGGER,
    resources.CLIENT_METRICS,
    resources.GROUP,
}


@serves(ListConfigResourcesRequest, first=0, last=1)
def list_config_resources(
    broker: Broker, request: ListConfigResourcesRequest, context: RequestContext
) -> ListConfigResourcesResponse:
    if not broker.authorizer.allows(context, Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER):
        return ListConfigResourcesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    kinds = set(request.resource_types) or KNOWN
    if context.api_version == 0:
        kinds = {resources.CLIENT_METRICS}
    if not kinds <= KNOWN:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    names: list[tuple[int, str]] = []
    if resources.TOPIC in kinds:
        names += [(resources.TOPIC, name) for name in list(broker.store.catalog.topics)]
    if resources.BROKER in kinds:
        names.append((resources.BROKER, str(broker.node_id)))
    if resources.GROUP in kinds:
        names += [(resources.GROUP, group_id) for group_id in broker.group_configs.group_ids()]
    return ListConfigResourcesResponse(
        config_resources=[
            ListConfigResourcesResponseConfigResource(resource_name=name, resource_type=kind)
            for kind, name in names
        ]
    )
