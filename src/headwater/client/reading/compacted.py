"""The latest value of each key of a topic: all that is committed, and nothing else.

A reader by the book (read_committed) sees nothing behind the last stable offset, which the oldest
open transaction of any producer holds back. Here a process looks for what it has committed itself,
and must find it although another one has crashed in the midst of a transaction. So each partition
is read in two stretches:

    start ──── as the book says ────▶ last stable offset ──── markers decide ────▶ high watermark
           the broker lists them                         a commit marker makes its producer's
           transactions were aborted                     records count; no marker: still open

The second range has all its markers, for compaction does not go beyond the last stable offset.
"""

from typing import Final

from headwater.client.cluster import DEFAULT_PATIENCE_S, Cluster, Patience
from headwater.client.offsets import COMMITTED, EARLIEST, LATEST, UNCOMMITTED, list_offsets
from headwater.client.reading.fetched import Aborted, one_partition, refuse, whole_batches
from headwater.protocol import records
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.fetch import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchResponse,
    FetchResponsePartitionData,
)
from headwater.protocol.records import CONTROL, TRANSACTIONAL, BatchHeader
from headwater.settings import ClientSettings

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
    followed = CommittedLatest(bootstrap, login, topic, patience_s=patience_s)
    try:
        return followed.read()
    finally:
        followed.close()


class CommittedLatest:
    """The same, asked for again and again: each `read` fetches what is new since the last one. To
    be used by one thread.
    """

    def __init__(
        self,
        bootstrap: str,
        login: ClientSettings,
        topic: str,
        *,
        patience_s: float = DEFAULT_PATIENCE_S,
    ) -> None:
        self._topic = topic
        self._cluster = Cluster(bootstrap, login, patience_s=patience_s)
        self._partitions: list[_Partition] = []

    def close(self) -> None:
        self._cluster.close()

    def read(self) -> dict[bytes, bytes]:
        """All that was committed when this was called."""
        number = self._cluster.find_partitions(self._topic) or 0
        partitions = self._partitions[:number]
        partitions += [
            _Partition(self._cluster, self._topic, n) for n in range(len(partitions), number)
        ]
        self._partitions = partitions
        latest: dict[bytes, bytes] = {}
        for partition in partitions:
            latest |= {
                key: value for key, (_, value) in partition.read().items() if value is not None
            }
        return latest


class _Partition:
    def __init__(self, cluster: Cluster, topic: str, partition: int) -> None:
        self._cluster = cluster
        self._topic = topic
        self._partition = partition
        self._at = 0  # where the second range begins
        self._found: _Found = {}
        self._pending: dict[int, _Found] = {}  # of transactions without a marker, by producer id

    def read(self) -> _Found:
        start = self._offset(EARLIEST, COMMITTED)
        stable = self._offset(LATEST, COMMITTED)
        end = self._offset(LATEST, UNCOMMITTED)
        if stable < self._at:  # the topic was deleted and created again
            self._at, self._found = 0, {}
        self._at = self._read(max(start, self._at), stable, COMMITTED)
        # It is read again next time, from where all of its markers are; what was found stays.
        self._pending = {}
        self._read(self._at, end, UNCOMMITTED)
        return self._found

    def _read(self, at: int, end: int, isolation: int) -> int:
        """From `at` to `end`, and perhaps further; how far."""
        patience = self._patience()
        while at < end:
            data = self._fetch(at, isolation, patience)
            if data is None:  # retention has passed us
                patience.wait(f"offset {at} is no longer there")
                at = max(at, self._offset(EARLIEST, COMMITTED))
                continue
            aborted = Aborted(data.aborted_transactions or [])
            before = at
            for header, batch in whole_batches(data.records):
                self._take(header, batch, None if isolation == UNCOMMITTED else aborted)
                at = header.last_offset + 1
            if at > before:
                patience.progressed()
            else:
                patience.wait(f"nothing behind offset {at} of {end}")
        return at

    def _take(self, header: BatchHeader, batch: memoryview, aborted: Aborted | None) -> None:
        if header.attributes & CONTROL:
            marker = records.read_marker(batch)
            if marker is None:
                return
            pending = self._pending.pop(header.producer_id, {})
            if marker.commit:
                self._add(pending, self._found)
            elif aborted is not None:
                aborted.end(header)
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

    def _offset(self, at: int, isolation: int) -> int:
        partition = (self._topic, self._partition)
        return list_offsets(self._cluster, [partition], at, isolation)[partition]

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
            code_of=lambda answer: answer.error_code or one_partition(answer).error_code,
        )
        refuse(answer.error_code, self._topic)
        data = one_partition(answer)
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return None
        refuse(data.error_code, self._topic)
        return data

    def _patience(self) -> Patience:
        return self._cluster.patience(f"topic {self._topic} cannot be read to its end")


def _latest_of(batch: memoryview) -> _Found:
    return {
        record.key: (record.offset, record.value)
        for record in records.records_of(batch)
        if record.key is not None
    }
