"""hw.match with late="correct" in a pipeline: what stores have, verify, why, and what follows."""

from datetime import UTC, datetime, timedelta

from support.pipelines.project import Project

from headwater.pipelines.lineage.tracing import why
from headwater.pipelines.verification.stores import verify

PIPELINE = """
    events = flow.changes("late_shop", "user string, what string, at timestamp")
    orders = hw.match(
        events,
        "user",
        hw.pattern()
        .begin("ordered", where="what = 'order'")
        .not_followed_by("cancelled", where="what = 'cancel'")
        .then("paid", where="what = 'pay'", within="30 minutes"),
        time=hw.event_time("at", delay="1 minute", future=None),
        measures={"ordered_at": "ordered.at", "paid_at": "paid.at"},
        timed_out="is_unpaid",
        late="correct",
        allowed_lateness="2 hours",
    )
    flow.write(orders, to="cache", table="orders", key="match_id")
    flow.write(orders, to="cache", table="history")
    by_hour = hw.tumbling(orders, "ordered_at", "1 hour", key="match_id").agg(
        orders=hw.agg.count(), paid=hw.agg.count("paid_at")
    )
    flow.write(by_hour, to="cache", table="hours", key="window_start")
"""
START = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(minute):
    return START + timedelta(minutes=minute)


def test_stores_have_what_is_left_after_corrections(spark, tmp_path, broker_address):
    project = Project(tmp_path, broker_address)
    project.topic("late_shop")
    project.pipeline("patterns", PIPELINE)
    pieces = [
        [("ann", "order", 0), ("bob", "order", 5), ("ann", "pay", 10), ("cat", "none", 60)],
        # Ann has cancelled, and ordered again 8 minutes later; Bob has paid.
        [("ann", "cancel", 3), ("ann", "order", 8), ("bob", "pay", 20), ("cat", "none", 61)],
        [("ann", "order", -61), ("cat", "none", 62)],  # too late
    ]
    seen = []
    for piece in pieces:
        rows = [{"user": u, "what": what, "at": at(n).isoformat()} for u, what, n in piece]
        project.produce("late_shop", *rows, key="user")
        with project.running(spark, "patterns"):
            project.wait_until_at_end(spark, "late_shop", "patterns")
        found = project.rows("SELECT user, ordered_at, paid_at, is_unpaid, match_id FROM orders")
        seen.append({(user, _minute(o), _minute(p), bool(n), i) for user, o, p, n, i in found})
    assert seen[0] == {
        ("ann", 0, 10, False, "late_shop/0/0"),
        ("bob", 5, None, True, "late_shop/0/1"),
    }
    assert seen[1] == seen[2] == {
        ("ann", 8, 10, False, "late_shop/0/5"),
        ("bob", 5, 20, False, "late_shop/0/1"),
    }  # fmt: skip
    assert project.rows("SELECT orders, paid FROM hours") == [(2, 2)]
    assert sorted(project.rows("SELECT user, op, _mark FROM history")) == [
        (user, *change)
        for user in ("ann", "bob")
        for change in [("c", "correction"), ("c", "final"), ("d", "correction")]
    ]
    (pipeline,) = project.pipelines(spark, "patterns")
    for write in ("orders", "history", "hours"):
        assert verify(pipeline, write).is_equal, write
    traced = why(pipeline, "orders", {"match_id": "late_shop/0/1"})
    assert sorted(cause.row["what"] for cause in traced.causes) == ["order", "pay"]
    assert traced.is_certain


def _minute(text):
    return text and (datetime.fromisoformat(text) - START) // timedelta(minutes=1)
