"""Deliveries of share groups (KIP-932, "queues"): fetches, acknowledgements, admin requests.

All of it runs on the event loop. Acquiring a record is memory only, as in Kafka: after a crash it
is available again. Whatever settles records is durable in `__share_group_state` before its request
is answered, so a record whose acknowledgement was confirmed is never delivered again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from headwater.broker.background import Background
from headwater.broker.groups.offsets.store import OffsetKey
from headwater.broker.internal_topics.records import partition_for
from headwater.broker.queues.dead_letters import DeadLetters, deaths_of, unfinished
from headwater.broker.queues.sessions import ShareSession, ShareSessions
from headwater.broker.queues.share_partition import (
    UNRESOLVED,
    Key,
    SharePartition,
    rules_of,
)
from headwater.broker.queues.state_log import STATE_PARTITIONS, StateLog
from headwater.broker.queues.window import (
    ACQUIRED,
    ARCHIVING,
    AVAILABLE,
    Acknowledgement,
    Change,
    Rules,
    Window,
    parts,
)
from headwater.errors import ArchiveUnavailable, CorruptLog
from headwater.log.partitions.timestamps import first_at_or_after
from headwater.protocol.error_codes import ApiError, ErrorCode

if TYPE_CHECKING:
    from headwater.broker.broker import Broker
    from headwater.log.partitions.partition import PartitionLog

logger = logging.getLogger(__name__)

RETRY_S = 1.0  # after a write that failed


class PartitionStatus(NamedTuple):
    """A share partition, for people."""

    topic: str
    partition: int
    start_offset: int  # -1 until the group first fetches
    end_offset: int  # the last one delivered so far, start - 1 if there is none
    available: int  # given back, waiting for the next delivery
    in_flight: int  # with consumers
    settled: int  # acknowledged or archived, behind something that is not
    archiving: int  # on the way to the dead letters
    dead_letters: int  # copied since the start of the process
    oldest_lock_age_s: float | None


class Queues:
    """See the module. A method that refuses raises ApiError."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._clock = broker.clock
        self._groups: dict[str, dict[Key, SharePartition]] = {}
        self._by_log: list[set[str]] = [set() for _ in range(STATE_PARTITIONS)]
        self._log = StateLog(broker.store, broker.clock, self._alive)
        self._loaded = [asyncio.Event() for _ in range(STATE_PARTITIONS)]
        self._background = Background("a queue's start")
        self._dead_letters = DeadLetters(broker, self)
        self.sessions = ShareSessions(self._session_ended)

    # ── starting and stopping ─────────────────────────────────────────────────────────────────

    async def load(self) -> None:
        """Reads the stored state, one log partition after the other; who needs one waits."""
        for number, loaded in enumerate(self._loaded):
            if self._log.exists:
                await self._log.load(number, self._find, self._forget)
            loaded.set()
            for share in self._alive(number):
                self._resume(share)

    async def close(self) -> None:
        """Stops; consumers' locks end with the process."""
        await self.abandon()
        await self._log.drain()

    async def abandon(self) -> None:
        """Stops without waiting for the disk, as a crash would."""
        for group in self._groups.values():
            for share in group.values():
                share.disarm()
        await self._dead_letters.close()
        await self._background.stop()

    def _alive(self, number: int) -> list[SharePartition]:
        groups = (self._groups.get(group_id, {}) for group_id in self._by_log[number])
        return [share for group in groups for share in group.values()]

    def _find(self, group_id: str, topic_id: UUID, index: int) -> SharePartition | None:
        try:
            return self._share(group_id, (topic_id, index))
        except ApiError:
            return None  # its topic was deleted

    def _resume(self, share: SharePartition) -> None:
        """Goes on with what the last process left in the middle."""
        spans = [span for span in share.window.spans() if span.state == ARCHIVING]
        if spans:
            limit = self._broker.group_configs.share(share.group_id).delivery_count_limit
            self._dead_letters.bury(share, unfinished(spans, limit))

    async def loaded(self, group_id: str) -> None:
        """Returns when the group's state is loaded and can be written."""
        if not self._log.exists:
            await self._log.create()
        await self._loaded[partition_for(group_id, STATE_PARTITIONS)].wait()

    # ── share partitions ──────────────────────────────────────────────────────────────────────

    def _share(self, group_id: str, key: Key) -> SharePartition:
        """The share partition, made if need be; raises the error code for an unknown partition."""
        group = self._groups.get(group_id)
        share = None if group is None else group.get(key)
        if share is not None:
            return share
        topic_id, index = key
        log = self._broker.partition(self._broker.topic_name(topic_id), index)
        share = SharePartition(group_id, topic_id, index, log)
        if group is None:
            group = self._groups[group_id] = {}
            self._by_log[partition_for(group_id, STATE_PARTITIONS)].add(group_id)
        group[key] = share
        return share

    def _forget(self, group_id: str, topic_id: UUID, index: int) -> None:
        group = self._groups.get(group_id)
        share = None if group is None else group.pop((topic_id, index), None)
        if share is not None:
            share.is_deleted = True
            share.disarm()
            if share.waiters:
                share.waiters.wake_all()
        if group is not None and not group:
            del self._groups[group_id]
            self._by_log[partition_for(group_id, STATE_PARTITIONS)].discard(group_id)

    def topic_deleted(self, topic_id: UUID) -> None:
        """Its records are deleted; so is what groups did with them."""
        for group_id, group in list(self._groups.items()):
            deleted = [share for share in group.values() if share.topic_id == topic_id]
            for share in deleted:
                self._forget(group_id, topic_id, share.index)
            if deleted:
                # If this is lost in a crash: the next start knows no such topic either.
                self._log.write_deletions(group_id, deleted, _nothing)

    def rules(self, share: SharePartition) -> Rules:
        return rules_of(self._broker.group_configs.share(share.group_id), share.log.topic)

    def resolved(self, group_id: str, key: Key) -> SharePartition | None:
        """The share partition if it can be fetched from at once."""
        share = self._groups.get(group_id, {}).get(key)
        if share is None or not share.is_resolved or share.resolving is not None:
            return None
        return share

    async def ready(self, group_id: str, key: Key) -> SharePartition:
        """The share partition, with a start offset; raises the error code."""
        share = self._share(group_id, key)
        if not share.is_resolved and share.resolving is None:
            share.resolving = self._background.start(self._resolve(share))
        if share.resolving is not None:
            await asyncio.shield(share.resolving)
        return share

    async def _resolve(self, share: SharePartition) -> None:
        """Decides where the group begins. Durable before anything is delivered: decided again
        after a crash, "latest" would pass over what has come in between.
        """
        try:
            reset = self._broker.group_configs.share(share.group_id).auto_offset_reset
            log = share.log
            start_offset = log.high_watermark
            if reset.kind == "earliest":
                start_offset = log.log_start_offset
            elif reset.kind == "by_duration":
                since_ms = self._clock.now_ms() - reset.duration_ms
                find = self._broker.store.in_reader_and_archive
                try:
                    found = await find(first_at_or_after, log, since_ms)
                except (ArchiveUnavailable, CorruptLog) as error:
                    raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
                start_offset = start_offset if found is None else found.offset
            if not share.is_resolved:
                share.window = Window(start_offset)
                await self._write_snapshots(share.group_id, [share])
        except BaseException:
            share.window = Window(UNRESOLVED)
            raise
        finally:
            share.resolving = None

    async def _write_snapshots(self, group_id: str, shares: list[SharePartition]) -> None:
        if shares:
            await self._log.write_snapshots(group_id, shares, _nothing)

    # ── acknowledging ─────────────────────────────────────────────────────────────────────────

    def acknowledge(
        self,
        group_id: str,
        member_id: str,
        acknowledgements: Mapping[Key, Sequence[Acknowledgement]],
    ) -> tuple[dict[Key, ErrorCode], Awaitable[None] | None]:
        """Takes them in. What is settled by them is so when what it returns has been awaited.

        For each partition all of them count or, with the error code given, none.
        """
        codes: dict[Key, ErrorCode] = {}
        changes: list[tuple[SharePartition, Change]] = []
        now_s = self._clock.monotonic_s()
        for key, batches in acknowledgements.items():
            try:
                share = self._share(group_id, key)
                if share.is_deleted:
                    raise ApiError(ErrorCode.INVALID_RECORD_STATE, "the group begins again")
                change = share.window.acknowledge(member_id, batches, now_s, self.rules(share))
            except ApiError as error:
                codes[key] = error.code
                continue
            codes[key] = ErrorCode.NONE
            self._count(group_id, batches)
            if change:
                changes.append((share, change))
        return codes, self._write(group_id, changes) if changes else None

    def _count(self, group_id: str, batches: Sequence[Acknowledgement]) -> None:
        counts = self._broker.metrics.share_acknowledgements
        for batch in batches:
            for first, last, kind in parts(batch):
                counts[group_id, kind] += last - first + 1

    def _write(
        self, group_id: str, changes: Sequence[tuple[SharePartition, Change]]
    ) -> Awaitable[None]:
        def on_durable() -> None:
            for share, change in changes:
                self._confirm(share, change)

        def on_failed() -> None:
            for share, change in changes:
                share.window.undo(change)
                # Not at once: the lock may be over, and the disk may be full for long.
                self.lock_until(share, self._clock.monotonic_s() + RETRY_S)

        for share, _ in changes:
            if share.timer is None or share.window.counts[AVAILABLE]:
                self._arm(share)
            # What was given back need not wait for the disk. With nothing to be had no fetch is
            # woken: there may be hundreds, and an acknowledgement for every record.
            if share.window.counts[AVAILABLE] or share.was_full:
                share.was_full = False
                share.wake()
        return self._log.write_changes(group_id, changes, on_durable, on_failed)

    def _confirm(self, share: SharePartition, change: Change) -> None:
        dying = share.window.confirm(change)
        if self._broker.overload.is_any:
            self._broker.overload.committed(share.group_id, OffsetKey(share.log.topic, share.index))
        if dying:
            limit = self.rules(share).delivery_limit
            self._dead_letters.bury(share, deaths_of(dying, change.rejected, limit))
        if share.order is not None:
            share.wake()  # the next of a key may go

    async def buried(self, share: SharePartition, first: int, last: int) -> None:
        """Their dead letters are durable: they are archived, durably, when this returns."""
        change = share.window.archived(first, last)
        if change and not share.is_deleted:
            await self._write(share.group_id, [(share, change)])

    # ── locks ─────────────────────────────────────────────────────────────────────────────────

    def lock_until(self, share: SharePartition, until_s: float) -> None:
        """Something of the share partition is locked, or rests, until then."""
        if share.timer is not None:
            if share.timer_due_s <= until_s:
                return
            share.timer.cancel()
        share.timer_due_s = until_s
        delay_s = max(until_s - self._clock.monotonic_s(), 0.0)
        share.timer = self._clock.call_later(delay_s, self._expire, share)

    def _arm(self, share: SharePartition) -> None:
        due_s = share.window.next_event_s(self._clock.monotonic_s())
        if due_s is not None and not share.is_deleted:
            self.lock_until(share, due_s)

    def _expire(self, share: SharePartition) -> None:
        share.timer = None
        now_s = self._clock.monotonic_s()
        locked = share.window.counts[ACQUIRED]
        change = share.window.expire(now_s, self.rules(share))
        if change:
            expired = locked - share.window.counts[ACQUIRED]
            self._broker.metrics.share_locks_expired[share.group_id] += expired
            self._write(share.group_id, [(share, change)])
        else:
            self._arm(share)
            share.wake()  # a rest is over

    def release(self, group_id: str, member_id: str, keys: Iterable[Key] | None = None) -> None:
        """Gives back what the member holds, of all partitions or of these."""
        group = self._groups.get(group_id, {})
        shares = (
            list(group.values())
            if keys is None
            else [share for share in map(group.get, keys) if share is not None]
        )
        now_s = self._clock.monotonic_s()
        changes = [
            (share, change)
            for share in shares
            if share.window.counts[ACQUIRED]
            and not share.is_deleted
            and (change := share.window.release(member_id, now_s, self.rules(share)))
        ]
        if changes:
            self._write(group_id, changes)

    def member_left(self, group_id: str, member_id: str) -> None:
        self.release(group_id, member_id)

    def _session_ended(self, session: ShareSession) -> None:
        self.release(session.group_id, session.member_id)

    # ── for the group coordinator and people ──────────────────────────────────────────────────

    async def initialize(self, group_id: str, starts: Mapping[Key, int]) -> None:
        """Registers share partitions, durably. -1: where to begin is decided when fetched.

        One that has a state is not changed.
        """
        await self.loaded(group_id)
        made: list[SharePartition] = []
        for key, start_offset in starts.items():
            share = self._find(group_id, *key)
            if share is None:
                continue  # its topic has just been deleted
            if share.snapshot_epoch < 0 and not share.is_resolved and share.resolving is None:
                share.window = Window(start_offset)
                made.append(share)
        await self._write_snapshots(group_id, made)

    async def alter(self, group_id: str, offsets: Mapping[Key, int]) -> None:
        """Begins again at these offsets, durably; the caller has checked that no consumer reads."""
        await self.loaded(group_id)
        altered: list[SharePartition] = []
        for key, offset in offsets.items():
            share = self._share(group_id, key)
            share.disarm()
            share.window, share.order, share.ahead = Window(offset), None, None
            share.state_epoch += 1
            altered.append(share)
        await self._write_snapshots(group_id, altered)

    async def delete(self, group_id: str, topic_ids: Collection[UUID] | None = None) -> None:
        """Forgets the group's state, of all topics or of these, durably."""
        await self.loaded(group_id)
        wanted = None if topic_ids is None else set(topic_ids)
        group = self._groups.get(group_id, {})
        deleted = [
            share_partition
            for share_partition in group.values()
            if wanted is None or share_partition.topic_id in wanted
        ]
        if not deleted:
            return

        def forget() -> None:
            for share in deleted:
                self._forget(group_id, share.topic_id, share.index)

        # From now on, lest something is written behind the deletion and brings it back to life.
        for share in deleted:
            share.is_deleted = True
            share.disarm()
        try:
            await self._log.write_deletions(group_id, deleted, forget)
        except ApiError:
            for share in deleted:
                share.is_deleted = False
                self._arm(share)
            raise

    def start_offset(self, group_id: str, topic_id: UUID, partition: int) -> int | None:
        """None without state; -1 while the group has not fetched yet."""
        share = self._groups.get(group_id, {}).get((topic_id, partition))
        return None if share is None else share.window.start_offset

    def lag(self, group_id: str, topic_id: UUID, partition: int) -> int:
        """Records that are not settled yet; -1 if that is not loaded."""
        share = self._groups.get(group_id, {}).get((topic_id, partition))
        if share is None or not share.is_resolved:
            return -1
        window = share.window
        return max(share.log.high_watermark - window.start_offset - window.settled, 0)

    def describe(self, group_id: str) -> list[PartitionStatus]:
        lock_s = self._broker.group_configs.share(group_id).record_lock_duration_ms / 1000
        return [self._status(share, lock_s) for share in self._groups.get(group_id, {}).values()]

    def _status(self, share: SharePartition, lock_s: float) -> PartitionStatus:
        window = share.window
        ends_s = window.oldest_lock_ends_s()
        age_s = None if ends_s is None else lock_s - (ends_s - self._clock.monotonic_s())
        return PartitionStatus(
            topic=share.log.topic,
            partition=share.index,
            start_offset=window.start_offset,
            end_offset=window.next_offset - 1,
            available=window.counts[AVAILABLE],
            in_flight=window.counts[ACQUIRED],
            settled=window.settled,
            archiving=window.counts[ARCHIVING],
            dead_letters=share.dead_letters,
            oldest_lock_age_s=age_s,
        )

    def positions(self) -> Iterator[tuple[str, "PartitionLog", int, int]]:
        """Group, partition, start offset, and how many records behind that are settled.

        May be iterated while things change. Not of groups that are only half loaded: they
        would seem to be far behind.
        """
        for number, loaded in enumerate(self._loaded):
            for share in self._alive(number) if loaded.is_set() else ():
                if share.is_resolved:
                    window = share.window
                    yield share.group_id, share.log, window.start_offset, window.settled

    def groups_with_state(self) -> list[str]:
        return list(self._groups)

    def in_flight(self) -> dict[str, int]:
        """Records with consumers, by group."""
        return {
            group_id: sum(share.window.counts[ACQUIRED] for share in group.values())
            for group_id, group in self._groups.items()
        }


def _nothing() -> None:
    pass
