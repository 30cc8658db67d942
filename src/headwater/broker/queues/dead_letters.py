"""Dead letters: records that a group gave up on go to `<topic>.dlq`, with their origin and cause.

    archiving, durable ──▶ appended to <topic>.dlq, durable ──▶ archived, durable

Exactly once, also over a crash: whatever is found in state "archiving" after a start may have been
copied already, so the dead letters since then are looked through for it first. While a copy fails
(the disk is full, the topic cannot be made) the records stay "archiving": no consumer gets them,
they are not lost, and the copy is tried again, after one second and then ever longer.

Headers that are added: `headwater.dlq.cause`, `.topic`, `.partition`, `.offset`, `.group`,
`.deliveries`, `.timestamp` (the record's own, in ms; the dead letter's is the time of its death).
Records that cannot be read, of one batch and one death, are one letter: with `.error`, and with
`.last_offset` behind `.offset`. A batch may claim any number of records, and has as many objects
only if it holds them.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.broker.queues.read_ahead import LocatedBatch, ReadAhead, read_ahead, read_batch
from headwater.broker.queues.share_partition import DEAD_LETTERS_SUFFIX, SharePartition
from headwater.broker.queues.window import Span
from headwater.clock import sleep
from headwater.errors import CorruptLog, HeadwaterError, MalformedMessage
from headwater.log.partitions.commit import when_durable
from headwater.log.partitions.partition import PartitionLog
from headwater.log.partitions.timestamps import first_at_or_after
from headwater.protocol import records
from headwater.protocol.records import Record

if TYPE_CHECKING:
    from headwater.broker.broker import Broker
    from headwater.broker.queues.queues import Queues

logger = logging.getLogger(__name__)

REJECTED = "rejected by consumer"
PREFIX = "headwater.dlq."
DEAD_LETTER_CONFIGS = {"retention.ms": "-1"}  # they wait for a person
RETRY_S, RETRY_MAX_S = 1.0, 60.0
COPY_BYTES = 512 << 10  # at a time, as they are stored
COPY_RECORDS = 5_000  # at a time: with their headers they are large, however small they were
CLOCK_SKEW_MS = 60_000  # by which the wall clock may have been put back

_OFFSET_DIGITS = 20

# Offsets that have a letter, each with the last one that its letter stands for.
_Copied = dict[int, int]


@dataclass(slots=True)
class Death:
    """Neighbouring records that died of the same cause."""

    span: Span
    cause: str
    copied_until: int = -1  # up to where their letters are in the log
    is_resumed: bool = False  # begun by the last process, which may have copied some


class DeadLetters:
    """Copies one share partition's records after the other, each in its order."""

    def __init__(self, broker: "Broker", queues: "Queues") -> None:
        self._broker = broker
        self._queues = queues
        self._waiting: dict[SharePartition, deque[Death]] = {}
        self._tasks: dict[SharePartition, asyncio.Task[None]] = {}
        self._copied: dict[SharePartition, _Copied] = {}  # by the last process

    def bury(self, share: SharePartition, deaths: list[Death]) -> None:
        """Takes them in charge: they are "archiving", durably."""
        if not deaths:
            return
        share.archiving_since_ms = share.archiving_since_ms or self._broker.clock.now_ms()
        self._waiting.setdefault(share, deque()).extend(deaths)
        if share not in self._tasks:
            self._tasks[share] = asyncio.create_task(self._work(share))

    async def close(self) -> None:
        """Stops; what is not copied yet is found again at the next start."""
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _work(self, share: SharePartition) -> None:
        waiting = self._waiting[share]
        retry_s = RETRY_S
        while waiting and not share.is_deleted and not share.log.deleted:
            try:
                await self._copy(share, waiting[0])
            except Exception as error:  # whatever it is: without a copy they are never passed
                logger.warning(
                    "dead letters of %s-%d for %s are not copied yet: %s",
                    share.log.topic, share.index, share.group_id, error,
                    exc_info=None if isinstance(error, HeadwaterError | OSError) else error,
                )  # fmt: skip
                await sleep(self._broker.clock, retry_s)
                retry_s = min(retry_s * 2, RETRY_MAX_S)
                continue
            waiting.popleft()
            retry_s = RETRY_S
        # In the same turn as the last look at `waiting`: who buries next needs a new task.
        del self._waiting[share], self._tasks[share]
        self._copied.pop(share, None)
        share.archiving_since_ms = 0

    async def _copy(self, share: SharePartition, death: Death) -> None:
        log = await self._log_for(share)
        store = self._broker.store
        copied: _Copied = {}
        if death.is_resumed:
            if share not in self._copied:
                since_ms = share.archiving_since_ms - CLOCK_SKEW_MS
                found = await store.in_reader_and_archive(_copied, log, share, since_ms)
                self._copied[share] = found
            copied = self._copied[share]
        first = death.span.first
        while first <= death.span.last:
            letters, until = await store.in_reader_and_archive(
                _letters, share, death, first, copied
            )
            letters = [
                letter
                for letter in letters
                if letter.offset not in copied and letter.offset >= death.copied_until
            ]
            if letters:
                batch = await store.in_reader(_batch, letters, self._broker.clock.now_ms())
                await _append(log, batch)
                share.dead_letters += len(letters)
                self._broker.metrics.dead_letters[share.group_id, share.log.topic] += len(letters)
            death.copied_until = until
            await self._queues.buried(share, first, until - 1)
            first = until

    async def _log_for(self, share: SharePartition) -> PartitionLog:
        """Where the dead letters go: the same partition of `<topic>.dlq`, which is made."""
        name = share.log.topic + DEAD_LETTERS_SUFFIX
        topic = self._broker.topic(name)
        if topic is None:
            source = self._broker.topic(share.log.topic)
            count = source.partitions if source is not None else share.index + 1
            topic = await self._broker.to_the_end(
                self._broker.create_topic(name, count, DEAD_LETTER_CONFIGS)
            )
        return self._broker.partition(name, share.index % topic.partitions)


