"""Checks that ShareFetch and ShareAcknowledge share: authorization and acknowledgements."""

from collections.abc import Iterable, Sequence

from headwater.broker.api.registry import RequestContext
from headwater.broker.broker import Broker
from headwater.broker.queues.share_partition import Key
from headwater.broker.queues.window import REJECT, RENEW, Acknowledgement
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.share_acknowledge import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeRequestAcknowledgementBatch,
    ShareAcknowledgeRequestAcknowledgeTopic,
)
from headwater.protocol.messages.share_fetch import (
    ShareFetchRequest,
    ShareFetchRequestAcknowledgementBatch,
    ShareFetchRequestFetchTopic,
)

_LONGEST_MEMBER_ID = 36  # a UUID as text


def identify(
    broker: Broker, request: ShareFetchRequest | ShareAcknowledgeRequest, context: RequestContext
) -> tuple[str, str]:
    """The group and the member that ask; raises the error code of who may not."""
    group_id, member_id = request.group_id or "", request.member_id or ""
    broker.authorizer.require(context, Operation.READ, ResourceType.GROUP, group_id)
    if not group_id or not 0 < len(member_id) <= _LONGEST_MEMBER_ID:
        raise ApiError(ErrorCode.INVALID_REQUEST, "a group and a member id of 1 to 36 characters")
    return group_id, member_id


def refusal(broker: Broker, context: RequestContext, key: Key) -> ErrorCode | None:
    """Why a partition may not be had; None if it may."""
    topic_id, index = key
    try:
        name = broker.topic_name(topic_id)
        broker.authorizer.require(
            context, Operation.READ, ResourceType.TOPIC, name, topic_id=topic_id
        )
        broker.partition(name, index)
    except ApiError as error:
        return error.code
    return None


def acknowledgements(
    broker: Broker,
    context: RequestContext,
    group_id: str,
    topics: Iterable[ShareFetchRequestFetchTopic | ShareAcknowledgeRequestAcknowledgeTopic],
    *,
    is_renewal: bool,
) -> tuple[dict[Key, list[Acknowledgement]], dict[Key, ErrorCode]]:
    """What can be taken in, by partition, and the error codes of what cannot."""
    may_renew = is_renewal and broker.group_configs.share(group_id).renew_acknowledge_enable
    last_kind = RENEW if may_renew else REJECT
    valid: dict[Key, list[Acknowledgement]] = {}
    refused: dict[Key, ErrorCode] = {}
    for topic in topics:
        for partition in topic.partitions:
            if not partition.acknowledgement_batches:
                continue
            key = (topic.topic_id, partition.partition_index)
            code = refusal(broker, context, key)
            if code is None and not _is_valid(partition.acknowledgement_batches, last_kind):
                code = ErrorCode.INVALID_REQUEST
            if code is not None:
                refused[key] = code
                continue
            valid[key] = [
                Acknowledgement(batch.first_offset, batch.last_offset, batch.acknowledge_types)
                for batch in partition.acknowledgement_batches
            ]
    return valid, refused


def _is_valid(
    batches: Sequence[
        ShareFetchRequestAcknowledgementBatch | ShareAcknowledgeRequestAcknowledgementBatch
    ],
    last_kind: int,
) -> bool:
    """In order, without overlaps, and with one kind for all records or one for each."""
    before = -1
    for batch in batches:
        kinds, count = batch.acknowledge_types, batch.last_offset - batch.first_offset + 1
        if (
            count < 1
            or batch.first_offset <= before
            or len(kinds) not in (1, count)
            or not all(0 <= kind <= last_kind for kind in kinds)
        ):
            return False
        before = batch.last_offset
    return True
