"""How the demo measures: latencies, lag, rates, and what it says at the end."""

import json

import pytest

from headwater.broker.internal_topics import records
from headwater.demo.summary import Summary, percentile
from headwater.demo.view import state_of, summary_lines
from headwater.demo.watching import Changes, OffsetCommit, Store, measure, offset_commit
from headwater.protocol.messages.internal import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)

ORDERS, CLICKS = ("shop.public.orders", 0), ("clicks", 0)


def change(ts_ms, op="u"):
    return json.dumps({"op": op, "source": {"ts_ms": ts_ms}}).encode()


@pytest.fixture
def changes():
    found = Changes()
    for offset, ts_ms in enumerate((1_000, 2_000, 3_000)):
        found.add(ORDERS, offset, change(ts_ms), now_s=100.0)
    return found


@pytest.fixture
def store():
    return Store("orders", "cache", "orders", "sqlite", (ORDERS[0],), state="running")


def test_each_change_is_measured_once_when_the_store_has_it(changes, store):
    ends = {ORDERS: 3, CLICKS: 99}
    measure(store, {ORDERS: 2}, changes, ends, now_s=4.0)
    assert list(store.latencies_ms) == [3_000, 2_000]
    assert (store.lag, store.behind_s) == (1, 1.0)
    measure(store, {ORDERS: 2}, changes, ends, now_s=5.0)
    assert list(store.latencies_ms) == [3_000, 2_000]
    assert store.behind_s == 2.0
    measure(store, {ORDERS: 3}, changes, ends, now_s=5.5)
    assert list(store.latencies_ms) == [3_000, 2_000, 2_500]
    assert (store.lag, store.behind_s) == (0, 0.0)


def test_offset_commits_are_read_from_the_log(store):
    about = OffsetCommitKey(group=store.group, topic=ORDERS[0], partition=ORDERS[1])
    commit = OffsetCommitValue(offset=7, commit_timestamp=1_234)
    found = offset_commit(*records.encode(records.Record(about, commit)))
    assert found == OffsetCommit(1_234, store.group, ORDERS, 7)


def test_other_records_of_groups_are_no_commits(store):
    about = OffsetCommitKey(group=store.group, topic=ORDERS[0], partition=ORDERS[1])
    assert offset_commit(*records.encode(records.Record(about, None))) is None
    group = records.Record(GroupMetadataKey(group=store.group), GroupMetadataValue())
    assert offset_commit(*records.encode(group)) is None
    assert offset_commit(b"\x00\x63", b"\x00\x00") is None, "a type that is not in use here"


def test_what_every_store_has_is_forgotten(changes, store):
    changes.forget({ORDERS: 2})
    measure(store, {ORDERS: 3}, changes, {ORDERS: 3}, now_s=3.5)
    assert list(store.latencies_ms) == [500]
    changes.forget({})
    assert changes.next_ms(ORDERS, 0) == 3_000


def test_snapshots_and_tombstones_have_no_latency(store):
    changes = Changes()
    changes.add(ORDERS, 0, change(1_000, op="r"), now_s=1.0)
    changes.add(ORDERS, 1, None, now_s=1.0)
    measure(store, {ORDERS: 2}, changes, {ORDERS: 2}, now_s=2.0)
    assert (changes.count, changes.copied) == (0, 1)
    assert not store.latencies_ms


def test_the_rate_is_that_of_the_last_whole_seconds():
    changes = Changes()
    for second in range(10):
        for _ in range(20):
            changes.add(ORDERS, 0, change(0), now_s=second + 0.5)
    assert changes.per_s(9.9) == 20
    assert changes.per_s(12.0) == 12
    assert changes.per_s(60.0) == 0


def test_a_store_of_events_is_behind_them():
    changes = Changes()
    changes.add_event(CLICKS, 0, 1_000)
    clicks = Store("clicks", "warehouse", "clicks", "postgres", (CLICKS[0],), state="running")
    measure(clicks, {}, changes, {CLICKS: 1}, now_s=9.0)
    assert changes.count == 0  # no change of the database
    assert state_of(clicks) == "8 s behind"
    measure(clicks, {CLICKS: 1}, changes, {CLICKS: 1}, now_s=9.5)
    assert state_of(clicks) == "in step"


def test_a_store_is_in_step_until_it_lacks_an_old_change(store):
    assert state_of(store) == "in step"
    store.behind_s = 12.3
    assert state_of(store) == "12 s behind"
    store.state = "failed"
    assert state_of(store) == "failed"


def test_percentiles_are_values():
    assert percentile([], 0.5) is None
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile(range(1, 101), 0.99) == 99
    assert percentile([7], 0.99) == 7


def verdict(**given):
    return {"is_equal": True, "different": 0, **given}


def test_it_is_verified_only_if_every_store_was_and_is_equal(store):
    other = Store("revenue", "warehouse", "revenue", "postgres", (ORDERS[0],))
    summary = Summary(ready_s=30.0, seconds=15.0, changes=5, stores=[store, other])
    assert not summary.is_verified
    assert summary.as_json()["verified"] is None
    summary.verdicts = {"orders/cache/orders": verdict()}
    assert not summary.is_verified
    summary.verdicts |= {"revenue/warehouse/revenue": verdict(is_equal=False, different=3)}
    assert not summary.is_verified
    assert "3 rows differ" in "\n".join(summary_lines(summary))
    summary.verdicts |= {"revenue/warehouse/revenue": verdict()}
    assert summary.is_verified
    assert summary_lines(summary)[-1] == "verified: every store is what the log says"
    assert not Summary(verdicts={"a/b/c": verdict()}).is_verified


def test_the_summary_in_numbers(store):
    store.latencies_ms.extend([100.0, 300.0])
    store.rows = 7
    summary = Summary(30.04, 15.0, 5, {"rolled back": 2}, [store]).as_json()
    assert summary["ready_s"] == 30.0
    assert summary["rolled_back"] == 2
    assert (summary["p50_ms"], summary["p99_ms"]) == (100.0, 300.0)
    assert summary["stores"][0] == {
        "store": "orders/cache/orders", "kind": "sqlite", "rows": 7, "lag": None, "p50_ms": 100.0,
        "p99_ms": 300.0, "is_equal": None, "different": None,
    }  # fmt: skip
