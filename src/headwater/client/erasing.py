"""Erases the contents of single records: asks Headwater's broker to, and waits until it is done."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import uuid4

from headwater.client.cluster import LOST, RETRIABLE, Cluster, Patience
from headwater.client.refusals import error_name, reason_of, refused_topic
from headwater.client.writing.sending import TopicPartition
from headwater.errors import ErasureFailed, ErasureUnsupported, NotReady, RequestRefused
from headwater.protocol.erasure_messages import (
    DescribeErasureRequest,
    DescribeErasureResponse,
    EraseRecordsRequest,
    EraseRecordsRequestPartition,
    EraseRecordsRequestTopic,
    EraseRecordsResponse,
)
from headwater.protocol.error_codes import ErrorCode
from headwater.settings import ClientSettings

DEFAULT_TIMEOUT_S: Final = 3600.0
OFFSETS_PER_REQUEST: Final = 50_000
REQUESTS_AT_ONCE: Final = 8
_FIRST_POLL_S: Final = 0.02
_LAST_POLL_S: Final = 1.0
_OF_TOPICS: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


class ErasedCounts(NamedTuple):
    """Of one partition: records that had contents, and offsets at which there was none any more
    (retention, compaction or an earlier erasure has removed it, or it is a transaction's marker).
    """

    erased: int
    already_gone: int


@dataclass(frozen=True, slots=True)
class ErasedRecords:
    """What an erasure did."""

    partitions: Mapping[TopicPartition, ErasedCounts]
    erasure_ids: Sequence[str]  # of the broker's log and its DescribeErasure

    @property
    def erased(self) -> int:
        return sum(counts.erased for counts in self.partitions.values())

    @property
    def already_gone(self) -> int:
        return sum(counts.already_gone for counts in self.partitions.values())


def erase_records(
    bootstrap: str,
    login: ClientSettings,
    offsets: Mapping[TopicPartition, Sequence[int]],
    *,
    on_progress: Callable[[int, int], None] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> ErasedRecords:
    """Erases the records at these offsets. When it returns, nothing of them is left on the broker's
    disk (segments, indexes, the cache of the archive) and in the archive.

    `on_progress` is called with the number of segments done, and of all that are to be looked at.
    After `timeout_s` NotReady is raised; the broker continues by itself, also through a restart.

    Raises ErasureUnsupported if the broker is not Headwater's; RequestRefused, before anything is
    erased, if a topic or partition does not exist, an offset is behind its end, or we may not;
    ErasureFailed if segments are damaged: the rest is erased.
    """
    cluster = Cluster(bootstrap, login)
    try:
        _require_support(cluster, bootstrap)
        until_s = time.monotonic() + timeout_s
        parts = list(_parts(offsets))
        erasure_ids: list[str] = []
        ended: list[DescribeErasureResponse] = []
        while parts:  # the broker accepts no more at a time than it has room for
            patience = cluster.patience("the broker does not accept the erasure")
            some = [_accepted(cluster, part, patience) for part in parts[:REQUESTS_AT_ONCE]]
            parts = parts[REQUESTS_AT_ONCE:]
            ended += _ended(cluster, some, ended, on_progress, until_s)
            erasure_ids += some
        return _result(erasure_ids, ended)
    finally:
        cluster.close()


def _require_support(cluster: Cluster, bootstrap: str) -> None:
    patience = cluster.patience(f"no broker answers at {bootstrap}")
    addresses = [address.strip() for address in bootstrap.split(",")]
    while True:
        for address in addresses:
            try:
                connection = cluster.connection(address)
                try:
                    connection.version(EraseRecordsRequest, 0, 0)
                except RequestRefused as error:
                    raise _unsupported(address) from error
            except LOST as error:
                reason = f"{address}: {reason_of(error)}"
            else:
                return
        patience.wait(reason)


def _unsupported(address: str) -> ErasureUnsupported:
    return ErasureUnsupported(
        "this broker cannot erase single records",
        detail=f"{address} does not serve EraseRecords, which only Headwater's broker has",
        hint="in Apache Kafka: drop the key of what is encrypted per subject; in compacted topics"
        " write tombstones and let compaction pass; DeleteRecords removes everything up to an"
        " offset",
    )


def _parts(
    offsets: Mapping[TopicPartition, Sequence[int]],
) -> Iterator[dict[TopicPartition, Sequence[int]]]:
    """No more offsets in one than a request may have."""
    part: dict[TopicPartition, Sequence[int]] = {}
    room = OFFSETS_PER_REQUEST
    for key, of_partition in offsets.items():
        wanted = sorted(set(of_partition))
        while wanted:
            part[key], wanted = wanted[:room], wanted[room:]
            room -= len(part[key])
            if not room:
                yield part
                part, room = {}, OFFSETS_PER_REQUEST
    if part:
        yield part


def _accepted(
    cluster: Cluster, part: Mapping[TopicPartition, Sequence[int]], patience: Patience
) -> str:
    """The id of an erasure that the broker will complete."""
    erasure_id = uuid4().hex
    topics: dict[str, EraseRecordsRequestTopic] = {}
    for (name, index), offsets in part.items():
        topic = topics.setdefault(name, EraseRecordsRequestTopic(name=name, partitions=[]))
        topic.partitions.append(
            EraseRecordsRequestPartition(partition_index=index, offsets=list(offsets))
        )
    request = EraseRecordsRequest(erasure_id=erasure_id, topics=list(topics.values()))
    while True:
        answer = cluster.ask_any(request, EraseRecordsResponse, patience, first=0, last=0)
        if not answer.error_code:
            return erasure_id
        if answer.error_code not in RETRIABLE or answer.error_code in _OF_TOPICS:
            raise _refused(answer)
        patience.wait(error_name(answer.error_code))


def _refused(answer: EraseRecordsResponse) -> Exception:
    topic = answer.topics[0].name if answer.topics else ""
    if answer.error_code in _OF_TOPICS:
        message = answer.error_message
        return refused_topic(answer.error_code, topic, message, operation="delete")
    return RequestRefused(
        "the broker does not erase these records",
        detail=f"{answer.error_message or 'refused'} ({error_name(answer.error_code)})",
    )


def _ended(
    cluster: Cluster,
    erasure_ids: Sequence[str],
    before: Sequence[DescribeErasureResponse],
    on_progress: Callable[[int, int], None] | None,
    until_s: float,
) -> list[DescribeErasureResponse]:
    """The last answers to all of them. Raises NotReady if the time is over before. `before`: of
    those that have ended already, for the progress.
    """
    poll_s = _FIRST_POLL_S
    while True:
        answers = [_described(cluster, erasure_id) for erasure_id in erasure_ids]
        if on_progress is not None:
            on_progress(
                sum(answer.segments_done for answer in (*before, *answers)),
                sum(answer.segments for answer in (*before, *answers)),
            )
        waiting = [answer for answer in answers if not answer.has_ended]
        if not waiting:
            return answers
        if time.monotonic() > until_s:
            raise NotReady(
                "the records are not all erased yet",
                detail=_reason(waiting[0]),
                hint="the broker continues by itself, also after a restart; ask again later",
            )
        time.sleep(poll_s)
        poll_s = min(poll_s * 1.5, _LAST_POLL_S)


def _described(cluster: Cluster, erasure_id: str) -> DescribeErasureResponse:
    patience = cluster.patience("the broker does not report on the erasure")
    request = DescribeErasureRequest(erasure_id=erasure_id)
    answer = cluster.ask_any(request, DescribeErasureResponse, patience, first=0, last=0)
    if answer.error_code:
        raise RequestRefused(
            "the broker does not report on the erasure",
            detail=f"{error_name(answer.error_code)}, erasure {erasure_id}",
        )
    return answer


def _reason(answer: DescribeErasureResponse) -> str:
    if answer.failure:
        return answer.failure
    if answer.segments_done >= answer.segments and answer.old_files:
        return f"consumers, or a backup, still read {answer.old_files} old files"
    return f"{answer.segments_done} of {answer.segments} segments are done"


def _result(
    erasure_ids: Sequence[str], answers: Sequence[DescribeErasureResponse]
) -> ErasedRecords:
    counts: dict[TopicPartition, ErasedCounts] = {}
    for answer in answers:
        for result in answer.partitions:
            key = (result.topic, result.partition_index)
            before = counts.get(key, ErasedCounts(0, 0))
            counts[key] = ErasedCounts(
                before.erased + result.erased, before.already_gone + result.already_gone
            )
    failures = [answer.failure for answer in answers if answer.failure]
    if failures:
        raise ErasureFailed(
            "some records could not be erased",
            detail="; ".join(failures),
            hint="restore the damaged segment from a backup, or DeleteRecords up to its end",
        )
    return ErasedRecords(counts, tuple(erasure_ids))
