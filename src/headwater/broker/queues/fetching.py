"""One ShareFetch: acquires what is available, or waits for it.

It is woken by an append, by records that are given back, by the end of a lock or a rest, and when
there is room in a window again; it never looks just in case.
"""

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from headwater.broker.queues.delivering import Taken, Wanted, choose, take
from headwater.broker.queues.ordering import KeyOrder, Keys, read_keys
from headwater.broker.queues.read_ahead import ReadAhead, end_offset_of, read_ahead
from headwater.broker.queues.sessions import ShareSession
from headwater.broker.queues.share_partition import Key, SharePartition
from headwater.broker.queues.waiting import Waiters
from headwater.errors import ArchiveUnavailable, CorruptLog
from headwater.log.archive.descriptor import ChunkOf, NotCached
from headwater.log.partitions.partition import PartitionLog
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.share_fetch import ShareFetchRequest

if TYPE_CHECKING:
    from headwater.broker.broker import Broker

MAX_BYTES = 55 << 20  # whatever a client asks for, as Kafka's fetch.max.bytes of the broker
ROUNDS = 8  # of looking and finding nothing to take, before it waits in any case
LOOKS = 4  # for keys, for more of them, for the batches that hold what they allow
READS_PER_ROUND = 16  # share partitions whose batches are looked for at a time
RECORD_LIMIT = 1  # of KIP-1206's ways to acquire, the one that is not batch-optimised


