"""AlterConfigs: replaces all settings of topics and groups. Versions 0–2.

What the request does not name goes back to its default; IncrementalAlterConfigs is the API that
leaves the rest alone. A change is durable, and in force, when the answer comes. A wrong setting is
named (INVALID_CONFIG), and nothing of that resource changes. A resource, or a setting within one,
that stands twice is INVALID_REQUEST, and so is a setting without a value. `validate_only` checks
and changes nothing. A group need not exist to have settings. Needs ALTER_CONFIGS on each topic and
group.

Deviations: the broker's settings stand in headwater.toml (INVALID_REQUEST says so). The bounds of
group settings are the widest that Kafka's broker settings for them allow.
"""

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.configs import changes as config_changes
from headwater.broker.configs.changes import Target, value_of
from headwater.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterConfigsResource,
    AlterConfigsResponse,
    AlterConfigsResponseAlterConfigsResourceResponse,
)


@serves(AlterConfigsRequest, first=0, last=2)
async def alter_configs(
    broker: Broker, request: AlterConfigsRequest, context: RequestContext
) -> AlterConfigsResponse:
    change = config_changes.alter(
        broker, request.resources, _replaced, context, validate_only=request.validate_only
    )
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResponseAlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource, code, message in await broker.to_the_end(change)
        ]
    )


def _replaced(target: Target, resource: AlterConfigsRequestAlterConfigsResource) -> dict[str, str]:
    return {config.name: value_of(config) for config in resource.configs}