def _letters(
    share: SharePartition, death: Death, first: int, copied: _Copied
) -> tuple[list[Record], int]:
    """(worker) Some dead letters from `first` on, and the offset up to which they go.

    Records that are no longer in the log have none.
    """
    span = death.span
    ahead = read_ahead(share.log, first, False)
    if ahead is None:
        return [], span.last + 1
    letters: list[Record] = []
    until, read_bytes = first, 0
    for located in ahead.batches[ahead.index_of(first) :]:
        if located.base_offset > span.last:
            return letters, span.last + 1
        if not located.is_hidden:
            read_bytes += located.size_bytes
            for record, last in _dead(share.log, ahead, located, first, span.last, copied):
                letters.append(_letter(share, death, record))
                if len(letters) == COPY_RECORDS:
                    return letters, last + 1
        until = located.last_offset + 1
        if read_bytes >= COPY_BYTES:
            break
    return letters, min(until, span.last + 1)


def _dead(
    log: PartitionLog,
    ahead: ReadAhead,
    located: LocatedBatch,
    first: int,
    last: int,
    copied: _Copied,
) -> Iterator[tuple[Record, int]]:
    """The records of first..last in a batch, each with the last offset that it stands for.

    From where the batch cannot be read, one stands for all: no consumer could read them either,
    and their position and the cause are what is left.
    """
    first, last = max(first, located.base_offset), min(last, located.last_offset)
    try:
        for record in records.records_of(read_batch(log, ahead, located)):
            if record.offset > last:
                return
            if record.offset >= first:
                yield record, record.offset
                first = record.offset + 1
    except (CorruptLog, MalformedMessage) as error:
        while first in copied:
            first = copied[first] + 1
        if first <= last:
            about = {"error": str(error), "last_offset": str(last)}
            headers = [(PREFIX + name, value.encode()) for name, value in about.items()]
            yield Record(first, -1, None, None, headers), last


def _letter(share: SharePartition, death: Death, record: Record) -> Record:
    about = {
        "cause": death.cause,
        "topic": share.log.topic,
        "partition": str(share.index),
        "offset": str(record.offset),
        "group": share.group_id,
        "deliveries": str(death.span.deliveries),
        "timestamp": str(record.timestamp_ms),
    }
    added = [(PREFIX + name, value.encode()) for name, value in about.items()]
    return record._replace(headers=[*record.headers, *added])


def _batch(letters: list[Record], now_ms: int) -> bytearray:
    """(worker)"""
    return records.build_batch([letter._replace(timestamp_ms=now_ms) for letter in letters])


async def _append(log: PartitionLog, batch: bytearray) -> None:
    header = records.read_header(batch)
    await when_durable(lambda done: log.append(memoryview(batch), header, done))


def _copied(log: PartitionLog, share: SharePartition, since_ms: int) -> _Copied:
    """(worker) The offsets of the share partition that have a dead letter since then."""
    found = first_at_or_after(log, since_ms)
    if found is None:
        return {}
    mine = {
        PREFIX + "topic": share.log.topic.encode(),
        PREFIX + "partition": str(share.index).encode(),
        PREFIX + "group": share.group_id.encode(),
    }.items()
    copied: _Copied = {}
    for record in _records_from(log, found.offset):
        about = dict(record.headers)
        offset = about.get(PREFIX + "offset") or b""
        if mine <= about.items() and offset.isdigit():
            last = about.get(PREFIX + "last_offset") or b""  # of a readable one, its producer's
            is_offset = last.isdigit() and len(last) < _OFFSET_DIGITS
            copied[int(offset)] = max(int(offset), int(last) if is_offset else 0)
    return copied


def _records_from(log: PartitionLog, offset: int) -> Iterator[Record]:
    """(worker)"""
    while (ahead := read_ahead(log, offset, False)) is not None:
        for located in ahead.batches:
            if not located.is_hidden:
                yield from records.records_of(read_batch(log, ahead, located))
        offset = ahead.last_offsets[-1] + 1


def deaths_of(spans: list[Span], rejected: list[tuple[int, int]], limit: int) -> list[Death]:
    """With the cause of each: a consumer's word, or too many deliveries."""
    return [
        Death(
            span,
            REJECTED
            if any(first <= span.first <= last for first, last in rejected)
            else f"delivery count {max(span.deliveries, limit)} reached",
        )
        for span in spans
    ]


def unfinished(spans: list[Span], limit: int) -> list[Death]:
    """What the last process had begun with; the causes follow from the delivery counts."""
    rejected = [(span.first, span.last) for span in spans if span.deliveries < limit]
    deaths = deaths_of(spans, rejected, limit)
    for death in deaths:
        death.is_resumed = True
    return deaths
