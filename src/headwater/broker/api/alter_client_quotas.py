"""AlterClientQuotas: sets and removes quotas of users and client ids. Versions 0–1.

`producer_byte_rate` and `consumer_byte_rate` in bytes a second, `request_percentage` of the time of
the broker's event loop. A client over its quota is slowed down, never refused
(admission/quotas.py). What is set is durable, and in force, when the answer comes. Each entity is
checked on its own; nothing of a wrong one is changed. `validate_only` checks and changes nothing.

Needs ALTER_CONFIGS on the cluster.

Deviations: quotas by IP address, `connection_creation_rate` and `controller_mutation_rate` are not
supported (INVALID_REQUEST says so). `request_percentage` counts one event loop, 100 at most.
"""

import math

from headwater.broker.admission.quotas import (
    CLIENT_ID,
    QUOTAS,
    REQUEST_PERCENTAGE,
    USER,
    Entity,
    entity_of,
)
from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.broker.topic_changes import CHANGE_ERRORS, refusal
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntityData,
    AlterClientQuotasResponseEntryData,
)


@serves(AlterClientQuotasRequest, first=0, last=1)
async def alter_client_quotas(
    broker: Broker, request: AlterClientQuotasRequest, context: RequestContext
) -> AlterClientQuotasResponse:
    is_allowed = broker.authorizer.allows(context, Operation.ALTER_CONFIGS, ResourceType.CLUSTER)
    changes: dict[Entity, dict[str, float | None]] = {}
    answers: list[AlterClientQuotasResponseEntryData] = []
    for entry in request.entries:
        answer = AlterClientQuotasResponseEntryData(
            error_message=None,
            entity=[
                AlterClientQuotasResponseEntityData(
                    entity_type=part.entity_type, entity_name=part.entity_name
                )
                for part in entry.entity
            ],
        )
        answers.append(answer)
        try:
            if not is_allowed:
                raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "not allowed")
            entity = _entity(entry)
            if entity in changes:
                raise ApiError(ErrorCode.INVALID_REQUEST, "an entity stands twice")
            changes[entity] = _quotas(entry)
        except ApiError as error:
            answer.error_code, answer.error_message = error.code, str(error)
    if changes and not request.validate_only:
        try:
            await broker.to_the_end(broker.quotas.alter(changes))
        except CHANGE_ERRORS as error:
            for answer in answers:
                if not answer.error_code:
                    answer.error_code, answer.error_message = refusal(error)
    return AlterClientQuotasResponse(entries=answers)


def _entity(entry: AlterClientQuotasRequestEntryData) -> Entity:
    parts = {part.entity_type: part.entity_name for part in entry.entity}
    if not parts or len(parts) < len(entry.entity):
        raise ApiError(ErrorCode.INVALID_REQUEST, "an entity has each of its types once")
    unknown = parts.keys() - {USER, CLIENT_ID}
    if unknown:
        what = f"quotas of {', '.join(sorted(unknown))} are not supported"
        raise ApiError(ErrorCode.INVALID_REQUEST, what)
    if "" in parts.values():
        raise ApiError(ErrorCode.INVALID_REQUEST, "an entity's name is empty")
    return entity_of(parts)


def _quotas(entry: AlterClientQuotasRequestEntryData) -> dict[str, float | None]:
    quotas: dict[str, float | None] = {}
    for op in entry.ops:
        if op.key not in QUOTAS:
            what = f"no quota {op.key}; there are {', '.join(QUOTAS)}"
            raise ApiError(ErrorCode.INVALID_REQUEST, what)
        if op.key in quotas:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{op.key} stands twice")
        limit = 100.0 if op.key == REQUEST_PERCENTAGE else math.inf
        if not op.remove and not (0 < op.value <= limit and math.isfinite(op.value)):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{op.key} cannot be {op.value}")
        quotas[op.key] = None if op.remove else op.value
    return quotas
