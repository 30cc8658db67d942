"""The group coordinator: loads the groups and serves their members, offsets and deletion.

All of it runs on the event loop. What must survive a crash is in `__consumer_offsets` before
memory changes and before any client gets an answer (see `journal`). A method that refuses raises
ApiError; its code is the answer.
"""

import logging
from collections import Counter
from typing import NamedTuple

from headwater.broker.background import Background
from headwater.broker.groups.classic.group import ClassicGroup
from headwater.broker.groups.configs import GroupConfigs
from headwater.broker.groups.consumer.group import ConsumerGroup
from headwater.broker.groups.consumer.heartbeats import ConsumerGroupHeartbeats
from headwater.broker.groups.consumer_protocol.subscriptions import Subscriptions
from headwater.broker.groups.deletion import GroupDeletion
from headwater.broker.groups.loading import load
from headwater.broker.groups.membership import Membership
from headwater.broker.groups.offsets.group_offsets import GroupOffsets
from headwater.broker.groups.ports import Queues, Topics
from headwater.broker.groups.registry import GroupRegistry
from headwater.broker.groups.settings import GroupSettings
from headwater.broker.groups.share.group import ShareGroup
from headwater.broker.groups.share.heartbeats import ShareGroupHeartbeats
from headwater.broker.internal_topics.coordinator_log import CoordinatorLog
from headwater.broker.internal_topics.journal import Journal
from headwater.clock import Clock
from headwater.protocol.error_codes import ErrorCode

logger = logging.getLogger(__name__)


class GroupCounts(NamedTuple):
    """For metrics: how many groups there are by (kind, state), and members in all."""

    groups: Counter[tuple[str, str]]
    members: int


class GroupCoordinator:
    """Serves groups once `load` has read them; `close` ends its timers and waits for its writes."""

    def __init__(
        self,
        log: CoordinatorLog,
        topics: Topics,
        queues: Queues,
        clock: Clock,
        configs: GroupConfigs,
        settings: GroupSettings | None = None,
    ) -> None:
        self.topics = topics
        self.settings = settings = settings or GroupSettings()
        self._log = log
        self._journal = journal = Journal(log)
        self._background = background = Background("a group's change")
        subscriptions = Subscriptions(topics)
        self._consumers = ConsumerGroupHeartbeats(
            journal=journal,
            subscriptions=subscriptions,
            clock=clock,
            settings=settings,
            configs=configs,
            spawn=background.start,
        )
        self._shares = ShareGroupHeartbeats(
            journal=journal,
            subscriptions=subscriptions,
            queues=queues,
            clock=clock,
            settings=settings,
            configs=configs,
            spawn=background.start,
        )

        def new_classic(group_id: str) -> ClassicGroup:
            return ClassicGroup(group_id, clock=clock, settings=settings, journal=journal)

        self.registry = GroupRegistry(new_classic)
        self.membership = Membership(
            registry=self.registry,
            journal=journal,
            consumers=self._consumers,
            shares=self._shares,
            settings=settings,
            background=background,
        )
        self.offsets = GroupOffsets(
            registry=self.registry,
            journal=journal,
            topics=topics,
            log=log,
            matches=subscriptions.matches,
        )
        self.deletion = GroupDeletion(
            registry=self.registry,
            journal=journal,
            offsets=self.offsets,
            queues=queues,
            clock=clock,
            configs=configs,
            settings=settings,
            background=background,
        )

    async def load(self) -> None:
        """Reads the groups from the log. Until it is done, clients are asked to retry.

        The topics must be loaded by now: offsets of topics that no longer exist are deleted.
        """
        await load(self._log, self.registry, self.offsets.store, self.offsets.pending)
        for consumer_group in self.registry.of_kind(ConsumerGroup):
            self._consumers.watch(consumer_group)
        for share_group in self.registry.of_kind(ShareGroup):
            self._shares.watch(share_group)
        self.registry.refusal = None
        self.deletion.start()
        self.offsets.delete_of_missing_topics()
        self._delete_queues_of_missing_topics()
        if len(self.registry):
            logger.info("groups loaded: %d", len(self.registry))

    async def close(self) -> None:
        self.registry.refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
        self.deletion.stop()
        self._consumers.close()
        self._shares.close()
        for group in self.registry:
            group.close()
        await self._background.wait()
        await self._journal.drain()

    def topics_changed(self, *names: str) -> None:
        """To be called after topics were created, deleted or given more partitions.

        `names`: which; without any, the offsets of all topics are checked.
        """
        self._consumers.topics_changed()
        self._shares.topics_changed()
        if self.registry.refusal is None:
            self.offsets.delete_of_missing_topics(names)
            if not names or any(self.topics.topic_id(name) is None for name in names):
                self._delete_queues_of_missing_topics()

    def rights_changed(self) -> None:
        """To be called when a client may see other topics than before."""
        self._consumers.topics_changed()

    def counts(self) -> GroupCounts:
        return GroupCounts(
            Counter((group.kind, group.state_name) for group in self.registry),
            sum(group.member_count for group in self.registry),
        )

    def _delete_queues_of_missing_topics(self) -> None:
        for group in self.registry.of_kind(ShareGroup):
            missing = {
                topic_id for topic_id in group.state_topics if self.topics.name_of(topic_id) is None
            }
            if missing:
                self._background.start(self._shares.forget(group, missing, is_used=True))
