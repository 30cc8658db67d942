"""All groups of a cluster and their offsets, in few requests."""

from uuid import uuid4

import pytest
from support.client.written import ANONYMOUS, new_topic
from tiers import representative

from headwater.client import groups
from headwater.client.cluster import Cluster
from headwater.client.group_offsets import GroupOffsets
from headwater.client.groups import committed_offsets, list_groups
from headwater.protocol.messages.offset_fetch import OffsetFetchRequest


def commit(address: str, offsets: dict[tuple[str, int], int]) -> str:
    group = f"group-{uuid4().hex[:8]}"
    with GroupOffsets(address, ANONYMOUS, group) as group_offsets:
        group_offsets.commit(offsets)
    return group


@pytest.fixture
def cluster(address: str):
    found = Cluster(address, ANONYMOUS, patience_s=30)
    yield found
    found.close()


@representative
def test_groups_with_their_offsets(
    address: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(address, 2)
    wanted = {commit(address, {(topic, 0): n, (topic, 1): 2 * n}): n for n in range(1, 6)}
    monkeypatch.setattr(groups, "_GROUPS_AT_ONCE", 2)
    listed = [group for group in list_groups(cluster) if group.name in wanted]
    assert [group.name for group in listed] == sorted(wanted)
    assert {(group.state, group.kind) for group in listed} == {("empty", "classic")}
    assert committed_offsets(cluster, listed) == {
        name: {(topic, 0): n, (topic, 1): 2 * n} for name, n in wanted.items()
    }


def test_an_older_broker_is_asked_group_by_group(
    address: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(address)
    wanted = {commit(address, {(topic, 0): n}): n for n in (3, 4)}
    listed = [group for group in list_groups(cluster) if group.name in wanted]
    connection = cluster.connection(listed[0].coordinator)
    ask = connection.version
    monkeypatch.setattr(
        connection,
        "version",
        lambda request, first, last: min(
            ask(request, first, last), 7 if request is OffsetFetchRequest else 99
        ),
    )
    found = committed_offsets(cluster, listed)
    assert found == {name: {(topic, 0): n} for name, n in wanted.items()}


def test_a_connection_that_has_ended_meanwhile_is_opened_again(
    address: str, cluster: Cluster
) -> None:
    group = commit(address, {(new_topic(address), 0): 1})
    (listed,) = [found for found in list_groups(cluster) if found.name == group]
    cluster.connection(listed.coordinator).close()
    assert group in {found.name for found in list_groups(cluster)}
