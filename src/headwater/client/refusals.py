"""Errors of the client for what a broker refuses, with the fix as the hint."""

from typing import Final

from headwater.errors import (
    HeadwaterError,
    RequestRefused,
    TopicRefused,
)
from headwater.protocol.error_codes import ErrorCode

_INTERNAL: Final = "__headwater_"
# What a retry with the same records does not fix.
_OF_THE_RECORDS: Final = (
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.POLICY_VIOLATION,
)
# What a group with members answers to a client that is none of them.
_OF_MEMBERS: Final = (
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
)


def error_name(code: int) -> str:
    """Also for a code that a later Kafka has."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def reason_of(error: Exception) -> str:
    """Why a connection was lost, in a few words."""
    return (getattr(error, "strerror", None) or str(error)).lower()


def refused_topic(
    code: int, topic: str, message: str | None = None, *, operation: str = "describe"
) -> HeadwaterError:
    """`operation`: what was asked for; `read` and `write` include `describe`."""
    detail = f"{message or 'refused'} ({error_name(code)})"
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return RequestRefused(
            f"there is no topic {topic}", hint=f"`headwater topic create {topic}` makes it"
        )
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return TopicRefused(
            topic,
            f"no right to {operation} topic {topic}",
            detail=detail,
            hint=_grant(operation, topic),
        )
    what = f"topic {topic} does not take the records"
    if code in _OF_THE_RECORDS:
        return TopicRefused(topic, what, detail=detail)
    return RequestRefused(what, detail=detail)


def _grant(operation: str, topic: str) -> str:
    if operation == "write" and topic.startswith(_INTERNAL):
        # Who writes there decides where captures and sinks go on: nothing to grant by the way.
        return (
            f"what captures and sinks may do with {topic} is in docs/capture.md and docs/sinks.md"
        )
    return f"`headwater acl add USER --allow {operation} --topic {topic}` grants it"


def refused_id(code: int, transactional_id: str, message: str | None = None) -> HeadwaterError:
    hint = ""
    if code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        hint = (
            "`headwater acl add USER --allow write,describe --transactional-id"
            f" {transactional_id}` grants it"
        )
    elif code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
        hint = "the broker's transaction.max.timeout.ms has to be at least ten minutes"
    return RequestRefused(
        f"no transactions as {transactional_id}",
        detail=f"{message or 'refused'} ({error_name(code)})",
        hint=hint,
    )


def refused_group(code: int, group: str, message: str | None = None) -> HeadwaterError:
    what, hint = f"the offsets of group {group} are not committed", ""
    if code in _OF_MEMBERS:
        what = f"group {group} has members of its own"
        hint = "a client that commits offsets without being a member needs a group to itself"
    elif code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
        hint = f"`headwater acl add USER --allow read,describe --group {group}` grants it"
    return RequestRefused(what, detail=f"{message or 'refused'} ({error_name(code)})", hint=hint)
