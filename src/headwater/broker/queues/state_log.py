"""`__share_group_state`: share partitions as records, in Kafka's format.

    | type | record        | holds                                                              |
    |------|---------------|--------------------------------------------------------------------|
    | 0    | ShareSnapshot | a share partition's whole state; without a value it is deleted     |
    | 1    | ShareUpdate   | a new start offset and the runs of records that changed since then |

All of a group is in one partition of the topic, so that a request that concerns many share
partitions is one append. (Kafka spreads them.) Updates add up, so the topic is not compacted:
when a partition has grown by some thousand records, a snapshot of everything alive in it is
written, and what was in front of that is deleted. Loading is therefore bounded as well.
"""

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable, Iterable, Sequence
from uuid import UUID

from headwater.broker.internal_topics.coordinator_log import StoredRecord
from headwater.broker.internal_topics.journal import Journal
from headwater.broker.internal_topics.log import InternalLog
from headwater.broker.internal_topics.records import Record, partition_for
from headwater.broker.queues.share_partition import SharePartition
from headwater.broker.queues.window import ACQUIRED, ARCHIVING, AVAILABLE, Change, Span, Window
from headwater.clock import Clock
from headwater.errors import MalformedMessage
from headwater.log.store import LogStore
from headwater.protocol.error_codes import ApiError
from headwater.protocol.messages.internal import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareSnapshotValueStateBatch,
    ShareUpdateKey,
    ShareUpdateValue,
    ShareUpdateValueStateBatch,
)

logger = logging.getLogger(__name__)

STATE_TOPIC = "__share_group_state"
STATE_PARTITIONS = 50  # Kafka's own default
STATE_CONFIGS = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "segment.bytes": str(16 << 20),
}
# Records in a partition, besides four for each share partition alive, before it is rewritten.
UPDATES_KEPT = 10_000
SNAPSHOTS_PER_BATCH = 500
_RECORDS_PER_TURN = 500
_INT16 = struct.Struct(">h")

Shares = Iterable[SharePartition]


def snapshot_of(share: SharePartition, leader_epoch: int, now_ms: int) -> Record:
    """The whole state as of now; what is with consumers counts as available again."""
    window = share.window
    start_offset = window.projected_start() if share.is_resolved else window.start_offset
    batches = [
        ShareSnapshotValueStateBatch(
            first_offset=max(span.first, start_offset),
            last_offset=span.last,
            delivery_state=AVAILABLE if span.state == ACQUIRED else span.state,
            # A delivery that a crash ends does not count.
            delivery_count=span.deliveries - (span.state == ACQUIRED),
        )
        for span in window.spans()
        if span.last >= start_offset
    ]
    is_archiving = window.counts[ARCHIVING] > 0
    share.snapshot_epoch += 1
    value = ShareSnapshotValue(
        snapshot_epoch=share.snapshot_epoch,
        state_epoch=share.state_epoch,
        leader_epoch=leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=window.settled,
        create_timestamp=now_ms,
        # Since when dead letters may have been copied: see dead_letters.py.
        write_timestamp=(share.archiving_since_ms or now_ms) if is_archiving else now_ms,
        state_batches=batches,
    )
    return Record(_key(ShareSnapshotKey, share), value)


def update_of(share: SharePartition, spans: Sequence[Span], leader_epoch: int) -> Record:
    window = share.window
    value = ShareUpdateValue(
        snapshot_epoch=share.snapshot_epoch,
        leader_epoch=leader_epoch,
        start_offset=window.projected_start(),
        delivery_complete_count=window.settled,
        state_batches=[
            ShareUpdateValueStateBatch(
                first_offset=span.first,
                last_offset=span.last,
                delivery_state=span.state,
                delivery_count=span.deliveries,
            )
            for span in spans
        ],
    )
    return Record(_key(ShareUpdateKey, share), value)


def _key(
    kind: type[ShareSnapshotKey] | type[ShareUpdateKey], share: SharePartition
) -> ShareSnapshotKey | ShareUpdateKey:
    return kind(group_id=share.group_id, topic_id=share.topic_id, partition=share.index)


