"""The records behind a row, whatever its key is made of."""

import uuid
from datetime import UTC, datetime

import pytest
from project import Project

from headwater.errors import UsageError
from headwater.pipelines.operators.building import Built
from headwater.pipelines.rebuilding import rebuild
from headwater.pipelines.tracing import _taken_together, why
from headwater.pipelines.verifying import verify

NAME = 'it\'s "so" \\ ä'


def test_keys_of_any_type_and_rows_that_are_gone(tmp_path, broker_address, spark):
    project = Project(tmp_path, broker_address)
    topic = project.topic(f"orders-{uuid.uuid4().hex[:8]}")
    project.pipeline(
        "days",
        f"""
        orders = flow.changes(
            "{topic}", "id bigint, day date, at timestamp, amount decimal(10,2), name string"
        )
        by = ["day", "at", "amount", "name"]
        flow.write(
            orders.where("_op != 'd'").groupBy(*by).agg(F.count("*").alias("n")),
            to="cache", table="days", key=by,
        )
        flow.write(orders, to="cache", table="orders", key="id")
        """,
    )
    for n in (1, 2):
        for id_ in (n, n + 10):
            row = {"id": id_, "day": f"2026-01-0{n}", "at": f"2026-01-0{n}T10:00:00.000001Z"}
            project.produce(topic, {**row, "amount": f"{n}.50", "name": NAME})
    project.produce(topic, {"id": 2, "_deleted": True})
    (pipeline,) = project.pipelines(spark, "days")
    rebuild(pipeline)  # the first version, up to now
    key = {"day": "2026-01-02", "at": "2026-01-02T10:00:00.000001Z", "amount": "2.5", "name": NAME}
    traced = why(pipeline, "days", key)
    assert traced.row["n"] == 2
    assert [each.row["id"] for each in traced.causes] == [12, 2]
    assert why(pipeline, "days", {**key, "amount": "2.51"}).row is None
    gone = why(pipeline, "orders", {"id": "2"})
    assert gone.row is None
    assert [each.op for each in gone.causes] == ["d", "u"]
    with pytest.raises(UsageError, match="'someday' is no date, as day is"):
        why(pipeline, "days", {**key, "day": "someday"})
    assert verify(pipeline, "days").is_equal


def test_a_window_over_joined_rows_is_traced_by_its_time(spark):
    orders = spark.sql(
        "select id, timestamp_seconds(60 * id) at, 'a' shop, 'c' _op, timestamp_seconds(0) _at,"
        " struct('orders' topic, 0 partition, id offset) _position from range(5)"
    )
    window = {
        "window_start": datetime.fromtimestamp(60, UTC),
        "window_end": datetime.fromtimestamp(180, UTC),
        "country": "de",  # that comes from a table
    }

    def traced(row, *by):
        built = Built("tumbling-1", 8, (by,), (("at",),))
        found = _taken_together(orders, [built], row)
        return found and sorted(each._position.offset for each in found.collect())

    assert traced(window, "country") == [1, 2]
    assert traced({**window, "shop": "b"}, "country", "shop") == []
    assert traced({"country": "de"}, "country") is None
