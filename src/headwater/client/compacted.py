"""The latest value of each key of a topic: all that is committed, and nothing else.

A reader by the book (read_committed) sees nothing behind the last stable offset, which the oldest
open transaction holds back, whoever's it is. Here a process looks for what it has committed itself,
and must find it although another one has crashed in the midst of a transaction. So each partition
is read in two stretches:

    start ──── as the book says ────▶ last stable offset ──── markers decide ────▶ high watermark
           the broker tells which                        a commit marker makes its producer's
           transactions were aborted                     records count; no marker: still open

The second stretch has all its markers, for compaction does not go beyond the last stable offset.
"""

from collections.abc import Iterator
from typing import Final

from headwater.client.cluster import DEFAULT_PATIENCE_S, Cluster, Patience, error_name
from headwater.errors import MalformedMessage, RequestRefused
from headwater.protocol import records
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.fetch import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchResponse,
    FetchResponseAbortedTransaction,
    FetchResponsePartitionData,
)
from headwater.protocol.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestListOffsetsPartition,
    ListOffsetsRequestListOffsetsTopic,
    ListOffsetsResponse,
    ListOffsetsResponseListOffsetsPartitionResponse,
)
from headwater.protocol.records import CONTROL, TRANSACTIONAL, BatchHeader
from headwater.settings import ClientSettings

_EARLIEST, _LATEST = -2, -1
_UNCOMMITTED, _COMMITTED = 0, 1
_CONSUMER: Final = -1
_MAX_WAIT_MS: Final = 500
_MAX_BYTES: Final = 4 << 20

_Found = dict[bytes, tuple[int, bytes | None]]  # key to offset and value


def read_committed_latest(
    bootstrap: str,
    login: ClientSettings,
    topic: str,
    *,
    patience_s: float = DEFAULT_PATIENCE_S,
) -> dict[bytes, bytes]:
    """All that was committed when this was called. Nothing if the topic does not exist. A
    tombstone removes its key; records without a key do not count.
    """
    cluster = Cluster(bootstrap, login, patience_s=patience_s)
    latest: dict[bytes, bytes] = {}
    try:
        for partition in range(cluster.find_partitions(topic) or 0):
            found = _Partition(cluster, topic, partition).read()
            latest |= {key: value for key, (_, value) in found.items() if value is not None}
    finally:
        cluster.close()
    return latest


