"""All groups of a cluster, their states and offsets, in as few requests as the protocol allows.

librdkafka asks for the offsets of one group at a time; OffsetFetch takes hundreds from version 8 on
(KIP-709), so ten thousand groups are some fifty requests.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from headwater.client.cluster import LOST, Cluster
from headwater.client.refusals import error_name, reason_of
from headwater.client.writing.sending import TopicPartition
from headwater.errors import BrokerUnreachable, RequestRefused
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from headwater.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from headwater.protocol.schema import Message

_Response = TypeVar("_Response", bound=Message)
_GROUPS_AT_ONCE: Final = 200  # more would hold up the broker's other clients
_BATCHED: Final = 8  # the first version of OffsetFetch that takes several groups
SHARE: Final = "share"


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group as its coordinator lists it. An older broker reports no state, or no kind: ""."""

    name: str
    state: str  # "stable", "empty", "preparingrebalance" …
    kind: str  # "classic", "consumer", "share"
    coordinator: str  # HOST:PORT


def list_groups(cluster: Cluster) -> list[ListedGroup]:
    """By name. Raises RequestRefused, BrokerUnreachable if a broker does not answer."""
    found = []
    for address in cluster.brokers():
        answer = _asked(cluster, address, ListGroupsRequest(), ListGroupsResponse, first=0, last=5)
        if answer.error_code:
            raise RequestRefused(
                f"cannot list the groups of {address}", detail=error_name(answer.error_code)
            )
        found += [
            ListedGroup(
                group.group_id, group.group_state.lower(), group.group_type.lower(), address
            )
            for group in answer.groups
        ]
    return sorted(found, key=lambda group: group.name)


def committed_offsets(
    cluster: Cluster, groups: Iterable[ListedGroup]
) -> dict[str, dict[TopicPartition, int]]:
    """What each has committed. A group that we may not see, or that has just moved to another
    coordinator, is left out.
    """
    by_coordinator: dict[str, list[str]] = {}
    for group in groups:
        if group.kind != SHARE:
            by_coordinator.setdefault(group.coordinator, []).append(group.name)
    return {
        name: offsets
        for address, names in by_coordinator.items()
        for name, offsets in _committed_at(cluster, address, names)
    }


def _committed_at(
    cluster: Cluster, address: str, names: list[str]
) -> Iterator[tuple[str, dict[TopicPartition, int]]]:
    if cluster.connection(address).version(OffsetFetchRequest, 2, 9) < _BATCHED:
        yield from _one_by_one(cluster, address, names)
        return
    for begin in range(0, len(names), _GROUPS_AT_ONCE):
        some = names[begin : begin + _GROUPS_AT_ONCE]
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=name, topics=None) for name in some]
        )
        answer = _asked(cluster, address, request, OffsetFetchResponse, first=_BATCHED, last=9)
        for group in answer.groups:
            if not group.error_code:
                yield (
                    group.group_id,
                    {
                        (topic.name, partition.partition_index): partition.committed_offset
                        for topic in group.topics
                        for partition in topic.partitions
                        if partition.committed_offset >= 0 and not partition.error_code
                    },
                )


def _one_by_one(
    cluster: Cluster, address: str, names: list[str]
) -> Iterator[tuple[str, dict[TopicPartition, int]]]:
    for name in names:
        request = OffsetFetchRequest(group_id=name, topics=None)
        answer = _asked(cluster, address, request, OffsetFetchResponse, first=2, last=7)
        if answer.error_code == ErrorCode.NONE:
            yield (
                name,
                {
                    (topic.name, partition.partition_index): partition.committed_offset
                    for topic in answer.topics
                    for partition in topic.partitions
                    if partition.committed_offset >= 0 and not partition.error_code
                },
            )


def _asked(
    cluster: Cluster,
    address: str,
    request: Message,
    response: type[_Response],
    *,
    first: int,
    last: int,
) -> _Response:
    """A connection that had ended meanwhile, as idle ones do, is made again once."""
    for attempt in range(2):
        connection = None
        try:
            connection = cluster.connection(address)
            return connection.ask(request, response, first=first, last=last)
        except LOST as error:
            if connection is not None:
                cluster.lose(connection)
            if connection is None or attempt:
                raise BrokerUnreachable(
                    f"no broker answers at {address}", detail=reason_of(error)
                ) from error
    raise AssertionError("two attempts end one way or the other")
