"""The batches of a Fetch response: which are whole, and which of them count."""

from collections.abc import Iterator
from typing import NamedTuple

from headwater.client.refusals import error_name
from headwater.errors import MalformedMessage, RequestRefused
from headwater.protocol import records
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.fetch import (
    FetchResponse,
    FetchResponseAbortedTransaction,
    FetchResponsePartitionData,
)
from headwater.protocol.records import CONTROL, INT64_MAX, TRANSACTIONAL, BatchHeader


class Fetched(NamedTuple):
    """The batches of a response whose records count, each with its position in `data`."""

    data: memoryview
    batches: list[tuple[BatchHeader, int]]


def counting_batches(
    data: FetchResponsePartitionData, start: int, *, end: int | None, committed: bool, name: str
) -> tuple[Fetched, int]:
    """The batches that count, and the offset behind the last whole one, whether it counts or
    not. Markers never count, aborted records only for a reader of uncommitted ones. Batches from
    `end` on are left out. Raises MalformedMessage, with the `name` of the partition.
    """
    aborted = Aborted(data.aborted_transactions or [])
    batches: list[tuple[BatchHeader, int]] = []
    position = 0
    behind = start
    try:
        for header, batch in whole_batches(data.records):
            if end is not None and header.base_offset >= end:
                behind = end
                break
            if header.last_offset >= behind:  # else the broker began too early
                is_first = behind == start
                if header.last_offset >= INT64_MAX or not (
                    is_first or header.base_offset >= behind
                ):
                    raise MalformedMessage("batches are not in order")
                if _is_counting(header, batch, aborted, committed=committed):
                    batches.append((header, position))
                behind = header.last_offset + 1
            if end is not None and behind >= end:
                break  # what lies behind is not in the range, damaged or not
            position += header.size_bytes
    except MalformedMessage as error:
        raise MalformedMessage(
            f"{name} cannot be read", detail=f"behind offset {behind}: {error}"
        ) from None
    return Fetched(data.records or memoryview(b""), batches), behind


def _is_counting(
    header: BatchHeader, batch: memoryview, aborted: "Aborted", *, committed: bool
) -> bool:
    if header.attributes & CONTROL:
        marker = records.read_marker(batch)
        if marker is not None and not marker.commit:
            aborted.end(header)
        return False
    if not committed or not header.attributes & TRANSACTIONAL:
        return True
    return not aborted.has(header)


def one_partition(answer: FetchResponse) -> FetchResponsePartitionData:
    try:
        return answer.responses[0].partitions[0]
    except IndexError:
        raise MalformedMessage("an answer without the partition that was asked for") from None


def whole_batches(data: memoryview | None) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Each as it was written; the last may be cut short, and is left out then.

    Raises MalformedMessage if the bytes are no batches.
    """
    at = 0
    while data is not None and len(data) - at >= records.HEADER_BYTES:
        header = records.read_header(data, at)
        if not records.header_is_sane(header):
            raise MalformedMessage(
                "what was fetched is no batch", detail=f"record format v{header.magic}, expected v2"
            )
        if header.size_bytes > len(data) - at:
            return
        batch = data[at : at + header.size_bytes]
        if records.crc32c(batch[records.CRC_FROM :]) != header.crc:
            raise MalformedMessage(
                "a batch's CRC does not match", detail=f"offset {header.base_offset}"
            )
        yield header, batch
        at += header.size_bytes


class Aborted:
    """Which batches of one response belong to transactions that were aborted."""

    def __init__(self, transactions: list[FetchResponseAbortedTransaction]) -> None:
        self._later = sorted(
            ((transaction.first_offset, transaction.producer_id) for transaction in transactions),
            reverse=True,
        )
        self._producers: set[int] = set()  # those in an aborted transaction, at this batch

    def has(self, header: BatchHeader) -> bool:
        self._go_to(header.last_offset)
        return header.producer_id in self._producers

    def end(self, marker: BatchHeader) -> None:
        """Also of a transaction whose records all lie in front of this answer."""
        self._go_to(marker.last_offset)
        self._producers.discard(marker.producer_id)

    def _go_to(self, offset: int) -> None:
        while self._later and self._later[-1][0] <= offset:
            self._producers.add(self._later.pop()[1])


def refuse(code: int, topic: str) -> None:
    """Raises RequestRefused if the code is an error."""
    if code:
        hint = ""
        if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            hint = f"`headwater acl add USER --allow read --topic {topic}` grants it"
        raise RequestRefused(f"topic {topic} cannot be read", detail=error_name(code), hint=hint)
