"""Changes of KIP-848 and share groups: planned, stored and replayed under the group's lock.

Each change runs in a task of its own: a connection that closes in the middle stops none of it.
Members that fall silent are fenced.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

from headwater.broker.groups.consumer_protocol.group import (
    LEAVING_EPOCH,
    Change,
    ConsumerProtocolGroup,
)
from headwater.broker.groups.consumer_protocol.member import Member
from headwater.broker.groups.deadline import Deadline
from headwater.broker.internal_topics.journal import Journal
from headwater.broker.internal_topics.records import Record
from headwater.clock import Clock
from headwater.protocol.error_codes import ApiError, ErrorCode

logger = logging.getLogger(__name__)

Spawn = Callable[[Coroutine[Any, Any, Any]], "asyncio.Task[Any]"]
G = TypeVar("G", bound=ConsumerProtocolGroup)
C = TypeVar("C", bound=Change)


class ConsumerProtocol(ABC, Generic[G, C]):
    """Changes groups that the coordinator hands in, and watches over their members."""

    def __init__(self, *, journal: Journal, clock: Clock, spawn: Spawn) -> None:
        self._journal = journal
        self._clock = clock
        self._spawn = spawn
        self._topics_version = 0
        self._sessions: dict[tuple[str, str], Deadline] = {}

    @abstractmethod
    def _removal(self, group: G, member: Member) -> C:
        """What it takes to remove a member."""

    @abstractmethod
    def _session_timeout_ms(self, group: G) -> int: ...

    def topics_changed(self) -> None:
        """The next heartbeat of each group looks whether its topics are among them."""
        self._topics_version += 1

    def watch(self, group: G) -> None:
        """Gives the members of a group that was just loaded a new session."""
        for member in group.members.values():
            self._touch(group, member.member_id)

    def close(self) -> None:
        for deadline in self._sessions.values():
            deadline.cancel()

    # Changes

    def _change(
        self, group: G, plan: Callable[[], C], before: tuple[Record, ...] = ()
    ) -> Awaitable[C]:
        """Makes the change that `plan` finds once no other is under way.

        `before` are records that make room for a group that is not in the log yet.
        """
        return asyncio.shield(self._spawn(self._change_locked(group, plan, before)))

    async def _change_locked(
        self, group: G, plan: Callable[[], C], before: tuple[Record, ...]
    ) -> C:
        async with group.changing:
            group.refuse_if_dead()
            topics_version = self._topics_version
            change = plan()
            if change.records:
                await self._prepare(group, change)
                records = [*(before if group.epoch == 0 else ()), *change.records]

                def replay() -> None:
                    for record in change.records:
                        group.replay(record)

                await self._journal.write(group.group_id, records, replay)
            if change.has_seen_topics:
                group.seen_topics_version = topics_version
            self._after(group, change)
            return change

    async def _prepare(self, group: G, change: C) -> None:
        """What must be durable before the change is; raises ApiError to stop it."""

    def _after(self, group: G, change: C) -> None:
        """Brings the timers in line."""
        if change.removed_id is not None:
            deadline = self._sessions.pop((group.group_id, change.removed_id), None)
            if deadline is not None:
                deadline.cancel()
        is_here = change.current.epoch > LEAVING_EPOCH  # else a static member that will be back
        if is_here and change.member_id in group.members:
            self._touch(group, change.member_id)

    # Members that fall silent

    def _touch(self, group: G, member_id: str) -> None:
        key = (group.group_id, member_id)
        deadline = self._sessions.get(key)
        if deadline is None:
            expired = partial(self._session_expired, group, member_id)
            deadline = self._sessions[key] = Deadline(self._clock, expired)
        deadline.push(self._session_timeout_ms(group))

    def _session_expired(self, group: G, member_id: str) -> None:
        self._spawn(self._fence(group, member_id, "its session is over"))

    async def _fence(self, group: G, member_id: str, why: str) -> None:
        def plan() -> C:
            member = group.members.get(member_id)
            if member is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            logger.info("group %s: member %s is fenced: %s", group.group_id, member_id, why)
            return self._removal(group, member)

        try:
            await self._change_locked(group, plan, ())
        except ApiError:
            if member_id in group.members and not group.is_dead:
                self._touch(group, member_id)  # the log failed: try again after another session
