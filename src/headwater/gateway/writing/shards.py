"""Shards of requests with an Idempotency-Key: their records and markers in Kafka transactions.

The markers are in the topic `__headwater_requests`:

    key                                          value (JSON)
    16 bytes: a hash of caller, topic and key    {"request": "sha256…", "answer": […]}

A shard is one partition of it, with a transactional id of its own. Who writes to a shard fences it
first and then reads all its markers (ARCHITECTURE.md, invariant 8): so until it is fenced itself,
by another gateway or by this one after a restart, what it has read is all there is. A request that
finds its marker writes nothing. One that was cut off, by the death of the gateway or of the broker,
has either no marker and no records, or both.

Markers are deleted after a day, by retention. Their keys are held in memory, about 150 bytes each,
so their number is bounded: when a shard is full, new keys are refused, and repetitions answered.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from headwater.client.reading.fetching import EARLIEST, LATEST, Fetcher
from headwater.client.writing.batches import BatchBuilder, partition_of
from headwater.client.writing.transactions import TransactionalProducer
from headwater.errors import BrokerUnreachable, Fenced, HeadwaterError, NotReady
from headwater.gateway.answers import Refusal
from headwater.gateway.writing.delivery import Delivered, Stretch
from headwater.inspect.record_json import Record
from headwater.settings import ClientSettings

TOPIC: Final = "__headwater_requests"
SHARDS: Final = 4
CONFIGS: Final = {
    "cleanup.policy": "delete",
    "retention.ms": str(24 * 3600 * 1000),
    "segment.ms": str(3600 * 1000),
}
PATIENCE_S: Final = 15.0
_TRANSACTION_TIMEOUT_MS: Final = 60_000
_ATTEMPTS: Final = 5
_PRUNE_EVERY: Final = 1000
MOST_MARKERS: Final = 250_000  # of a shard
_PRUNE_PAUSE_S: Final = 1.0  # of a full shard
# Records of several requests share a batch up to so many bytes: then their offsets are certain.
_SHARED_BYTES: Final = 500_000
_OVERHEAD_BYTES: Final = 50  # of a record in a batch, about


class Request(NamedTuple):
    """A request with an Idempotency-Key."""

    identity: bytes  # of caller, topic and key
    fingerprint: str  # of all that it asks for
    topic: str
    partitions: int
    records: Sequence[Record]


# What was written, and whether that was an earlier time; or why nothing was.
Result = tuple[Delivered, bool] | HeadwaterError


class Shard:
    """One partition of markers, and the transactions of their requests. Used by one thread at a
    time.
    """

    def __init__(self, bootstrap: str, login: ClientSettings, number: int) -> None:
        self._bootstrap = bootstrap
        self._login = login
        self._number = number
        self._producer: TransactionalProducer | None = None
        self._fetcher: Fetcher | None = None
        self._closing = threading.Lock()
        self._is_closed = False
        self._written = 0
        self._pruned_s = float("-inf")
        self.markers: dict[bytes, int] = {}  # offset by identity, the oldest first

    def close(self) -> None:
        with self._closing:
            self._is_closed = True
            self._disconnect()

    def write(self, requests: Sequence[Request]) -> list[Result]:
        """All that are new in one transaction, if they fit together. Requests with the same key
        are written once. Raises nothing.
        """
        results: dict[int, Result] = {}
        while len(results) < len(requests):
            left = [number for number in range(len(requests)) if number not in results]
            group = _fitting(requests, left)
            try:
                written = self._retried([requests[number] for number in group])
            except (BrokerUnreachable, NotReady) as error:
                written = [error] * len(group)
            except HeadwaterError:  # one of them stands in the way of the others
                written = [self._alone(requests[number]) for number in group]
            results |= dict(zip(group, written, strict=True))
        return [results[number] for number in range(len(requests))]

    def _alone(self, request: Request) -> Result:
        try:
            (result,) = self._retried([request])
        except HeadwaterError as error:
            return error
        return result

    def _retried(self, requests: Sequence[Request]) -> list[Result]:
        for _ in range(_ATTEMPTS):
            try:
                producer = self._opened()
                found = [self._found(request) for request in requests]
                new = [
                    request
                    for request, stored in zip(requests, found, strict=True)
                    if stored is None
                ]
                if new and not self._has_room(len(new)):
                    return [_full() if one is None else (one, True) for one in found]
                written = iter(self._write_new(producer, new) if new else ())
                return [(next(written), False) if one is None else (one, True) for one in found]
            except (Fenced, _Unreported):
                self._disconnect()  # another gateway has taken the shard: its markers count
            except BrokerUnreachable:
                self._disconnect()  # whether the transaction was committed is found out next time
                raise
        raise NotReady("other gateways write to the same shard of requests", hint="try again")

    def _opened(self) -> TransactionalProducer:
        if self._producer is not None:
            return self._producer
        producer = TransactionalProducer(
            self._bootstrap,
            f"headwater-gateway-{self._number}",
            login=self._login,
            transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS,
            patience_s=PATIENCE_S,
        )
        with self._closing:
            if self._is_closed:
                producer.close()
                raise BrokerUnreachable("the gateway is stopping")
            self._producer = producer
            self._fetcher = Fetcher(self._bootstrap, self._login, patience_s=PATIENCE_S)
        try:
            producer.fence()
            self._load()
        except HeadwaterError:
            self._disconnect()
            raise
        return producer

    def _disconnect(self) -> None:
        producer, self._producer = self._producer, None
        fetcher, self._fetcher = self._fetcher, None
        if producer is not None:
            producer.close()
        if fetcher is not None:
            fetcher.close()

    # Markers

    def _load(self) -> None:
        assert self._fetcher is not None
        at = [(TOPIC, self._number)]
        start = self._fetcher.offsets(at, EARLIEST)[at[0]]
        end = self._fetcher.offsets(at, LATEST)[at[0]]
        self.markers = {
            record.key: record.offset
            for record in self._fetcher.records(TOPIC, self._number, start, end)
            if record.key is not None
        }

    def _has_room(self, count: int) -> bool:
        if len(self.markers) + count <= MOST_MARKERS:
            return True
        if time.monotonic() - self._pruned_s > _PRUNE_PAUSE_S:
            self._prune()
        return len(self.markers) + count <= MOST_MARKERS

    def _prune(self) -> None:
        """Drops what retention has deleted."""
        assert self._fetcher is not None
        self._pruned_s = time.monotonic()
        at = [(TOPIC, self._number)]
        start = self._fetcher.offsets(at, EARLIEST)[at[0]]
        for identity, offset in list(self.markers.items()):
            if offset >= start:
                return
            del self.markers[identity]

    def _found(self, request: Request) -> Delivered | None:
        offset = self.markers.get(request.identity)
        if offset is None:
            return None
        assert self._fetcher is not None
        at = [(TOPIC, self._number)]
        if offset < self._fetcher.offsets(at, EARLIEST)[at[0]]:
            del self.markers[request.identity]
            return None
        (marker,) = self._fetcher.records(TOPIC, self._number, offset, offset + 1)
        stored = orjson.loads(marker.value or b"{}")
        if stored["request"] != request.fingerprint:
            raise Refusal(
                422,
                "this Idempotency-Key was used for another request",
                hint="a new key for each new request; the same key for the same body and address",
            )
        return _from_json(stored["answer"])

    # Records

    def _write_new(
        self, producer: TransactionalProducer, requests: Sequence[Request]
    ) -> list[Delivered]:
        """All of them, in one transaction."""
        batches, places = _batches(requests)
        now_ms = time.time_ns() // 1_000_000
        try:
            ends = producer.send(batches)
            if any(end < 0 for end in ends.values()):
                raise _Unreported
            delivered = [_delivered(request, place, batches, ends)
                         for request, place in zip(requests, places, strict=True)]  # fmt: skip
            markers = BatchBuilder()
            for request, written in zip(requests, delivered, strict=True):
                value = {"request": request.fingerprint, "answer": _to_json(written)}
                markers.append(request.identity, orjson.dumps(value), (), now_ms)
            end = producer.send({(TOPIC, self._number): [markers]})[TOPIC, self._number]
            if end < 0:
                raise _Unreported
            producer.commit()
        except (Fenced, BrokerUnreachable, _Unreported):
            raise
        except HeadwaterError:
            self._abort(producer)
            raise
        for number, request in enumerate(requests):
            self.markers[request.identity] = end - len(requests) + number
            self._written += 1
            if self._written % _PRUNE_EVERY == 0:
                self._prune()
        return delivered

    def _abort(self, producer: TransactionalProducer) -> None:
        try:
            producer.abort()
        except HeadwaterError:
            self._disconnect()  # the next fence ends it


def _full() -> NotReady:
    return NotReady(
        f"{MOST_MARKERS * SHARDS:,} idempotency keys are stored, and no more fit",
        hint="they are deleted after a day; requests without a key are taken",
    )


class _Unreported(Exception):
    """The broker has not said at which offset records were stored, which may happen when an answer
    was lost. The transaction is given up, and its records are written by another one.
    """


_At = tuple[str, int]  # topic and partition


def _fitting(requests: Sequence[Request], left: Sequence[int]) -> list[int]:
    """Those of the requests that are left which can share a transaction: the first, and the next
    ones with other keys, while all records of a partition fit into one batch.
    """
    group: list[int] = []
    identities: set[bytes] = set()
    sizes: dict[_At, int] = {}
    for number in left:
        request = requests[number]
        if request.identity in identities:
            continue
        added: dict[_At, int] = {}
        for record, at in _placed(request):
            added[at] = added.get(at, 0) + _size_bytes(record)
        if group and any(
            sizes.get(at, 0) + size_bytes > _SHARED_BYTES for at, size_bytes in added.items()
        ):
            break
        for at, size_bytes in added.items():
            sizes[at] = sizes.get(at, 0) + size_bytes
        group.append(number)
        identities.add(request.identity)
    return group


def _placed(request: Request) -> Iterator[tuple[Record, _At]]:
    """Each record with its partition. Records without a key go to one partition of the request, so
    that they stay in order.
    """
    keyless = int.from_bytes(request.identity[1:5], "big") % request.partitions
    for record in request.records:
        at = record.partition
        if at is None:
            at = keyless if record.key is None else partition_of(record.key, request.partitions)
        yield record, (request.topic, at)


def _batches(
    requests: Sequence[Request],
) -> tuple[dict[_At, list[BatchBuilder]], list[dict[_At, tuple[int, int]]]]:
    """The batches of all partitions; and for each request, where its records begin among those of
    a partition, and how many they are.
    """
    now_ms = time.time_ns() // 1_000_000
    batches: dict[_At, list[BatchBuilder]] = {}
    counts: dict[_At, int] = {}
    places: list[dict[_At, tuple[int, int]]] = []
    for request in requests:
        place: dict[_At, tuple[int, int]] = {}
        for record, at in _placed(request):
            of_partition = batches.setdefault(at, [BatchBuilder()])
            stamp_ms = now_ms if record.timestamp_ms is None else record.timestamp_ms
            fields = (record.key, record.value, record.headers, stamp_ms)
            if not of_partition[-1].append(*fields):
                of_partition.append(BatchBuilder())
                of_partition[-1].append(*fields)
            first, count = place.get(at, (counts.get(at, 0), 0))
            place[at] = (first, count + 1)
            counts[at] = counts.get(at, 0) + 1
        places.append(place)
    return batches, places


def _delivered(
    request: Request,
    place: Mapping[_At, tuple[int, int]],
    batches: Mapping[_At, Sequence[BatchBuilder]],
    ends: Mapping[_At, int],
) -> Delivered:
    """Of several batches of a partition, which is then of one request only, the first offset is
    not certain: others may have written in between.
    """
    delivered = Delivered()
    for at, (first, count) in place.items():
        total = sum(batch.count for batch in batches[at])
        base = ends[at] - total
        is_certain = len(batches[at]) == 1
        delivered.stretches[at[1]] = Stretch(
            count, base + first if is_certain else -1, base + first + count - 1
        )
    return delivered


def _size_bytes(record: Record) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + _OVERHEAD_BYTES


def _to_json(delivered: Delivered) -> list[Any]:
    return [
        [partition, stretch.records, stretch.first, stretch.last]
        for partition, stretch in delivered.stretches.items()
    ]


def _from_json(stored: list[Any]) -> Delivered:
    return Delivered({partition: Stretch(*rest) for partition, *rest in stored})
