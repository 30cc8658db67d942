"""Fetch: records from the given offsets on, waiting for new ones if there are none. Versions 4–18.

Whole batches, as they lie on disk: a consumer that asks for the middle of one gets all of it and
skips (as with Kafka). At most `max_bytes` in all and `partition_max_bytes` for each partition, but
at least one batch (KIP-74). With less than `min_bytes` the answer waits until there are as many,
or until `max_wait_ms` is over. Incremental sessions: see fetch_sessions.py. Only records below
the high watermark, that is durable ones, are ever sent. Needs READ on the topics.

With `isolation_level` 1 (read_committed) only records in front of the last stable offset are sent:
that is where the oldest open transaction begins, or the high watermark. The answer names the
aborted transactions in what it sends, and the client leaves those records out; it waits for
records that are stable, and a transaction's end wakes it.

What lies in the archive only is fetched from it in the background, once for all who ask. A request
that finds nothing else waits for that as it waits for new records, at most `max_wait_ms`, then the
partition's answer is empty and the client asks again. If the archive cannot be read the error is
KAFKA_STORAGE_ERROR (which clients retry), if what it holds is damaged CORRUPT_MESSAGE.

An offset that retention has passed is answered with OFFSET_OUT_OF_RANGE, and what the consumer
missed is counted (`headwater_missed_records_total`).

Deviations: a request of a replica (`replica_id` ≥ 0) is treated as one of a consumer.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from headwater.broker.admission.quotas import CONSUMER_BYTES
from headwater.broker.api.registry import Answer, RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.fetch_sessions import FetchedPartition, FetchSession, TopicKey
from headwater.broker.leadership import check_epoch
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.errors import ArchiveUnavailable, CorruptLog, OffsetOutOfRange
from headwater.log.archive.descriptor import ChunkOf, NotCached
from headwater.log.partitions.partition import PartitionLog
from headwater.log.partitions.reads import Slice
from headwater.log.partitions.transactions import AbortedTransaction
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.fetch import (
    FetchRequest,
    FetchResponse,
    FetchResponseAbortedTransaction,
    FetchResponseFetchableTopicResponse,
    FetchResponsePartitionData,
)

IDS_SINCE = 13
READ_COMMITTED = 1
# Whatever a client asks for, as Kafka's fetch.max.bytes of the broker.
MAX_BYTES = 55 << 20


@dataclass(slots=True)
class _Fetch:
    """One request on its way."""

    broker: Broker
    request: FetchRequest
    context: RequestContext
    session: FetchSession
    by_id: bool
    committed_only: bool
    found: dict[tuple[TopicKey, int], "Slice | ErrorCode | ChunkOf"] = field(default_factory=dict)
    found_bytes: int = 0
    aborted: dict[tuple[TopicKey, int], list[AbortedTransaction]] = field(default_factory=dict)

    @property
    def remaining_bytes(self) -> int:
        return min(self.request.max_bytes, MAX_BYTES) - self.found_bytes


class _Lookup(NamedTuple):
    """Where to search. The partition itself: its topic may be deleted before a thread is free."""

    key: tuple[TopicKey, int]
    partition: PartitionLog
    offset: int
    max_bytes: int
    stable_end: int | None  # for who reads committed records only


class _Found(NamedTuple):
    part: Slice | ErrorCode | ChunkOf | None
    aborted: list[AbortedTransaction] | None = None


@serves(FetchRequest, first=4, last=18)
def fetch(
    broker: Broker, request: FetchRequest, context: RequestContext
) -> Answer | Awaitable[Answer]:
    by_id = context.api_version >= IDS_SINCE
    try:
        session = broker.fetch_sessions.session_for(request, by_id=by_id, owner=context.principal)
    except ApiError as error:
        return FetchResponse(error_code=error.code)
    committed_only = request.isolation_level == READ_COMMITTED
    work = _Fetch(broker, request, context, session, by_id, committed_only)
    to_search = _look(work)
    if not to_search and (_is_enough(work) or request.max_wait_ms <= 0):
        return _respond(work)
    return _fetch(work, to_search)


async def _fetch(work: _Fetch, to_search: list[_Lookup]) -> FetchResponse:
    try:
        if to_search:
            await _search(work, to_search)
        if not _is_enough(work) and work.request.max_wait_ms > 0:
            await _wait(work)
            to_search = _look(work)
            if to_search:
                await _search(work, to_search)
    except BaseException:  # the connection is closed: nothing else releases what is pinned
        _let_go(work)
        raise
    return _respond(work)


def _look(work: _Fetch) -> list[_Lookup]:
    """Takes what is available without touching the disk; returns what has to be searched for."""
    to_search: list[_Lookup] = []
    for key, fetched in work.session.partitions.items():
        wanted = fetched.wanted
        try:
            _require(work, fetched)
            partition = _partition(work, fetched)
            check_epoch(work.broker, wanted.current_leader_epoch)
            partition.check_offset(wanted.fetch_offset)
        except ApiError as error:
            work.found[key] = error.code
            continue
        except OffsetOutOfRange:
            _count_missed(work, partition, wanted.fetch_offset)
            work.found[key] = ErrorCode.OFFSET_OUT_OF_RANGE
            continue
        if wanted.fetch_offset >= _readable_end(work, partition):
            continue
        if work.remaining_bytes <= 0 and work.found_bytes:
            continue
        limit_bytes = min(wanted.partition_max_bytes, work.remaining_bytes)
        part = None
        if not work.committed_only or _is_plain(partition, wanted.fetch_offset):
            part = partition.read_recent(wanted.fetch_offset, limit_bytes)
        if part is None:
            stable_end = partition.last_stable_offset if work.committed_only else None
            to_search.append(
                _Lookup(key, partition, wanted.fetch_offset, wanted.partition_max_bytes, stable_end)
            )
        else:
            _take(work, key, partition, part)
    return to_search


def _readable_end(work: _Fetch, partition: PartitionLog) -> int:
    return partition.last_stable_offset if work.committed_only else partition.high_watermark


def _is_plain(partition: PartitionLog, offset: int) -> bool:
    """Whether no transaction, open or aborted, concerns who reads from `offset` on."""
    is_stable = partition.last_stable_offset == partition.high_watermark
    return is_stable and not partition.may_hold_aborted(offset)


async def _search(work: _Fetch, lookups: list[_Lookup]) -> None:
    """Looks the rest up in the indexes, in a thread."""
    is_empty = work.found_bytes == 0
    found = await work.broker.store.in_reader(_find_all, lookups, work.remaining_bytes, is_empty)
    for lookup, (part, aborted) in zip(lookups, found, strict=True):
        if isinstance(part, Slice):
            _take(work, lookup.key, lookup.partition, part)
        elif isinstance(part, ChunkOf):
            work.found[lookup.key] = _wanted_from_archive(lookup.partition, part)
        elif part is not None:
            work.found[lookup.key] = part
        if aborted:
            work.aborted[lookup.key] = aborted


def _wanted_from_archive(partition: PartitionLog, chunk: ChunkOf) -> ChunkOf | ErrorCode:
    """The chunk, if it is on its way: the partition's waiters will hear of it."""
    try:
        if partition.archive is not None:
            partition.archive.chunks.want(chunk)
    except ArchiveUnavailable:
        return ErrorCode.KAFKA_STORAGE_ERROR
    except CorruptLog:
        return ErrorCode.CORRUPT_MESSAGE
    return chunk


