"""IncrementalAlterConfigs: changes single settings of topics and groups (KIP-339). Versions 0–1.

SET and DELETE (back to the default) for every setting; APPEND and SUBTRACT for lists, beginning
with the default if the resource has no value of its own. A change is durable, and in force, when
the answer comes. A wrong setting is named (INVALID_CONFIG), and nothing of that resource changes. A
resource, or a setting within one, that stands twice is INVALID_REQUEST, and so is a setting without
a value. As in Kafka, DELETE of a setting that is not set, or that does not exist, changes nothing.
`validate_only` checks and changes nothing. A group need not exist to have settings. Needs
ALTER_CONFIGS on each topic and group.

Deviations: the broker's settings stand in headwater.toml (INVALID_REQUEST says so). The bounds of
group settings are the widest that Kafka's broker settings for them allow.
"""

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.configs import changes as config_changes
from headwater.broker.configs.changes import Target, value_of
from headwater.log.settings import LIST
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseAlterConfigsResourceResponse,
)

SET, DELETE, APPEND, SUBTRACT = range(4)


@serves(IncrementalAlterConfigsRequest, first=0, last=1)
async def incremental_alter_configs(
    broker: Broker, request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:
    change = config_changes.alter(
        broker, request.resources, _changed, context, validate_only=request.validate_only
    )
    return IncrementalAlterConfigsResponse(
        responses=[
            IncrementalAlterConfigsResponseAlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource, code, message in await broker.to_the_end(change)
        ]
    )


def _changed(
    target: Target, resource: IncrementalAlterConfigsRequestAlterConfigsResource
) -> dict[str, str]:
    configs = dict(target.configs)
    for config in resource.configs:
        operation = config.config_operation
        if operation == SET:
            configs[config.name] = value_of(config)
        elif operation == DELETE:
            configs.pop(config.name, None)
        elif operation in (APPEND, SUBTRACT):
            configs[config.name] = _changed_list(target, configs, config)
        else:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, "unknown operation", detail=f"{operation}, {config.name}"
            )
    return configs


def _changed_list(
    target: Target,
    configs: dict[str, str],
    config: IncrementalAlterConfigsRequestAlterableConfig,
) -> str:
    setting = target.settings.get(config.name)
    if setting is None or setting.kind != LIST:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            "only a list can be appended to or subtracted from",
            detail=config.name,
        )
    members = _members(configs.get(config.name, target.default(config.name)))
    given = _members(value_of(config))
    if config.config_operation == APPEND:
        changed = [*members, *(value for value in given if value not in members)]
    else:
        changed = [member for member in members if member not in given]
    return ",".join(changed)


def _members(text: str) -> dict[str, None]:
    """The elements of a list, in order, each once."""
    return dict.fromkeys(part.strip() for part in text.split(",") if part.strip())
