"""DescribeClientQuotas: the quotas of users and client ids. Versions 0–1.

A component matches by exact name, as the default, or whichever name there is; an entity is reported
if it has all components of the request, and with `strict` no others.

Needs DESCRIBE_CONFIGS on the cluster.
"""

from headwater.broker.admission.quotas import CLIENT_ID, USER, parts_of
from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasRequestComponentData,
    DescribeClientQuotasResponse,
    DescribeClientQuotasResponseEntityData,
    DescribeClientQuotasResponseEntryData,
    DescribeClientQuotasResponseValueData,
)

_EXACT, _DEFAULT, _SPECIFIED = range(3)


@serves(DescribeClientQuotasRequest, first=0, last=1)
def describe_client_quotas(
    broker: Broker, request: DescribeClientQuotasRequest, context: RequestContext
) -> DescribeClientQuotasResponse:
    if not broker.authorizer.allows(context, Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER):
        return _refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "not allowed")
    wanted = {component.entity_type: component for component in request.components}
    if len(wanted) < len(request.components):
        return _refused(ErrorCode.INVALID_REQUEST, "an entity type stands twice")
    unknown = wanted.keys() - {USER, CLIENT_ID}
    if unknown:
        what = f"quotas of {', '.join(sorted(unknown))} are not supported"
        return _refused(ErrorCode.UNSUPPORTED_VERSION, what)
    if any(
        component.match_type not in (_EXACT, _DEFAULT, _SPECIFIED) for component in wanted.values()
    ):
        return _refused(ErrorCode.INVALID_REQUEST, "an unknown match type")
    return DescribeClientQuotasResponse(
        error_message=None,
        entries=[
            DescribeClientQuotasResponseEntryData(
                entity=[
                    DescribeClientQuotasResponseEntityData(entity_type=part, entity_name=name)
                    for part, name in parts_of(entity).items()
                ],
                values=[
                    DescribeClientQuotasResponseValueData(key=quota, value=value)
                    for quota, value in quotas.items()
                ],
            )
            for entity, quotas in broker.quotas.all()
            if _matches(parts_of(entity), wanted, strict=request.strict)
        ],
    )


def _matches(
    parts: dict[str, str | None],
    wanted: dict[str, DescribeClientQuotasRequestComponentData],
    *,
    strict: bool,
) -> bool:
    if strict and parts.keys() != wanted.keys():
        return False
    for part, component in wanted.items():
        if part not in parts:
            return False
        if component.match_type == _EXACT and parts[part] != component.match:
            return False
        if component.match_type == _DEFAULT and parts[part] is not None:
            return False
    return True


def _refused(code: ErrorCode, message: str) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=code, error_message=message, entries=None)
