"""DescribeAcls: which ACLs there are. Versions 1–3.

Needs DESCRIBE on the cluster. All ACLs that the filter means come in one answer, by resource. The
pattern type MATCH asks for all ACLs that have a say on a resource of that name: its own, those of
prefixes of it, and those of `*`. UNKNOWN in a filter is INVALID_REQUEST. Without authentication
there are no ACLs: SECURITY_DISABLED, as by a Kafka without an authorizer.

Deviations: Kafka ends the connection for UNKNOWN in a filter.
"""

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.acls import Acl, AclFilter, PatternType
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.describe_acls import (
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeAclsResponseAclDescription,
    DescribeAclsResponseDescribeAclsResource,
)

SECURITY_DISABLED = "there are no ACLs without authentication"


@serves(DescribeAclsRequest, first=1, last=3)
async def describe_acls(
    broker: Broker, request: DescribeAclsRequest, context: RequestContext
) -> DescribeAclsResponse:
    if not broker.authorizer.enabled:
        return DescribeAclsResponse(
            error_code=ErrorCode.SECURITY_DISABLED, error_message=SECURITY_DISABLED
        )
    if not broker.authorizer.allows(context, Operation.DESCRIBE, ResourceType.CLUSTER):
        return DescribeAclsResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            error_message="cluster authorization failed",
        )
    try:
        wanted = AclFilter.checked(
            request.resource_type_filter,
            request.resource_name_filter,
            request.pattern_type_filter,
            request.principal_filter,
            request.host_filter,
            request.operation,
            request.permission_type,
        )
    except ApiError as error:
        return DescribeAclsResponse(error_code=error.code, error_message=str(error))
    found = await broker.authorizer.matching(wanted)
    return DescribeAclsResponse(error_message=None, resources=_by_resource(found))


def _by_resource(acls: list[Acl]) -> list[DescribeAclsResponseDescribeAclsResource]:
    resources: dict[
        tuple[ResourceType, str, PatternType], DescribeAclsResponseDescribeAclsResource
    ] = {}
    for acl in acls:
        pattern = (acl.resource_type, acl.name, acl.pattern_type)
        if pattern not in resources:
            resources[pattern] = DescribeAclsResponseDescribeAclsResource(
                resource_type=acl.resource_type,
                resource_name=acl.name,
                pattern_type=acl.pattern_type,
            )
        resources[pattern].acls.append(
            DescribeAclsResponseAclDescription(
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
        )
    return list(resources.values())