class StateLog:
    """Writes share partitions' changes, in order, and reads them back."""

    def __init__(
        self, store: LogStore, clock: Clock, alive: Callable[[int], list[SharePartition]]
    ) -> None:
        self._store = store
        self._clock = clock
        self._alive = alive  # the share partitions whose state is in a partition of the topic
        self._log = InternalLog(store, STATE_TOPIC, STATE_PARTITIONS)
        self._journal = Journal(self._log)
        self._since_snapshot = [0] * STATE_PARTITIONS
        self._renewing: dict[int, asyncio.Task[None]] = {}

    @property
    def exists(self) -> bool:
        return self._store.has_topic(STATE_TOPIC)

    async def create(self) -> None:
        await self._store.create_topic(STATE_TOPIC, STATE_PARTITIONS, STATE_CONFIGS)

    def write_changes(
        self,
        group_id: str,
        changes: Sequence[tuple[SharePartition, Change]],
        on_durable: Callable[[], None],
        on_failed: Callable[[], None],
    ) -> Awaitable[None]:
        epoch = self._store.leader_epoch
        records = [update_of(share, change.spans, epoch) for share, change in changes]
        return self._write(group_id, records, on_durable, on_failed)

    def write_snapshots(
        self, group_id: str, shares: Shares, on_durable: Callable[[], None]
    ) -> Awaitable[None]:
        epoch, now_ms = self._store.leader_epoch, self._clock.now_ms()
        records = [snapshot_of(share, epoch, now_ms) for share in shares]
        return self._write(group_id, records, on_durable, _nothing)

    def write_deletions(
        self, group_id: str, shares: Shares, on_durable: Callable[[], None]
    ) -> Awaitable[None]:
        records = [Record(_key(ShareSnapshotKey, share), None) for share in shares]
        return self._write(group_id, records, on_durable, _nothing)

    def _write(
        self,
        group_id: str,
        records: list[Record],
        on_durable: Callable[[], None],
        on_failed: Callable[[], None],
    ) -> Awaitable[None]:
        partition = partition_for(group_id, STATE_PARTITIONS)
        self._since_snapshot[partition] += len(records)
        if self._since_snapshot[partition] > UPDATES_KEPT:
            self._maybe_renew(partition)
        return self._journal.write(group_id, records, on_durable, on_failed)

    # ── rewriting ──────────────────────────────────────────────────────────────────────────────

    def _maybe_renew(self, partition: int) -> None:
        if partition in self._renewing:
            return
        alive = self._alive(partition)
        if self._since_snapshot[partition] <= UPDATES_KEPT + 4 * len(alive):
            return
        task = asyncio.create_task(self._renew(partition, alive))
        self._renewing[partition] = task
        task.add_done_callback(lambda _: self._renewing.pop(partition, None))

    async def _renew(self, partition: int, alive: list[SharePartition]) -> None:
        """Writes everything that is alive behind the log's end, and deletes the rest."""
        log = self._store.partitions[STATE_TOPIC, partition]
        begins_at = log.next_offset
        self._since_snapshot[partition] = 0
        try:
            for at in range(0, len(alive), SNAPSHOTS_PER_BATCH):
                some = [
                    share for share in alive[at : at + SNAPSHOTS_PER_BATCH] if not share.is_deleted
                ]
                if some:
                    await self.write_snapshots(some[0].group_id, some, _nothing)
            await self._store.delete_records({log: begins_at})
        except (ApiError, OSError) as error:  # tried again when as much has come again
            logger.warning("%s-%d was not rewritten: %s", STATE_TOPIC, partition, error)

    # ── loading ───────────────────────────────────────────────────────────────────────────────

    async def load(
        self,
        partition: int,
        find: Callable[[str, UUID, int], SharePartition | None],
        forget: Callable[[str, UUID, int], None],
    ) -> None:
        """Puts every share partition of a partition of the topic into its last state.

        `find` gives the share partition to fill, or None if its topic is deleted.
        """
        count = 0
        async for stored in self._log.read(partition):
            for record in stored:
                try:
                    if isinstance(record, StoredRecord):
                        _apply(record, find, forget)
                except (MalformedMessage, struct.error, ValueError) as error:
                    logger.error(
                        "a record of %s-%d is unreadable: %s", STATE_TOPIC, partition, error
                    )
                count += 1
                if count % _RECORDS_PER_TURN == 0:
                    await asyncio.sleep(0)
        self._since_snapshot[partition] = count

    async def drain(self) -> None:
        for task in tuple(self._renewing.values()):
            await asyncio.wait([task])
        await self._journal.drain()


def _apply(
    record: StoredRecord,
    find: Callable[[str, UUID, int], SharePartition | None],
    forget: Callable[[str, UUID, int], None],
) -> None:
    key, value, timestamp_ms, *_ = record
    (kind,) = _INT16.unpack_from(key)
    if kind not in (ShareSnapshotKey.api_key, ShareUpdateKey.api_key):
        return
    named = ShareSnapshotKey.decode(memoryview(key)[2:], 0)
    if value is None:
        forget(named.group_id, named.topic_id, named.partition)
        return
    share = find(named.group_id, named.topic_id, named.partition)
    if share is None:
        return
    body = memoryview(value)[2:]
    if kind == ShareSnapshotKey.api_key:
        snapshot = ShareSnapshotValue.decode(body, 0)
        share.window = Window(snapshot.start_offset)
        share.snapshot_epoch = snapshot.snapshot_epoch
        share.state_epoch = snapshot.state_epoch
        share.archiving_since_ms = 0
        timestamp_ms = snapshot.write_timestamp
        start_offset, batches = snapshot.start_offset, _spans(snapshot.state_batches)
    else:
        update = ShareUpdateValue.decode(body, 0)
        start_offset, batches = update.start_offset, _spans(update.state_batches)
    if not share.is_resolved:
        if start_offset < 0:
            return
        share.window = Window(start_offset)  # an update whose snapshot is missing
    share.window.restore(start_offset, batches)
    if share.window.counts[ARCHIVING]:
        share.archiving_since_ms = share.archiving_since_ms or timestamp_ms
    else:
        share.archiving_since_ms = 0


def _spans(
    batches: Iterable[ShareSnapshotValueStateBatch | ShareUpdateValueStateBatch],
) -> list[Span]:
    return [
        Span(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
        for batch in batches
        if 0 <= batch.first_offset <= batch.last_offset
    ]


def _nothing() -> None:
    pass
