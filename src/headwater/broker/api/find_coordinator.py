"""FindCoordinator: the coordinator of a group or a transactional id. Versions 0–6.

Several keys at once from version 4 on.

There is one node, so it is always this one. Needs DESCRIBE on the group or the transactional id.
The state of a share partition (key type 2, version 6) goes by `group:topicId:partition`; any other
form is INVALID_REQUEST. Kafka's brokers ask for it, so it takes CLUSTER_ACTION.
"""

import re

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FindCoordinatorResponseCoordinator,
)

_KEPT = {0: ResourceType.GROUP, 1: ResourceType.TRANSACTIONAL_ID}
_SHARE = 2
_FIRST_VERSION_WITH_SHARE = 6
_SHARE_PARTITION = re.compile(r".+:[A-Za-z0-9_-]{22}:\d+", re.DOTALL)


@serves(FindCoordinatorRequest, first=0, last=6)
def find_coordinator(
    broker: Broker, request: FindCoordinatorRequest, context: RequestContext
) -> FindCoordinatorResponse:
    if context.api_version >= 4:
        return FindCoordinatorResponse(
            coordinators=[
                _coordinator(broker, key, request.key_type, context)
                for key in request.coordinator_keys
            ]
        )
    found = _coordinator(broker, request.key, request.key_type, context)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _coordinator(
    broker: Broker, key: str, key_type: int, context: RequestContext
) -> FindCoordinatorResponseCoordinator:
    try:
        _verify(broker, key, key_type, context)
    except ApiError as error:
        return FindCoordinatorResponseCoordinator(
            key=key, node_id=-1, port=-1, error_code=error.code, error_message=error.what
        )
    host, port = broker.advertised
    return FindCoordinatorResponseCoordinator(
        key=key, node_id=broker.node_id, host=host, port=port, error_message=None
    )


def _verify(broker: Broker, key: str, key_type: int, context: RequestContext) -> None:
    """Raises the error code for what has no coordinator here."""
    if key_type == _SHARE and context.api_version >= _FIRST_VERSION_WITH_SHARE:
        if not broker.authorizer.allows(context, Operation.CLUSTER_ACTION, ResourceType.CLUSTER):
            raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if not _SHARE_PARTITION.fullmatch(key):
            raise ApiError(ErrorCode.INVALID_REQUEST, "not of the form group:topicId:partition")
    elif key_type in _KEPT:
        broker.authorizer.require(context, Operation.DESCRIBE, _KEPT[key_type], key)
    else:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"key type {key_type} is unknown")
