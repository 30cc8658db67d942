from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.broker.groups.consumer_protocol.assignment import NOTHING, TopicPartition
from headwater.broker.groups.consumer_protocol.assignors import (
    ASSIGNORS,
    Subscriber,
    range_,
    simple,
    uniform,
)

TOPICS = [UUID(int=n) for n in range(1, 5)]


def subscribers(subscriptions, previous=None):
    return {
        member_id: Subscriber(None, frozenset(topics), (previous or {}).get(member_id, NOTHING))
        for member_id, topics in subscriptions.items()
    }


def verify(subscriptions, counts, assigned):
    """Every partition with a reader has exactly one owner, and it is one of its readers."""
    assert assigned.keys() == subscriptions.keys()
    owners = [(partition, member) for member, mine in assigned.items() for partition in mine]
    assert all(partition.topic_id in subscriptions[member] for partition, member in owners)
    read = {topic for topics in subscriptions.values() for topic in topics}
    expected = [
        TopicPartition(topic, p)
        for topic, count in counts.items()
        if topic in read
        for p in range(count)
    ]
    assert sorted(partition for partition, _ in owners) == sorted(expected)


COUNTS = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9), min_size=1)


@st.composite
def a_group(draw):
    counts = draw(COUNTS)
    members = draw(st.lists(st.sampled_from("abcdefg"), min_size=1, unique=True))
    topics = st.sets(st.sampled_from(sorted(counts)))
    return counts, {member: frozenset(draw(topics)) for member in members}


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=list(ASSIGNORS))
@given(before=a_group(), after=a_group())
def test_every_partition_has_exactly_one_reader_whatever_was_before(assignor, before, after):
    assigned = None
    for existing, subscriptions in (before, after):
        read = {topic for topics in subscriptions.values() for topic in topics}
        counts = {topic: count for topic, count in existing.items() if topic in read}
        assigned = assignor(subscribers(subscriptions, assigned), counts)
        verify(subscriptions, counts, assigned)


@given(
    counts=COUNTS,
    before=st.integers(1, 8),
    after=st.integers(1, 8),
)
def test_uniform_is_even_and_moves_as_little_as_that_allows(counts, before, after):
    topics = frozenset(counts)
    first = uniform(subscribers({f"m{n}": topics for n in range(before)}), counts)
    second = uniform(subscribers({f"m{n}": topics for n in range(after)}, first), counts)
    total = sum(counts.values())
    for assigned, members in ((first, before), (second, after)):
        sizes = sorted(map(len, assigned.values()))
        assert sizes[-1] - sizes[0] <= 1
        assert sum(sizes) == total
        assert len(sizes) == members
    moved = sum(len(second[m] - first.get(m, NOTHING)) for m in second)
    given_up = sum(len(first[m]) for m in first if m not in second)
    newcomers = sum(len(second[m]) for m in second if m not in first)
    assert moved <= max(given_up, newcomers)


def test_uniform_keeps_a_settled_assignment_as_it_is():
    counts = dict.fromkeys(TOPICS, 5)
    members = {f"m{n}": frozenset(TOPICS) for n in range(6)}
    first = uniform(subscribers(members), counts)
    assert uniform(subscribers(members, first), counts) == first


def test_uniform_evens_out_different_subscriptions():
    a, b, *_ = TOPICS
    counts = {a: 4, b: 4}
    assigned = uniform(subscribers({"x": {a}, "y": {a, b}}), counts)
    assert {member: len(mine) for member, mine in assigned.items()} == {"x": 4, "y": 4}


def test_range_is_contiguous_and_alike_for_all_topics():
    a, b, *_ = TOPICS
    assigned = range_(subscribers({"y": {a, b}, "x": {a, b}, "z": {a}}), {a: 7, b: 3})
    assert {(m, p.partition) for m, mine in assigned.items() for p in mine if p.topic_id == a} == {
        ("x", 0), ("x", 1), ("x", 2), ("y", 3), ("y", 4), ("z", 5), ("z", 6),
    }  # fmt: skip
    assert {(m, p.partition) for m, mine in assigned.items() for p in mine if p.topic_id == b} == {
        ("x", 0), ("x", 1), ("y", 2),
    }  # fmt: skip


def test_range_puts_static_members_first_in_the_order_of_their_instance_ids():
    (a, *_) = TOPICS
    members = {
        "1": Subscriber(None, frozenset({a}), NOTHING),
        "2": Subscriber("i-b", frozenset({a}), NOTHING),
        "3": Subscriber("i-a", frozenset({a}), NOTHING),
    }
    assigned = range_(members, {a: 3})
    assert {m: next(iter(mine)).partition for m, mine in assigned.items()} == {
        "3": 0,
        "2": 1,
        "1": 2,
    }


@given(before=a_group(), after=a_group())
def test_simple_leaves_no_partition_and_no_reader_without(before, after):
    assigned = None
    for existing, subscriptions in (before, after):
        read = {topic for topics in subscriptions.values() for topic in topics}
        counts = {topic: count for topic, count in existing.items() if topic in read}
        assigned = simple(subscribers(subscriptions, assigned), counts)
        assert assigned.keys() == subscriptions.keys()
        for member, mine in assigned.items():
            assert {partition.topic_id for partition in mine} <= subscriptions[member]
            assert bool(mine) == bool(subscriptions[member])
        everything = {TopicPartition(topic, p) for topic, n in counts.items() for p in range(n)}
        assert {partition for mine in assigned.values() for partition in mine} == everything


@given(counts=COUNTS, before=st.integers(1, 12), after=st.integers(1, 12))
def test_simple_is_even_among_members_and_among_partitions(counts, before, after):
    topics = frozenset(counts)
    assigned = None
    for number in (before, after):
        subscriptions = {f"m{n:02}": topics for n in range(number)}
        assigned = simple(subscribers(subscriptions, assigned), counts)
        loads = [len(mine) for mine in assigned.values()]
        assert max(loads) - min(loads) <= 1
        readers = Counter(partition for mine in assigned.values() for partition in mine)
        assert max(readers.values()) - min(readers.values()) <= 1
        assert sum(loads) == max(number, len(readers))
    again = simple(subscribers(subscriptions, assigned), counts)
    assert again == assigned
