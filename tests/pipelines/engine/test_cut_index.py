"""The index of cuts, beside a model: limits are those of one cut, and the latest that fits."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from headwater.capture.publishing.cuts import Cut, Written
from headwater.pipelines.engine import cuts as cuts_module
from headwater.pipelines.engine.cuts import CutIndex

TOPICS = [("a", 0), ("b", 0), ("c", 0)]

transactions = st.lists(
    st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 5), min_size=1), min_size=1, max_size=30
)


def written(counts: list[dict]) -> list[dict]:
    """The ends of all partitions behind each transaction: records, and a marker."""
    ends = dict.fromkeys(TOPICS, 0)
    states = [dict(ends)]
    for of_transaction in counts:
        for partition, count in of_transaction.items():
            ends[partition] += count + 1
        states.append(dict(ends))
    return states


def index_of(counts: list[dict], first: int = 0) -> CutIndex:
    index = CutIndex()
    states = written(counts)
    for number, of_transaction in enumerate(counts):
        if number >= first:
            before, after = states[number], states[number + 1]
            ends = {one: Written(before[one], after[one]) for one in of_transaction}
            index.add(2 * number, Cut("shop", 0, ends))
    return index


@given(transactions, st.data())
@settings(max_examples=examples(800))
def test_limits_are_those_of_the_latest_cut_that_fits(counts, data):
    states = written(counts)
    index = index_of(counts)
    at = data.draw(st.integers(0, len(counts)))
    read = data.draw(st.sets(st.sampled_from(TOPICS), min_size=1))
    read = {one for one in read if index.has(one)}
    starts = {one: states[at][one] for one in read}
    # Of every partition another part has arrived.
    arrived = {
        one: states[data.draw(st.integers(at, len(counts)))][one] - data.draw(st.integers(0, 1))
        for one in read
    }
    most_rows = data.draw(st.integers(1, 30))
    limits = index.limits(starts, arrived, most_rows)

    def of(state):
        return {one: state[one] for one in read}

    cuts = [of(state) for state in states[at:] if all(state[o] <= arrived[o] for o in read)]
    rows = [sum(cut[one] - starts[one] for one in read) for cut in cuts]
    fitting = [cut for cut, count in zip(cuts, rows, strict=True) if 0 < count <= most_rows]
    larger = [cut for cut, count in zip(cuts, rows, strict=True) if count > most_rows]
    assert limits == (fitting[-1] if fitting else larger[0] if larger else starts)


@given(transactions, st.integers(0, 29))
@settings(max_examples=examples(400))
def test_what_is_older_than_all_cuts_is_in_front_of_the_first(counts, lost):
    """Compaction has removed the first cuts; a reader begins before them."""
    index = index_of(counts, first=lost)
    read = [one for one in TOPICS if index.has(one)]
    states = written(counts)
    starts = dict.fromkeys(read, 0)
    limits = index.limits(starts, states[-1], 1)
    later = [{one: state[one] for one in read} for state in states[lost:]]
    assert limits in [starts, *later]
    assert index.limits(limits, states[-1], 10**9) == {one: states[-1][one] for one in read}


def test_topics_of_two_captures_have_cuts_of_their_own():
    index = CutIndex()
    index.add(1, Cut("one", 0, {("a", 0): Written(0, 3)}))
    index.add(2, Cut("two", 0, {("b", 0): Written(0, 5)}))
    index.add(3, Cut("one", 0, {("a", 0): Written(3, 6)}))
    starts = {("a", 0): 0, ("b", 0): 0, ("other", 0): 0}
    arrived = {("a", 0): 5, ("b", 0): 9, ("other", 0): 4}
    assert index.limits(starts, arrived, 100) == {("a", 0): 3, ("b", 0): 5}


def test_a_topic_that_was_created_again_has_its_new_cuts():
    index = CutIndex()
    index.add(1, Cut("one", 0, {("a", 0): Written(90, 100), ("b", 0): Written(0, 5)}))
    index.add(2, Cut("one", 0, {("a", 0): Written(0, 3)}))
    assert index.limits({("a", 0): 0, ("b", 0): 0}, {("a", 0): 3, ("b", 0): 5}, 100) == {
        ("a", 0): 3, ("b", 0): 5,
    }  # fmt: skip


def test_memory_is_bounded_and_the_last_ends_stay(monkeypatch):
    monkeypatch.setattr(cuts_module, "_MOST_ENDS", 100)
    index = CutIndex()
    index.add(0, Cut("one", 0, {("rare", 0): Written(0, 7)}))
    for number in range(1, 1000):
        index.add(number, Cut("one", 0, {("a", 0): Written(number - 1, number)}))
    assert sum(len(one.numbers) for one in index._partitions.values()) <= 100
    assert sum(map(len, index._numbers.values())) <= 101
    ends = {("a", 0): 999, ("rare", 0): 7}
    assert index.limits({("a", 0): 998, ("rare", 0): 0}, ends, 100) == ends


@given(transactions, st.data())
@settings(max_examples=examples(100))
def test_cuts_that_are_read_again_change_nothing(counts, data):
    """A read that was interrupted begins where it had begun."""
    states = written(counts)
    once, again = index_of(counts), index_of(counts)
    for number in range(data.draw(st.integers(0, len(counts)))):
        before, after = states[number], states[number + 1]
        ends = {one: Written(before[one], after[one]) for one in counts[number]}
        again.add(2 * number, Cut("shop", 0, ends))
    arrived = states[data.draw(st.integers(0, len(counts)))]
    starts = {one: 0 for one in TOPICS if once.has(one)}
    assert again.limits(starts, arrived, 7) == once.limits(starts, arrived, 7)
    assert again._numbers == once._numbers
