"""Offsets of a group, committed by a client that is no member of it.

Headwater's own positions lie elsewhere, with the data that they belong to. These are for others to
see: `headwater group describe` and every Kafka tool take the lag of a reader from them.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Self

from headwater.client.cluster import DEFAULT_PATIENCE_S, GROUP, RETRIABLE, Cluster
from headwater.client.refusals import refused_group, refused_topic
from headwater.client.writing.sending import TopicPartition
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from headwater.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from headwater.settings import ClientSettings

_OF_TOPICS = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


class GroupOffsets:
    """The offsets of one group. To be used by one thread.

    Raises RequestRefused if the group has members (their offsets are theirs), a topic does not
    exist, or we may not; BrokerUnreachable if there is no answer for `patience_s`.
    """

    def __init__(
        self,
        bootstrap: str,
        login: ClientSettings,
        group: str,
        *,
        patience_s: float = DEFAULT_PATIENCE_S,
        cluster: Cluster | None = None,
    ) -> None:
        """`cluster`: connections that several groups share, one after the other."""
        self._group = group
        self._cluster = cluster or Cluster(bootstrap, login, patience_s=patience_s)

    def close(self) -> None:
        self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Each offset is that of the next record to be read. Of several partitions, some may have
        been committed when an error is raised.
        """
        if not offsets:
            return
        request = OffsetCommitRequest(group_id=self._group, topics=_commits(offsets))
        answer = self._cluster.ask_coordinator(
            self._group,
            request,
            OffsetCommitResponse,
            self._cluster.patience(f"the offsets of group {self._group} cannot be committed"),
            first=2,
            last=9,
            kind=GROUP,
            code_of=lambda answer: _for_patience(_codes(answer)),
        )
        self._refuse(_codes(answer))

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Of those that have any."""
        topics: dict[str, list[int]] = {}
        for topic, partition in partitions:
            topics.setdefault(topic, []).append(partition)
        request = OffsetFetchRequest(
            group_id=self._group,
            topics=[
                OffsetFetchRequestTopic(name=name, partition_indexes=indexes)
                for name, indexes in topics.items()
            ],
        )
        answer = self._cluster.ask_coordinator(
            self._group,
            request,
            OffsetFetchResponse,
            self._cluster.patience(f"the offsets of group {self._group} cannot be read"),
            first=2,
            last=7,
            kind=GROUP,
        )
        self._refuse([("", answer.error_code), *_codes(answer)])
        return {
            (topic.name, partition.partition_index): partition.committed_offset
            for topic in answer.topics
            for partition in topic.partitions
            if partition.committed_offset >= 0
        }

    def _refuse(self, codes: Iterable[tuple[str, int]]) -> None:
        for topic, code in codes:
            if code in _OF_TOPICS:
                raise refused_topic(code, topic, operation="read")
            if code:
                raise refused_group(code, self._group)


def _commits(offsets: Mapping[TopicPartition, int]) -> list[OffsetCommitRequestTopic]:
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for (name, partition), offset in offsets.items():
        if name not in topics:
            topics[name] = OffsetCommitRequestTopic(name=name, partitions=[])
        topics[name].partitions.append(
            OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        )
    return list(topics.values())


def _codes(answer: OffsetCommitResponse | OffsetFetchResponse) -> Iterator[tuple[str, int]]:
    for topic in answer.topics:
        for partition in topic.partitions:
            yield topic.name, partition.error_code


def _for_patience(codes: Iterable[tuple[str, int]]) -> int:
    """The first that a retry may fix; a topic that does not exist is not awaited."""
    return next((code for _, code in codes if code in RETRIABLE and code not in _OF_TOPICS), 0)
