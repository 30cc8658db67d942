"""Audit lines of groups whose offsets are moved by a client that is not a member.

That is how a group is set back or ahead (`headwater group seek`, `kafka-consumer-groups.sh
--reset-offsets`), and how consumers that need no group protocol commit. See `AuditLog.moved`.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headwater.broker.groups.offsets.store import CommittedOffset, OffsetKey

if TYPE_CHECKING:
    from headwater.broker.api.registry import RequestContext
    from headwater.broker.broker import Broker

Offsets = list[tuple[OffsetKey, CommittedOffset]]


def offsets_before(
    broker: "Broker", group_id: str, offsets: Offsets, *, member_id: str, generation_or_epoch: int
) -> dict[OffsetKey, int]:
    """Where the group stands (-1: nowhere yet); a member's own commits are not audited."""
    if member_id or generation_or_epoch >= 0:
        return {}
    found = {key: broker.groups.offsets.committed(group_id, *key) for key, _ in offsets}
    return {key: -1 if committed is None else committed.offset for key, committed in found.items()}


def audit_moves(
    broker: "Broker",
    context: "RequestContext",
    group_id: str,
    before: dict[OffsetKey, int],
    offsets: Offsets,
) -> None:
    """A line in the audit log for each topic."""
    moves: dict[str, list[tuple[int, int, int]]] = {}
    for key, committed in offsets:
        if key in before:
            move = (key.partition, before[key], committed.offset)
            moves.setdefault(key.topic, []).append(move)
    for topic, of_topic in moves.items():
        is_seek = any(now < was for _, was, now in of_topic)
        broker.audit.moved(context, group_id, topic, _text(of_topic), is_seek=is_seek)


def _text(moves: Iterable[tuple[int, int, int]]) -> str:
    return ", ".join(
        f"{partition}: {now}" if was < 0 else f"{partition}: {was} → {now}"
        for partition, was, now in moves
    )
