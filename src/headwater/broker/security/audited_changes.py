"""Audit lines of administrative requests: what each of them changes.

One function per API: from a request and its answer to what was done, or was tried. An API that is
not here changes nothing that an administrator would ask about.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any

from headwater.broker.security.acls import Acl, Operation
from headwater.broker.security.audit import Change
from headwater.protocol.error_codes import ApiError

if TYPE_CHECKING:
    from headwater.broker.api.registry import Answer, Handler, RequestContext
    from headwater.broker.broker import Broker

log = logging.getLogger(__name__)

_CONFIG_KINDS = {2: "TOPIC", 4: "BROKER", 8: "BROKER_LOGGER", 16: "CLIENT_METRICS", 32: "GROUP"}
_MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}


def _create_topics(request: Any, answer: Any) -> Iterator[Change]:
    if not request.validate_only:
        for topic in answer.topics:
            yield Change(Operation.CREATE, "TOPIC", topic.name, topic.error_code)


def _delete_topics(request: Any, answer: Any) -> Iterator[Change]:
    for topic in answer.responses:
        name = topic.name if topic.name is not None else str(topic.topic_id)
        yield Change(Operation.DELETE, "TOPIC", name, topic.error_code)


def _create_partitions(request: Any, answer: Any) -> Iterator[Change]:
    if not request.validate_only:
        counts = {topic.name: topic.count for topic in request.topics}
        for topic in answer.results:
            detail = f"{counts[topic.name]} partitions"
            yield Change(Operation.ALTER, "TOPIC", topic.name, topic.error_code, detail)


def _delete_records(request: Any, answer: Any) -> Iterator[Change]:
    for topic in answer.topics:
        for partition in topic.partitions:
            detail = f"partition {partition.partition_index} begins at {partition.low_watermark}"
            yield Change(Operation.DELETE, "TOPIC", topic.name, partition.error_code, detail)


def _erase_records(request: Any, answer: Any) -> Iterator[Change]:
    refused = {
        (topic.name, partition.partition_index): partition.error_code
        for topic in answer.topics
        for partition in topic.partitions
    }
    for topic in request.topics:
        for partition in topic.partitions:
            index = partition.partition_index
            code = refused.get((topic.name, index), answer.error_code)
            detail = (
                f"partition {index}: {len(partition.offsets)} records to be erased,"
                f" erasure {request.erasure_id}"
            )
            yield Change(Operation.DELETE, "TOPIC", topic.name, code, detail)


def _alter_configs(request: Any, answer: Any) -> Iterator[Change]:
    if not request.validate_only:
        for resource, result in zip(request.resources, answer.responses, strict=True):
            kind = _CONFIG_KINDS.get(resource.resource_type, str(resource.resource_type))
            names = ", ".join(config.name for config in resource.configs)  # values may be secrets
            yield Change(
                Operation.ALTER_CONFIGS, kind, resource.resource_name, result.error_code, names
            )


def _delete_groups(request: Any, answer: Any) -> Iterator[Change]:
    for group in answer.results:
        yield Change(Operation.DELETE, "GROUP", group.group_id, group.error_code)


def _offset_delete(request: Any, answer: Any) -> Iterator[Change]:
    if answer.error_code:
        yield Change(Operation.DELETE, "GROUP", request.group_id, answer.error_code, "offsets")
    for topic in answer.topics:
        code = next(
            (partition.error_code for partition in topic.partitions if partition.error_code), 0
        )
        detail = f"offsets in {topic.name}"
        yield Change(Operation.DELETE, "GROUP", request.group_id, code, detail)


def _alter_share_group_offsets(request: Any, answer: Any) -> Iterator[Change]:
    if answer.error_code:
        yield Change(Operation.ALTER, "GROUP", request.group_id, answer.error_code, "offsets")
    for topic in answer.responses:
        code = next(
            (partition.error_code for partition in topic.partitions if partition.error_code), 0
        )
        detail = f"offsets in {topic.topic_name}"
        yield Change(Operation.ALTER, "GROUP", request.group_id, code, detail)


def _delete_share_group_offsets(request: Any, answer: Any) -> Iterator[Change]:
    if answer.error_code:
        yield Change(Operation.DELETE, "GROUP", request.group_id, answer.error_code, "offsets")
    for topic in answer.responses:
        detail = f"offsets in {topic.topic_name}"
        yield Change(Operation.DELETE, "GROUP", request.group_id, topic.error_code, detail)


def _create_acls(request: Any, answer: Any) -> Iterator[Change]:
    for wanted, result in zip(request.creations, answer.results, strict=True):
        try:
            text = str(
                Acl.checked(
                    wanted.resource_type,
                    wanted.resource_name,
                    wanted.resource_pattern_type,
                    wanted.principal,
                    wanted.host,
                    wanted.operation,
                    wanted.permission_type,
                )
            )
        except ApiError as error:
            text = str(error)
        yield Change(Operation.CREATE, "ACL", text, result.error_code)


def _delete_acls(request: Any, answer: Any) -> Iterator[Change]:
    for result in answer.filter_results:
        if result.error_code:
            yield Change(Operation.DELETE, "ACL", "", result.error_code)
        for match in result.matching_acls:
            acl = Acl.checked(
                match.resource_type,
                match.resource_name,
                match.pattern_type,
                match.principal,
                match.host,
                match.operation,
                match.permission_type,
            )
            yield Change(Operation.DELETE, "ACL", str(acl), match.error_code)


def _alter_users(request: Any, answer: Any) -> Iterator[Change]:
    done = {deletion.name: (deletion.mechanism, "removed") for deletion in request.deletions}
    done |= {upsertion.name: (upsertion.mechanism, "set") for upsertion in request.upsertions}
    for result in answer.results:
        mechanism, what = done[result.user]
        detail = f"{_MECHANISMS.get(mechanism, mechanism)} password {what}"
        yield Change(Operation.ALTER, "USER", result.user, result.error_code, detail)


def _alter_quotas(request: Any, answer: Any) -> Iterator[Change]:
    if not request.validate_only:
        for entry, result in zip(request.entries, answer.entries, strict=True):
            entity = ", ".join(
                f"{part.entity_type}={part.entity_name or '(default)'}" for part in entry.entity
            )
            detail = ", ".join(
                f"{op.key} removed" if op.remove else f"{op.key}={op.value:g}" for op in entry.ops
            )
            yield Change(Operation.ALTER_CONFIGS, "QUOTA", entity, result.error_code, detail)


def _write_txn_markers(request: Any, answer: Any) -> Iterator[Change]:
    commits = {marker.producer_id: marker.transaction_result for marker in request.markers}
    for done in answer.markers:
        what = "commit" if commits.get(done.producer_id) else "abort"
        for topic in done.topics:
            for partition in topic.partitions:
                index = partition.partition_index
                detail = f"{what} of producer {done.producer_id} in partition {index}"
                yield Change(Operation.ALTER, "TOPIC", topic.name, partition.error_code, detail)


CHANGES: dict[str, Callable[[Any, Any], Iterator[Change]]] = {
    "CreateTopics": _create_topics,
    "DeleteTopics": _delete_topics,
    "CreatePartitions": _create_partitions,
    "DeleteRecords": _delete_records,
    "EraseRecords": _erase_records,
    "AlterConfigs": _alter_configs,
    "IncrementalAlterConfigs": _alter_configs,
    "DeleteGroups": _delete_groups,
    "OffsetDelete": _offset_delete,
    "AlterShareGroupOffsets": _alter_share_group_offsets,
    "DeleteShareGroupOffsets": _delete_share_group_offsets,
    "CreateAcls": _create_acls,
    "DeleteAcls": _delete_acls,
    "AlterUserScramCredentials": _alter_users,
    "AlterClientQuotas": _alter_quotas,
    "WriteTxnMarkers": _write_txn_markers,
}


def audited(api_name: str, handle: "Handler") -> "Handler":
    """The handler, with a line in the audit log for each change.

    A change goes on to its end, and into the log, when its client disconnects in the middle of it.
    """
    changes = CHANGES.get(api_name)
    if changes is None:
        return handle

    @wraps(handle)
    def handle_and_note(
        broker: "Broker", request: Any, context: "RequestContext"
    ) -> "Answer | Awaitable[Answer]":
        def audit_answer(answer: "Answer") -> None:
            try:
                for change in changes(request, answer):
                    broker.audit.changed(context, change)
            except Exception:  # what is done is done, and is answered
                broker.audit.dropped += 1
                log.exception("a change is missing in the audit log")

        async def to_its_end(answer: "Awaitable[Answer]") -> "Answer":
            awaited = await answer
            audit_answer(awaited)
            return awaited

        answer = handle(broker, request, context)
        if isinstance(answer, Awaitable):
            return broker.in_any_case(to_its_end(answer))
        audit_answer(answer)
        return answer

    return handle_and_note
