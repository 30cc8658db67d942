"""DeleteAcls: takes ACLs back (KIP-140). Versions 1–3.

Needs ALTER on the cluster. Each filter means any number of ACLs (see DescribeAcls); the answer
names those it meant. They are deleted, durably, when the answer comes. A filter with UNKNOWN in it
is INVALID_REQUEST and does not hold up the others. Without authentication there are no ACLs:
SECURITY_DISABLED, as by a Kafka without an authorizer.

Deviations: Kafka ends the connection for UNKNOWN in a filter. A disk that refuses is
KAFKA_STORAGE_ERROR, and nothing was deleted.
"""

from headwater.broker.api.create_acls import NOT_ALLOWED, SECURITY_DISABLED
from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.acls import Acl, AclFilter
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.broker.topic_changes import CHANGE_ERRORS, refusal
from headwater.protocol.error_codes import ApiError
from headwater.protocol.messages.delete_acls import (
    DeleteAclsRequest,
    DeleteAclsRequestDeleteAclsFilter,
    DeleteAclsResponse,
    DeleteAclsResponseDeleteAclsFilterResult,
    DeleteAclsResponseDeleteAclsMatchingAcl,
)


@serves(DeleteAclsRequest, first=1, last=3)
async def delete_acls(
    broker: Broker, request: DeleteAclsRequest, context: RequestContext
) -> DeleteAclsResponse:
    if not broker.authorizer.enabled:
        results = [_refused(*SECURITY_DISABLED)] * len(request.filters)
    elif not broker.authorizer.allows(context, Operation.ALTER, ResourceType.CLUSTER):
        results = [_refused(*NOT_ALLOWED)] * len(request.filters)
    else:
        results = await broker.to_the_end(_delete_all(broker, request.filters))
    return DeleteAclsResponse(filter_results=results)


async def _delete_all(
    broker: Broker, filters: list[DeleteAclsRequestDeleteAclsFilter]
) -> list[DeleteAclsResponseDeleteAclsFilterResult]:
    results: list[DeleteAclsResponseDeleteAclsFilterResult] = []
    doomed: dict[Acl, None] = {}
    for acl_filter in filters:
        try:
            found = await broker.authorizer.matching(_checked(acl_filter))
        except ApiError as error:
            results.append(_refused(error.code, str(error)))
        else:
            doomed.update(dict.fromkeys(found))
            results.append(_meant(found))
    try:
        await broker.authorizer.remove(doomed)
    except CHANGE_ERRORS as error:
        return [_refused(*refusal(error))] * len(filters)
    return results


def _checked(wanted: DeleteAclsRequestDeleteAclsFilter) -> AclFilter:
    return AclFilter.checked(
        wanted.resource_type_filter,
        wanted.resource_name_filter,
        wanted.pattern_type_filter,
        wanted.principal_filter,
        wanted.host_filter,
        wanted.operation,
        wanted.permission_type,
    )


def _meant(acls: list[Acl]) -> DeleteAclsResponseDeleteAclsFilterResult:
    return DeleteAclsResponseDeleteAclsFilterResult(
        error_message=None,
        matching_acls=[
            DeleteAclsResponseDeleteAclsMatchingAcl(
                error_message=None,
                resource_type=acl.resource_type,
                resource_name=acl.name,
                pattern_type=acl.pattern_type,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in acls
        ],
    )


def _refused(code: int, message: str | None) -> DeleteAclsResponseDeleteAclsFilterResult:
    return DeleteAclsResponseDeleteAclsFilterResult(error_code=code, error_message=message)