@dataclass(slots=True)
class ShareFetching:
    """See the module. `taken` is pinned and locked when `collect` returns."""

    broker: "Broker"
    session: ShareSession
    request: ShareFetchRequest
    refused: dict[Key, ErrorCode]  # partitions of the session that may not be had
    refusals: Callable[[], dict[Key, ErrorCode]]  # the same after a wait, which may be long
    taken: dict[Key, Taken] = field(default_factory=dict)
    _count: int = 0
    _deadline_s: float = 0.0
    size_bytes: int = 0

    async def collect(self) -> None:
        shares = await self._ready()
        try:
            await self._collect(shares)
        finally:
            self._pass_on(shares)

    async def _collect(self, shares: Sequence[SharePartition]) -> None:
        loop = asyncio.get_running_loop()
        self._deadline_s = deadline_s = loop.time() + self.request.max_wait_ms / 1000
        rounds = 0
        # Not those that are deleted meanwhile, with their topic or with what the group has read.
        while shares := [
            share for share in shares if not share.is_deleted and not share.log.deleted
        ]:
            for _ in range(LOOKS):
                if not await self._look_ahead(shares):
                    break
            is_late = loop.time() >= deadline_s
            if is_late or self._has_enough(shares):
                self._take(shares)
            if self.taken or self.refused or is_late:
                return
            rounds += 1
            if rounds > ROUNDS or not self._can_go_on(shares):
                self._pass_on(shares)
                await self._wait(shares, deadline_s)
                self.refused |= self.refusals()
                rounds = 0

    def let_go(self) -> None:
        """Nobody is there to send it to. (Its locks end with the session.)"""
        for taken in self.taken.values():
            taken.part.release()
        self.taken.clear()

    async def _ready(self) -> list[SharePartition]:
        queues, group_id = self.broker.queues, self.session.group_id
        keys = [key for key in self.session.partitions if key not in self.refused]
        new = [key for key in keys if queues.resolved(group_id, key) is None]
        if new:  # together, so that one write serves them all
            made = await asyncio.gather(
                *(queues.ready(group_id, key) for key in new), return_exceptions=True
            )
            for key, result in zip(new, made, strict=True):
                if isinstance(result, ApiError):
                    self.refused[key] = result.code
                elif isinstance(result, BaseException):
                    raise result
        shares = (queues.resolved(group_id, key) for key in keys)
        return [share for share in shares if share is not None]

    # ── looking ───────────────────────────────────────────────────────────────────────────────

    @property
    def _is_committed_only(self) -> bool:
        settings = self.broker.group_configs.share(self.session.group_id)
        return settings.isolation_level == "read_committed"

    def _wanted(self) -> Wanted:
        settings = self.broker.group_configs.share(self.session.group_id)
        request = self.request
        max_records = max(request.max_records, 0) if request.max_bytes > 0 else 0
        return Wanted(
            member=self.session.member_id,
            max_records=max_records - self._count,
            max_bytes=min(request.max_bytes, MAX_BYTES) - self.size_bytes,
            batch_size=max(request.batch_size, 1),
            is_record_limit=request.share_acquire_mode == RECORD_LIMIT,
            lock_s=settings.record_lock_duration_ms / 1000,
            max_locks=settings.partition_max_record_locks,
        )

    async def _look_ahead(self, shares: Sequence[SharePartition]) -> bool:
        """Finds the batches of those from which something can be taken and that are not located
        yet.

        False if there was nothing to look for.
        """
        is_committed_only, wanted = self._is_committed_only, self._wanted()
        by_key = self.broker.group_configs.share(self.session.group_id).order == "key"
        now_s = self.broker.clock.monotonic_s()
        to_read: list[tuple[SharePartition, int, bool]] = []
        looking: set[asyncio.Future[None]] = set()
        for share in shares:
            if len(to_read) >= READS_PER_ROUND:
                break
            if share.log.deleted or share.key in self.refused:
                continue
            if share.looking is not None:  # another fetch does, for all that were woken with it
                looking.add(share.looking)
                continue
            end_offset = end_offset_of(share.log, is_committed_only=is_committed_only)
            order = self._order(share, by_key)
            if order is not None and order.needs_more(share.window, end_offset, wanted.max_locks):
                to_read.append((share, order.read_until, True))
                continue
            chosen = choose(share, now_s, end_offset, wanted)
            if chosen is not None:
                offset = chosen if isinstance(chosen, int) else chosen[0]
                if (
                    share.ahead is None
                    or not share.ahead.covers(offset, is_committed_only=is_committed_only)
                    or not share.ahead.suffices(
                        offset, end_offset, wanted.max_records, self.request.min_bytes
                    )
                ):
                    to_read.append((share, offset, False))
        if to_read:
            await self._look_at(to_read, wanted)
        elif looking:
            rest_s = self._deadline_s - asyncio.get_running_loop().time()
            await asyncio.wait(looking, timeout=max(rest_s, 0), return_when=FIRST_COMPLETED)
        return bool(to_read or looking)

    async def _look_at(
        self, to_read: list[tuple[SharePartition, int, bool]], wanted: Wanted
    ) -> None:
        done = asyncio.get_running_loop().create_future()
        for share, _, _ in to_read:
            share.looking = done
        missing: list[tuple[SharePartition, ChunkOf]] = []
        try:
            found = await self.broker.store.in_reader(
                _read, to_read, self._is_committed_only, wanted.max_locks
            )
            for (share, _, _), result in zip(to_read, found, strict=True):
                if isinstance(result, ChunkOf):
                    missing.append((share, result))
                else:
                    self._learn(share, result)
        finally:
            for share, _, _ in to_read:
                share.looking = None
            done.set_result(None)
        codes = await asyncio.gather(*(self._fetched(*key) for key in missing))
        for (share, _), code in zip(missing, codes, strict=True):
            self._learn(share, code)

    async def _fetched(self, share: SharePartition, chunk: ChunkOf) -> ErrorCode | None:
        """Waits until a chunk is here that only the archive has, as long as a fetch may wait."""
        try:
            async with asyncio.timeout_at(self._deadline_s):
                if share.log.archive is not None:
                    await share.log.archive.chunks.fetched(chunk)
        except TimeoutError:  # it comes in the background; the next fetch begins with others
            self.session.served_last(share.key)
            return None
        except ArchiveUnavailable:
            return ErrorCode.KAFKA_STORAGE_ERROR
        except CorruptLog:
            return ErrorCode.CORRUPT_MESSAGE
        return None

    def _order(self, share: SharePartition, by_key: bool) -> KeyOrder | None:
        if not by_key:
            share.order = None
        elif share.order is None:
            share.order = KeyOrder(share.window.start_offset)
        return share.order

    def _learn(self, share: SharePartition, found: ReadAhead | Keys | ErrorCode | None) -> None:
        if isinstance(found, ErrorCode):
            self.refused[share.key] = found
        elif isinstance(found, ReadAhead):
            share.ahead = found
        elif isinstance(found, Keys) and share.order is not None:
            share.order.learn(found)

    # ── taking ────────────────────────────────────────────────────────────────────────────────

    def _has_enough(self, shares: Sequence[SharePartition]) -> bool:
        """Whether `min_bytes` can be had, or as much as one look finds."""
        if self.request.min_bytes <= 1:
            return True
        now_s, wanted, ready_bytes = self.broker.clock.monotonic_s(), self._wanted(), 0
        for share in shares:
            end_offset = end_offset_of(share.log, is_committed_only=self._is_committed_only)
            chosen = choose(share, now_s, end_offset, wanted)
            if chosen is None:
                continue
            offset = chosen if isinstance(chosen, int) else chosen[0]
            if (
                share.ahead is None
                or not _is_covered(share, offset, self._is_committed_only)
                or share.ahead.is_all_from(offset)
            ):
                return True
            batches = share.ahead.batches[share.ahead.index_of(offset) :]
            ready_bytes += sum(batch.size_bytes for batch in batches)
        return ready_bytes >= self.request.min_bytes

    def _take(self, shares: Sequence[SharePartition]) -> None:
        now_s = self.broker.clock.monotonic_s()
        for share in shares:
            wanted = self._wanted()
            if wanted.max_records <= 0 or (self.taken and wanted.max_bytes <= 0):
                break
            if share.key not in self.refused and not share.is_deleted:
                self._take_of(share, wanted, now_s)

    def _take_of(self, share: SharePartition, wanted: Wanted, now_s: float) -> None:
        is_committed_only = self._is_committed_only
        end_offset = end_offset_of(share.log, is_committed_only=is_committed_only)
        chosen = choose(share, now_s, end_offset, wanted)
        if chosen is None or share.ahead is None:
            return
        offset = chosen if isinstance(chosen, int) else chosen[0]
        if not _is_covered(share, offset, is_committed_only):
            return
        taken = take(share, share.ahead, chosen, end_offset, now_s, wanted)
        if taken is None:
            return
        self.taken[share.key] = taken
        self._count += taken.record_count
        self.size_bytes += taken.part.size_bytes
        self.session.served_last(share.key)
        queues, metrics = self.broker.queues, self.broker.metrics
        queues.lock_until(share, now_s + wanted.lock_s)
        metrics.share_deliveries[share.group_id] += taken.record_count
        metrics.fetched_bytes[share.log.topic] += taken.part.size_bytes

    # ── waiting ───────────────────────────────────────────────────────────────────────────────

    def _can_go_on(self, shares: Sequence[SharePartition]) -> bool:
        """Whether looking again helps at once: what was found has been taken by others, or was
        nothing that is delivered.
        """
        if self.request.min_bytes > 1 and not self._has_enough(shares):
            return False
        wanted = self._wanted()
        return wanted.max_records > 0 and any(self._is_promising(share, wanted) for share in shares)

    def _is_promising(self, share: SharePartition, wanted: Wanted) -> bool:
        end_offset = end_offset_of(share.log, is_committed_only=self._is_committed_only)
        order = share.order
        if order is not None and order.needs_more(share.window, end_offset, wanted.max_locks):
            return True
        return choose(share, self.broker.clock.monotonic_s(), end_offset, wanted) is not None

    async def _wait(self, shares: Sequence[SharePartition], deadline_s: float) -> None:
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        is_committed_only = self._is_committed_only
        for share in shares:
            if share.waiters is None:
                share.waiters = Waiters()
            share.waiters.add(wake)
            _log_waiters(share.log, is_committed_only).add(share.came)
        timer = loop.call_at(deadline_s, wake)
        try:
            await woken
        finally:
            timer.cancel()
            for share in shares:
                if share.waiters is not None:
                    share.waiters.discard(wake)
                if not share.waiters:
                    for waiters in (share.log.waiters, share.log.stable_waiters):
                        if waiters is not None:
                            waiters.discard(share.came)

    def _pass_on(self, shares: Sequence[SharePartition]) -> None:
        """Others that wait may have what this one left."""
        wanted = self._wanted()._replace(max_records=1)
        for share in shares:
            if share.waiters:
                share.waiters.pass_on(partial(self._is_promising, share, wanted))


