"""FindCoordinator: who keeps a group. Versions 0–6; several keys at once from version 4 on.

There is one node, so it is always this one. Needs DESCRIBE on the group.

Deviations: coordinators of transactions (key type 1) and of share groups (key type 2) are not
served; the answer is INVALID_REQUEST with a message, which no client tries again.
"""

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FindCoordinatorResponseCoordinator,
)

_GROUP = 0
_NOT_SERVED = {1: "transactions are not supported", 2: "share groups are not supported"}


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
    if key_type != _GROUP:
        return FindCoordinatorResponseCoordinator(
            key=key,
            node_id=-1,
            port=-1,
            error_code=ErrorCode.INVALID_REQUEST,
            error_message=_NOT_SERVED.get(key_type, f"key type {key_type} is unknown"),
        )
    if not broker.authorizer.allows(context, Operation.DESCRIBE, ResourceType.GROUP, key):
        return FindCoordinatorResponseCoordinator(
            key=key,
            node_id=-1,
            port=-1,
            error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED,
            error_message="group authorization failed",
        )
    host, port = broker.advertised
    return FindCoordinatorResponseCoordinator(
        key=key, node_id=broker.node_id, host=host, port=port, error_message=None
    )