def _find_all(lookups: list[_Lookup], remaining_bytes: int, is_empty: bool) -> list[_Found]:
    """(worker)"""
    found: list[_Found] = []
    for lookup in lookups:
        if remaining_bytes <= 0 and not is_empty:
            found.append(_Found(None))
            continue
        limit_bytes = max(min(lookup.max_bytes, remaining_bytes), 0)
        try:
            part, aborted = _find(lookup, limit_bytes)
        except CorruptLog:
            found.append(_Found(ErrorCode.CORRUPT_MESSAGE))
            continue
        except NotCached as missing:
            found.append(_Found(missing.chunk))
            continue
        except ArchiveUnavailable:
            found.append(_Found(ErrorCode.KAFKA_STORAGE_ERROR))
            continue
        # Larger than its limit is only the first batch of a response (KIP-74).
        if part is not None and part.size_bytes > limit_bytes and not is_empty:
            part = None
        found.append(_Found(part, aborted))
        if part is not None:
            remaining_bytes -= part.size_bytes
            is_empty = False
    return found


def _find(
    lookup: _Lookup, limit_bytes: int
) -> tuple[Slice | None, list[AbortedTransaction] | None]:
    """(worker)"""
    _, partition, offset, _, stable_end = lookup
    if stable_end is None:
        return partition.find(offset, limit_bytes), None
    part = partition.find(offset, limit_bytes, stable_end)
    if part is None:
        return None, None
    end = part.next_offset if part.next_offset >= 0 else stable_end
    return part, partition.aborted_transactions(offset, end)


def _require(work: _Fetch, fetched: FetchedPartition) -> None:
    authorizer, topic = work.broker.authorizer, fetched.topic
    if not authorizer.enabled:
        return
    if isinstance(topic, str):
        authorizer.require(work.context, Operation.READ, ResourceType.TOPIC, topic)
    else:
        name = work.broker.topic_name(topic)
        authorizer.require(work.context, Operation.READ, ResourceType.TOPIC, name, topic_id=topic)


def _partition(work: _Fetch, fetched: FetchedPartition) -> PartitionLog:
    name = (
        fetched.topic if isinstance(fetched.topic, str) else work.broker.topic_name(fetched.topic)
    )
    return work.broker.partition(name, fetched.wanted.partition)


