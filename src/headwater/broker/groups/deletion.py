"""Deletion of groups: on request, and by the expiry of offsets and of share groups."""

import asyncio
import logging

from headwater.broker.background import Background
from headwater.broker.groups.configs import GroupConfigs
from headwater.broker.groups.deadline import Deadline
from headwater.broker.groups.group import Group
from headwater.broker.groups.offsets.group_offsets import GroupOffsets
from headwater.broker.groups.offsets.store import tombstone
from headwater.broker.groups.ports import Queues
from headwater.broker.groups.registry import GroupRegistry
from headwater.broker.groups.settings import GroupSettings
from headwater.broker.groups.share.group import ShareGroup
from headwater.broker.internal_topics.journal import Journal
from headwater.clock import Clock
from headwater.errors import StorageFailed
from headwater.protocol.error_codes import ApiError, ErrorCode

logger = logging.getLogger(__name__)


class GroupDeletion:
    """Deletes groups with all they have stored. Expiry runs from `start` to `stop`."""

    def __init__(
        self,
        *,
        registry: GroupRegistry,
        journal: Journal,
        offsets: GroupOffsets,
        queues: Queues,
        clock: Clock,
        configs: GroupConfigs,
        settings: GroupSettings,
        background: Background,
    ) -> None:
        self._registry = registry
        self._journal = journal
        self._offsets = offsets
        self._queues = queues
        self._clock = clock
        self._configs = configs
        self._settings = settings
        self._background = background
        self._next_expiry = Deadline(clock, self._begin_expiry)

    def start(self) -> None:
        self._next_expiry.push(self._settings.offsets_retention_check_ms)

    def stop(self) -> None:
        self._next_expiry.cancel()

    async def delete(self, group_id: str) -> None:
        """Deletes an empty group and its offsets."""
        self._registry.verify_ready()
        group = self._registry.get(group_id)
        if group is None or group.is_dead:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND)
        await asyncio.shield(self._background.start(self._delete(group)))

    async def _delete(self, group: Group) -> None:
        async with group.changing:
            group_id = group.group_id
            if not group.is_empty or self._registry.get(group_id) is not group:
                raise ApiError(ErrorCode.NON_EMPTY_GROUP)
            keys = self._offsets.keys(group_id)
            records = [*(tombstone(group_id, key) for key in keys), *group.tombstones()]
            group.begin_deletion()
            if group.has_queues:
                try:
                    await self._queues.delete(group_id, None)
                except (ApiError, StorageFailed) as error:
                    group.survive()
                    raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE) from error

            def forget() -> None:
                self._offsets.forget(group_id, keys)
                self._registry.remove(group_id)
                group.close()

            await self._journal.write(group_id, records, forget, group.survive)

    # Expiry

    def _begin_expiry(self) -> None:
        self._background.start(self._expire())

    async def _expire(self) -> None:
        now_ms = self._clock.now_ms()
        for share_group in self._registry.of_kind(ShareGroup):
            await asyncio.sleep(0)  # thousands of groups must not block the event loop
            await self._expire_share(share_group, now_ms)
        for group in list(self._registry):
            await asyncio.sleep(0)
            await self._expire_offsets(group, now_ms)
        if self._registry.refusal is None:
            self.start()

    async def _expire_offsets(self, group: Group, now_ms: int) -> None:
        """Deletes offsets that are too old, and an empty group that has no others (KIP-211)."""
        group_id = group.group_id
        base_ms = group.offsets_age_from()
        if base_ms is None or self._offsets.store.under_way.keys(group_id):
            return
        if self._offsets.pending.has(group_id):
            return
        expired = self._offsets.store.expired(
            group_id,
            now_ms=now_ms,
            retention_ms=self._settings.offsets_retention_ms,
            base_ms=base_ms,
            in_use=lambda topic: self._offsets.is_subscribed(group_id, topic),
        )
        try:
            if group.is_empty and len(expired) == len(self._offsets.store.keys(group_id)):
                await self._delete(group)
            elif expired:
                await self._offsets.delete(group_id, expired)
        except ApiError as error:
            logger.warning("group %s: offsets not expired: %s", group_id, error)

    async def _expire_share(self, group: ShareGroup, now_ms: int) -> None:
        """Deletes a share group that has had no members for its `headwater.share.expire.ms`."""
        group.assigned_at_ms = group.assigned_at_ms or now_ms
        expire_ms = self._configs.share(group.group_id).expire_ms
        if group.is_empty and not group.is_dead and now_ms - group.assigned_at_ms >= expire_ms:
            try:
                await self._delete(group)
                logger.info("group %s: expired", group.group_id)
            except ApiError as error:
                logger.warning("group %s: not expired: %s", group.group_id, error)
