"""The batches of a Fetch response: which are whole, and which of them count."""

from collections.abc import Iterator

from headwater.client.cluster import error_name
from headwater.errors import MalformedMessage, RequestRefused
from headwater.protocol import records
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.fetch import (
    FetchResponse,
    FetchResponseAbortedTransaction,
    FetchResponsePartitionData,
)
from headwater.protocol.records import BatchHeader


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