def _take(work: _Fetch, key: tuple[TopicKey, int], partition: PartitionLog, part: Slice) -> None:
    if partition.pin(part):
        work.found[key] = part
        work.found_bytes += part.size_bytes
    elif work.session.partitions[key].wanted.fetch_offset < partition.log_start_offset:
        work.found[key] = ErrorCode.OFFSET_OUT_OF_RANGE
    # Else its files made way for others; it is archived, and looked for again.


def _let_go(work: _Fetch) -> None:
    for part in work.found.values():
        if isinstance(part, Slice):
            part.release()
    work.found.clear()
    work.aborted.clear()
    work.found_bytes = 0


def _is_enough(work: _Fetch) -> bool:
    if work.found_bytes >= work.request.min_bytes or not work.session.partitions:
        return True
    return any(isinstance(found, ErrorCode) for found in work.found.values())


async def _wait(work: _Fetch) -> None:
    """Lets go of what was found, until as much as is missing has come, or the time is over."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    missing_bytes = work.request.min_bytes - work.found_bytes

    def wake(size_bytes: int) -> None:
        nonlocal missing_bytes
        missing_bytes -= size_bytes
        if missing_bytes <= 0 and not future.done():
            future.set_result(None)

    partitions: list[PartitionLog] = []
    for key, fetched in work.session.partitions.items():
        try:
            partition = _partition(work, fetched)
        except ApiError:
            continue
        partitions.append(partition)
        _waiters(work, partition).add(wake)
        if _readable_end(work, partition) > fetched.wanted.fetch_offset and key not in work.found:
            wake(1)  # it came since the last look; how much of it does not matter
    _let_go(work)
    timer = loop.call_later(work.request.max_wait_ms / 1000, wake, work.request.min_bytes)
    try:
        await future
    finally:
        timer.cancel()
        for partition in partitions:
            _waiters(work, partition).discard(wake)


def _waiters(work: _Fetch, partition: PartitionLog) -> set[Callable[[int], None]]:
    if work.committed_only:
        if partition.stable_waiters is None:
            partition.stable_waiters = set()
        return partition.stable_waiters
    if partition.waiters is None:
        partition.waiters = set()
    return partition.waiters


def _count_missed(work: _Fetch, partition: PartitionLog, offset: int) -> None:
    if offset < partition.log_start_offset:
        missed = partition.log_start_offset - offset
        work.broker.metrics.missed_records[partition.topic] += missed


def _respond(work: _Fetch) -> FetchResponse:
    work.broker.quotas.charge_bytes(work.context, CONSUMER_BYTES, work.found_bytes)
    topics: dict[TopicKey, FetchResponseFetchableTopicResponse] = {}
    served: list[tuple[TopicKey, int]] = []
    for key, partition in work.session.partitions.items():
        data = _partition_data(work, key, partition)
        if data is None:
            continue
        if isinstance(work.found.get(key), Slice):
            served.append(key)
        answers = topics.get(partition.topic)
        if answers is None:
            answers = topics[partition.topic] = FetchResponseFetchableTopicResponse()
            if isinstance(partition.topic, str):
                answers.topic = partition.topic
            else:
                answers.topic_id = partition.topic
        answers.partitions.append(data)
    for key in served:
        work.session.served_last(key)
    return FetchResponse(session_id=work.session.id, responses=list(topics.values()))


def _partition_data(
    work: _Fetch, key: tuple[TopicKey, int], fetched: FetchedPartition
) -> FetchResponsePartitionData | None:
    """What the response says of a partition; None if it may be left out."""
    found = work.found.get(key)
    data = FetchResponsePartitionData(
        partition_index=fetched.wanted.partition,
        aborted_transactions=_aborted(work, key) if work.committed_only else None,
    )
    if isinstance(found, ErrorCode):
        data.error_code = found
        data.high_watermark = -1
    try:
        partition = _partition(work, fetched)
    except ApiError as error:
        data.error_code = data.error_code or error.code
        data.high_watermark = -1
        return data
    if not data.error_code or found == ErrorCode.OFFSET_OUT_OF_RANGE:
        data.high_watermark = partition.high_watermark
        data.last_stable_offset = partition.last_stable_offset
        data.log_start_offset = partition.log_start_offset
    if isinstance(found, Slice):
        data.records = found
        work.broker.metrics.fetched_bytes[partition.topic] += found.size_bytes
    # The last stable offset never moves without one of the other two.
    news = (
        data.error_code
        or isinstance(found, Slice)
        or data.high_watermark != fetched.sent_high_watermark
        or data.log_start_offset != fetched.sent_log_start_offset
    )
    if work.session.is_incremental and not news:
        return None
    fetched.sent_high_watermark = data.high_watermark
    fetched.sent_log_start_offset = data.log_start_offset
    return data


def _aborted(work: _Fetch, key: tuple[TopicKey, int]) -> list[FetchResponseAbortedTransaction]:
    return [
        FetchResponseAbortedTransaction(
            producer_id=transaction.producer_id, first_offset=transaction.first_offset
        )
        for transaction in work.aborted.get(key, ())
    ]
