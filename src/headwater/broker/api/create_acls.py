"""CreateAcls: allows and denies (KIP-140). Versions 1–3.

Needs ALTER on the cluster. Each ACL is checked on its own; one that cannot be is INVALID_REQUEST
and does not hold up the others. The rest is durable, and in force, when the answer comes. An ACL
that exists already counts as created. Without authentication there are no ACLs:
SECURITY_DISABLED, as by a Kafka without an authorizer.

Deviations: there are at most 100,000 ACLs (POLICY_VIOLATION), and a name, a principal or a host
has at most 4,096 characters. A principal without `Type:` is refused, as is an empty host. Kafka
ends the connection for UNKNOWN in an ACL; here it is INVALID_REQUEST. A disk that refuses is
KAFKA_STORAGE_ERROR, and nothing was created.
"""

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.acls import Acl
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.broker.topic_changes import CHANGE_ERRORS, refusal
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.create_acls import (
    CreateAclsRequest,
    CreateAclsRequestAclCreation,
    CreateAclsResponse,
    CreateAclsResponseAclCreationResult,
)

Outcome = tuple[ErrorCode, str | None]
SECURITY_DISABLED: Outcome = (
    ErrorCode.SECURITY_DISABLED,
    "there are no ACLs without authentication",
)
NOT_ALLOWED: Outcome = (
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    "cluster authorization failed",
)


@serves(CreateAclsRequest, first=1, last=3)
async def create_acls(
    broker: Broker, request: CreateAclsRequest, context: RequestContext
) -> CreateAclsResponse:
    if not broker.authorizer.enabled:
        outcomes = [SECURITY_DISABLED] * len(request.creations)
    elif not broker.authorizer.allows(context, Operation.ALTER, ResourceType.CLUSTER):
        outcomes = [NOT_ALLOWED] * len(request.creations)
    else:
        outcomes = await broker.to_the_end(_create_all(broker, request.creations))
    return CreateAclsResponse(
        results=[
            CreateAclsResponseAclCreationResult(error_code=code, error_message=message)
            for code, message in outcomes
        ]
    )


async def _create_all(
    broker: Broker, creations: list[CreateAclsRequestAclCreation]
) -> list[Outcome]:
    checked = [_checked(creation) for creation in creations]
    created: Outcome = (ErrorCode.NONE, None)
    try:
        await broker.authorizer.add([result for result in checked if isinstance(result, Acl)])
    except CHANGE_ERRORS as error:
        created = refusal(error)
    return [created if isinstance(result, Acl) else result for result in checked]


def _checked(creation: CreateAclsRequestAclCreation) -> Acl | Outcome:
    try:
        return Acl.checked(
            creation.resource_type,
            creation.resource_name,
            creation.resource_pattern_type,
            creation.principal,
            creation.host,
            creation.operation,
            creation.permission_type,
        )
    except ApiError as error:
        return error.code, str(error)
