"""Delivery: which records a fetch gets of a share partition, and the bytes that hold them.

Whole batches are sent as they lie on disk; the acquired ranges say which of their records are the
consumer's. In the batch-optimised mode (KIP-1206) a fetch takes whole batches until it has as many
records as it wanted, so a batch is one range in memory, whatever it holds; with a record limit it
takes exactly so many.
"""

from bisect import bisect_left, bisect_right
from typing import NamedTuple

from headwater.broker.queues.read_ahead import ReadAhead
from headwater.broker.queues.share_partition import SharePartition
from headwater.broker.queues.window import Span
from headwater.log.partitions.reads import Slice
from headwater.protocol.records import INT64_MAX


class Wanted(NamedTuple):
    """What a fetch asks for, of all partitions together."""

    member: str
    max_records: int
    max_bytes: int
    batch_size: int  # records that are acknowledged together, if batches allow it
    is_record_limit: bool
    lock_s: float
    max_locks: int  # of the partition


class Taken(NamedTuple):
    """Pinned bytes, and what of them is the consumer's."""

    part: Slice
    acquired: list[Span]
    record_count: int


def choose(
    share: SharePartition, now_s: float, end_offset: int, wanted: Wanted
) -> int | list[int] | None:
    """What can be delivered now: the first offset of it; with an order by key, each offset.

    Nothing at or behind `end_offset` is delivered. None if there is nothing.
    """
    window = share.window
    if share.log.log_start_offset > window.start_offset:
        window.forget_before(share.log.log_start_offset)
    if share.order is not None:
        share.order.offer(window, end_offset, wanted.max_locks)
        free = share.order.free(window, now_s, wanted.max_records)
        return free[: bisect_left(free, end_offset)] or None
    due = window.first_due(now_s)
    if due is not None and due < end_offset:
        return due
    if window.next_offset < end_offset:
        if window.in_flight < wanted.max_locks:
            return window.next_offset
        share.was_full = True
    return None


def take(
    share: SharePartition,
    ahead: ReadAhead,
    chosen: int | list[int],
    end_offset: int,
    now_s: float,
    wanted: Wanted,
) -> Taken | None:
    """Locks records, from the first chosen one on.

    `ahead` covers that offset. The bytes are one range: it ends in front of a batch of which
    nothing can be had, and the next fetch goes on behind that.
    """
    window, until_s = share.window, now_s + wanted.lock_s
    acquired: list[Span] = []
    count, begins, ends = 0, -1, -1
    first_chosen = at = chosen if isinstance(chosen, int) else chosen[0]
    for batch in ahead.batches[ahead.index_of(first_chosen) :]:
        if batch.base_offset >= end_offset or count >= wanted.max_records:
            break
        if begins >= 0 and batch.position + batch.size_bytes - begins > wanted.max_bytes:
            break
        if at < batch.base_offset:
            window.drop(at, batch.base_offset - 1)  # compaction has left a hole
        at = batch.last_offset + 1
        if batch.is_hidden:
            window.drop(batch.base_offset, batch.last_offset)
            continue
        if (
            isinstance(chosen, int)
            and window.next_offset == batch.base_offset
            and window.in_flight >= wanted.max_locks
        ):
            break
        limit = wanted.max_records - count if wanted.is_record_limit else INT64_MAX
        first = max(batch.base_offset, window.start_offset)
        if isinstance(chosen, int):
            got = window.acquire(first, batch.last_offset, wanted.member, now_s, until_s, limit)
        else:
            offsets = chosen[bisect_left(chosen, first) : bisect_right(chosen, batch.last_offset)]
            got = [
                span
                for offset in offsets
                for span in window.acquire(offset, offset, wanted.member, now_s, until_s, 1)
            ]
        if got:
            begins = batch.position if begins < 0 else begins
            ends = batch.position + batch.size_bytes
            for span in got:
                count += span.last - span.first + 1
                _add(acquired, span, wanted.batch_size)
        elif begins >= 0:
            break
    if begins < 0:
        return None
    part = Slice(share.log, ahead.segment, begins, ends - begins)
    share.log.pin(part)  # not doomed: `covers` was asked in this turn of the event loop
    return Taken(part, acquired, count)


def _add(acquired: list[Span], span: Span, batch_size: int) -> None:
    """Joins it to the one before if both are acknowledged together."""
    if acquired:
        before = acquired[-1]
        if (
            before.last + 1 == span.first
            and before.deliveries == span.deliveries
            and span.last - before.first < batch_size
        ):
            acquired[-1] = before._replace(last=span.last)
            return
    acquired.append(span)