class _Partition:
    def __init__(self, cluster: Cluster, topic: str, partition: int) -> None:
        self._cluster = cluster
        self._topic = topic
        self._partition = partition
        self._found: _Found = {}
        self._pending: dict[int, _Found] = {}  # of transactions without a marker, by producer id

    def read(self) -> _Found:
        start = self._offset(_EARLIEST, _COMMITTED)
        stable = self._offset(_LATEST, _COMMITTED)
        end = self._offset(_LATEST, _UNCOMMITTED)
        at = self._read(start, stable, _COMMITTED)
        self._read(at, end, _UNCOMMITTED)
        return self._found

    def _read(self, at: int, end: int, isolation: int) -> int:
        """From `at` to `end`, and perhaps further; how far."""
        patience = self._patience()
        while at < end:
            data = self._fetch(at, isolation, patience)
            if data is None:  # retention has passed us
                patience.wait(f"offset {at} is gone")
                at = max(at, self._offset(_EARLIEST, _COMMITTED))
                continue
            aborted = _Aborted(data.aborted_transactions or [])
            before = at
            for header, batch in _batches(data.records):
                self._take(header, batch, None if isolation == _UNCOMMITTED else aborted)
                at = header.last_offset + 1
            if at > before:
                patience.progressed()
            else:
                patience.wait(f"nothing behind offset {at} of {end}")
        return at

    def _take(self, header: BatchHeader, batch: memoryview, aborted: "_Aborted | None") -> None:
        if header.attributes & CONTROL:
            marker = records.read_marker(batch)
            if marker is None:
                return
            pending = self._pending.pop(header.producer_id, {})
            if marker.commit:
                self._add(pending, self._found)
            elif aborted is not None:
                aborted.end(header.producer_id)
        elif aborted is not None:
            if not (header.attributes & TRANSACTIONAL and aborted.has(header)):
                self._add(_latest_of(batch), self._found)
        elif header.attributes & TRANSACTIONAL:
            self._add(_latest_of(batch), self._pending.setdefault(header.producer_id, {}))
        else:
            self._add(_latest_of(batch), self._found)

    def _add(self, newer: _Found, found: _Found) -> None:
        for key, (offset, value) in newer.items():
            # A transaction may end behind another one that began later.
            if key not in found or found[key][0] < offset:
                found[key] = (offset, value)

    def _offset(self, timestamp: int, isolation: int) -> int:
        wanted = ListOffsetsRequestListOffsetsPartition(
            partition_index=self._partition, timestamp=timestamp
        )
        topic = ListOffsetsRequestListOffsetsTopic(name=self._topic, partitions=[wanted])
        answer = self._cluster.ask_leader(
            self._topic,
            self._partition,
            ListOffsetsRequest(replica_id=_CONSUMER, isolation_level=isolation, topics=[topic]),
            ListOffsetsResponse,
            self._patience(),
            first=2,
            last=6,
            code_of=lambda answer: _one_offset(answer).error_code,
        )
        result = _one_offset(answer)
        self._refuse(result.error_code)
        return result.offset

    def _fetch(
        self, at: int, isolation: int, patience: Patience
    ) -> FetchResponsePartitionData | None:
        wanted = FetchRequestFetchPartition(
            partition=self._partition, fetch_offset=at, partition_max_bytes=_MAX_BYTES
        )
        request = FetchRequest(
            max_wait_ms=_MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=_MAX_BYTES,
            isolation_level=isolation,
            topics=[FetchRequestFetchTopic(topic=self._topic, partitions=[wanted])],
        )
        answer = self._cluster.ask_leader(
            self._topic,
            self._partition,
            request,
            FetchResponse,
            patience,
            first=4,
            last=12,
            code_of=lambda answer: answer.error_code or _one_partition(answer).error_code,
        )
        self._refuse(answer.error_code)
        data = _one_partition(answer)
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return None
        self._refuse(data.error_code)
        return data

    def _patience(self) -> Patience:
        return self._cluster.patience(f"topic {self._topic} cannot be read to its end")

    def _refuse(self, code: int) -> None:
        if code:
            hint = ""
            if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                hint = f"`headwater acl add USER --allow read --topic {self._topic}` grants it"
            raise RequestRefused(
                f"topic {self._topic} cannot be read", detail=error_name(code), hint=hint
            )


class _Aborted:
    """Which batches of one answer belong to transactions that were aborted."""

    def __init__(self, transactions: list[FetchResponseAbortedTransaction]) -> None:
        self._later = sorted(
            ((each.first_offset, each.producer_id) for each in transactions), reverse=True
        )
        self._producers: set[int] = set()  # those in an aborted transaction, at this batch

    def has(self, header: BatchHeader) -> bool:
        while self._later and self._later[-1][0] <= header.last_offset:
            self._producers.add(self._later.pop()[1])
        return header.producer_id in self._producers

    def end(self, producer_id: int) -> None:
        self._producers.discard(producer_id)


def _batches(data: memoryview | None) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The whole ones; the last may be cut short."""
    at = 0
    while data is not None and len(data) - at >= records.HEADER_BYTES:
        header = records.read_header(data, at)
        if not records.header_is_sane(header):
            raise MalformedMessage("what was fetched is no batch")
        if header.size_bytes > len(data) - at:
            return
        batch = data[at : at + header.size_bytes]
        records.check_stored(batch)
        yield header, batch
        at += header.size_bytes


def _latest_of(batch: memoryview) -> _Found:
    return {
        record.key: (record.offset, record.value)
        for record in records.records_of(batch)
        if record.key is not None
    }


def _one_offset(answer: ListOffsetsResponse) -> ListOffsetsResponseListOffsetsPartitionResponse:
    try:
        return answer.topics[0].partitions[0]
    except IndexError:
        raise MalformedMessage("an answer without the partition that was asked for") from None


def _one_partition(answer: FetchResponse) -> FetchResponsePartitionData:
    try:
        return answer.responses[0].partitions[0]
    except IndexError:
        raise MalformedMessage("an answer without the partition that was asked for") from None
