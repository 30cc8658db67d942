"""The records behind a row, whatever its key is made of."""

import json
import uuid

import pytest
from confluent_kafka import Producer
from project import Project

from headwater.errors import UsageError
from headwater.pipelines.rebuilding import rebuild
from headwater.pipelines.tracing import why
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
    assert [each.op for each in gone.causes] == ["d"]
    with pytest.raises(UsageError, match="'someday' is no date, as day is"):
        why(pipeline, "days", {**key, "day": "someday"})
    assert verify(pipeline, "days").is_equal


def produce_at(project, topic, *rows):
    """(second, row): by their time in the log."""
    producer = Producer({"bootstrap.servers": project.bootstrap, "linger.ms": 0})
    for second, row in rows:
        is_deleted = row.get("_deleted")
        producer.produce(
            topic,
            key=json.dumps({"id": row["id"]}).encode(),
            value=None if is_deleted else json.dumps(row).encode(),
            timestamp=1_750_000_000_000 + second * 1000,
        )
    producer.flush()


def listed(traced, *names):
    """The records, by topic and place."""
    return sorted((names.index(each.topic), each.offset) for each in traced.causes)


@pytest.mark.timeout(600)
def test_events_that_were_enriched_by_a_table_whose_key_has_the_same_name(
    tmp_path, broker_address, spark
):
    """A shop: an order's id is no customer's, though both are called `id`."""
    project = Project(tmp_path, broker_address)
    orders = project.topic(f"orders-{uuid.uuid4().hex[:8]}")
    customers = project.topic(f"customers-{uuid.uuid4().hex[:8]}")
    project.pipeline(
        "shop",
        f"""
        orders = flow.changes(
            "{orders}", "id bigint, customer_id bigint, total bigint, ordered_at timestamp"
        )
        customers = flow.table("{customers}", "id bigint, name string, country string", key="id")
        rich = hw.enrich(
            orders.withColumnRenamed("total", "sum"), customers, on=[("customer_id", "id")],
            columns={{"name": "customer_name", "country": "country"}},
        )
        flow.write(rich, to="cache", table="orders", key="id")
        per_minute = hw.tumbling(
            rich, hw.event_time("ordered_at", future=None), "1 minute", by="country", early=True,
        ).agg(n=hw.agg.count(), revenue=hw.agg.sum("sum"))
        result = per_minute.withColumnRenamed("window_start", "minute").drop("window_end", "_mark")
        flow.write(result, to="cache", table="revenue", key=["minute", "country"])
        @F.udf("bigint")
        def doubled(id):
            return 2 * id
        flow.write(rich.withColumn("id", doubled("id")), to="cache", table="doubled", key="id")
        """,
    )
    names = {1: "Ann", 295: "Bob"}
    rows = [
        *((0, {"id": n, "name": name, "country": "DE"}) for n, name in names.items()),
        (20, {"id": 295, "name": "Bob", "country": "FR"}),
        (40, {"id": 295, "name": "Bob", "country": "IT"}),
    ]
    produce_at(project, customers, *rows)

    def order(id_, customer, second):
        minute = "2026-01-01T00:00:00Z"
        row = {"id": id_, "customer_id": customer, "total": id_, "ordered_at": minute}
        return second, row

    placed = [order(500, 1, 10), order(1, 295, 11), order(1000, 1, 12), order(1, 295, 30)]
    produce_at(project, orders, *placed, order(2, 295, 31), (45, {"id": 2, "_deleted": True}))
    (pipeline,) = project.pipelines(spark, "shop")
    rebuild(pipeline)

    traced = why(pipeline, "cache/orders", {"id": "1"})
    assert traced.row["country"] == "FR"
    assert listed(traced, orders, customers) == [(0, 3), (1, 2)]  # as the customer was then
    assert {each.use for each in traced.causes} == {"enrich-1: event", "enrich-1: table row"}
    assert (traced.count, traced.untraced, traced.is_certain) == (2, [], True)
    assert [each.row["id"] for each in traced.causes] == [1, 295]

    gone = why(pipeline, "cache/orders", {"id": "2"})
    assert gone.row is None
    assert listed(gone, orders, customers) == [(0, 5)]

    window = why(pipeline, "revenue", {"minute": "2026-01-01T00:00:00Z", "country": "DE"})
    assert window.row["revenue"] == 500 + 1 + 1000
    assert listed(window, orders, customers) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    uses = {each.use for each in window.causes}
    assert uses == {"enrich-2: event", "enrich-2: table row"} or len(uses) == 2

    unknown = why(pipeline, "doubled", {"id": "2"})
    assert unknown.row["customer_name"] == "Bob"
    assert unknown.causes == []
    assert [each.topic for each in unknown.untraced] == sorted([orders, customers])
