"""DescribeConfigs: settings, their values and where these come from. Versions 1–4.

Topics: every setting, with its source: the topic itself (DYNAMIC_TOPIC_CONFIG), headwater.toml
(STATIC_BROKER_CONFIG) or the default (DEFAULT_CONFIG), and on request its synonyms under Kafka's
names for the broker's defaults, and its meaning. This broker, by its node id: its own settings,
all read-only. Groups, whether they exist or not: every setting, as for topics
(DYNAMIC_GROUP_CONFIG). Without a list of names, or with an empty one, all settings are reported.

As in Kafka, the broker "" (all brokers) has what was set for all of them at run time, which here
is nothing; so have client metrics. Unknown topics are UNKNOWN_TOPIC_OR_PARTITION, another
broker's id and unknown kinds of resources INVALID_REQUEST. Needs DESCRIBE_CONFIGS on each topic
and group, and for the others on the cluster.

Deviations: broker loggers are INVALID_REQUEST. A resource that stands twice in a request is
described once. Values are reported as they were set (`CreateTime`, `TRUE`).
"""

import asyncio
from collections.abc import Iterable

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker, check_topic_name
from headwater.broker.configs import resources
from headwater.broker.configs.resources import Entry
from headwater.broker.security.authorizer import Operation
from headwater.broker.topic_changes import refusal
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsRequestDescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResponseDescribeConfigsResourceResult,
    DescribeConfigsResponseDescribeConfigsResult,
    DescribeConfigsResponseDescribeConfigsSynonym,
)

RESOURCES_AT_ONCE = 50  # then others have their turn


@serves(DescribeConfigsRequest, first=1, last=4)
async def describe_configs(
    broker: Broker, request: DescribeConfigsRequest, context: RequestContext
) -> DescribeConfigsResponse:
    response = DescribeConfigsResponse()
    wanted = {
        (resource.resource_type, resource.resource_name): resource for resource in request.resources
    }
    for number, resource in enumerate(wanted.values(), 1):
        response.results.append(_describe(broker, resource, request, context))
        if number % RESOURCES_AT_ONCE == 0:
            await asyncio.sleep(0)
    return response


def _describe(
    broker: Broker,
    resource: DescribeConfigsRequestDescribeConfigsResource,
    request: DescribeConfigsRequest,
    context: RequestContext,
) -> DescribeConfigsResponseDescribeConfigsResult:
    result = DescribeConfigsResponseDescribeConfigsResult(
        error_message=None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
    kind, name = resource.resource_type, resource.resource_name
    try:
        resources.require(broker, context, Operation.DESCRIBE_CONFIGS, kind, name)
        keys = set(resource.configuration_keys or ())
        result.configs = [
            _told(entry, request)
            for entry in _entries(broker, kind, name)
            if not keys or entry.name in keys
        ]
    except ApiError as error:
        result.error_code, result.error_message = refusal(error)
    return result


def _entries(broker: Broker, kind: int, name: str) -> Iterable[Entry]:
    match kind:
        case resources.TOPIC:
            check_topic_name(name)
            topic = broker.topic(name)
            if topic is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such topic", detail=name)
            return resources.topic_entries(broker, topic.configs)
        case resources.BROKER:
            return () if name == "" else _broker_entries(broker, name)
        case resources.BROKER_LOGGER:
            raise ApiError(ErrorCode.INVALID_REQUEST, "the levels of loggers are not offered")
        case resources.CLIENT_METRICS | resources.GROUP if name == "":
            raise ApiError(ErrorCode.INVALID_REQUEST, "the name must not be empty")
        case resources.CLIENT_METRICS:
            return ()
        case resources.GROUP:
            return resources.group_entries(broker, name)
        case _:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, "unknown kind of resource", detail=f"{kind}, {name}"
            )


def _broker_entries(broker: Broker, name: str) -> Iterable[Entry]:
    if name != str(broker.node_id):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"this is broker {broker.node_id}, and the only one",
            detail=name,
        )
    return resources.broker_entries(broker)


def _told(
    entry: Entry, request: DescribeConfigsRequest
) -> DescribeConfigsResponseDescribeConfigsResourceResult:
    return DescribeConfigsResponseDescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        synonyms=[
            DescribeConfigsResponseDescribeConfigsSynonym(
                name=synonym.name, value=synonym.value, source=synonym.source
            )
            for synonym in entry.synonyms
        ]
        if request.include_synonyms
        else [],
        config_type=entry.kind,
        documentation=entry.doc if request.include_documentation else None,
    )