def _log_waiters(log: PartitionLog, is_committed_only: bool) -> set[Callable[[int], None]]:
    """The callbacks to run when more can be delivered."""
    if is_committed_only:
        if log.stable_waiters is None:
            log.stable_waiters = set()
        return log.stable_waiters
    if log.waiters is None:
        log.waiters = set()
    return log.waiters


def _is_covered(share: SharePartition, offset: int, is_committed_only: bool) -> bool:
    return share.ahead is not None and share.ahead.covers(
        offset, is_committed_only=is_committed_only
    )


def _read(
    positions: list[tuple[SharePartition, int, bool]], is_committed_only: bool, key_count: int
) -> list[ReadAhead | Keys | ErrorCode | ChunkOf | None]:
    """(worker) The batches at each position, or the keys in them; or what must be fetched first."""
    found: list[ReadAhead | Keys | ErrorCode | ChunkOf | None] = []
    for share, offset, with_keys in positions:
        try:
            ahead = read_ahead(share.log, offset, is_committed_only)
            if ahead is None or not with_keys:
                found.append(ahead)
            else:
                found.append(read_keys(share.log, ahead, offset, key_count))
        except CorruptLog:
            found.append(ErrorCode.CORRUPT_MESSAGE)
        except NotCached as missing:
            found.append(missing.chunk)
        except (ArchiveUnavailable, OSError):  # also if compaction or retention was faster
            found.append(ErrorCode.KAFKA_STORAGE_ERROR)
    return found
