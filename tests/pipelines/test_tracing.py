"""The records behind a row, whatever its key is made of."""

import json
import time
import uuid

import pytest
from confluent_kafka import Producer
from support.pipelines.project import Project
from tiers import long

from headwater.cli.main import run
from headwater.errors import UsageError
from headwater.pipelines.lineage import tracing
from headwater.pipelines.lineage.tracing import why
from headwater.pipelines.offsets import ends_of
from headwater.pipelines.running.rebuilding import rebuild
from headwater.pipelines.verification.stores import verify
from headwater.sinks.contract import Position

HOUR_AGO_MS = int(time.time() - 3600) * 1000  # retention has not come to it
NAME = 'it\'s "so" \\ ä'


def test_keys_of_any_type_and_rows_that_are_gone(tmp_path, broker_address, spark, capsys):
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
    assert [cause.row["id"] for cause in traced.causes] == [12, 2]
    assert why(pipeline, "days", {**key, "amount": "2.51"}).row is None
    gone = why(pipeline, "orders", {"id": "2"})
    assert gone.row is None
    assert [cause.op for cause in gone.causes] == ["d"]
    with pytest.raises(UsageError, match="'someday' is no date, as day is"):
        why(pipeline, "days", {**key, "day": "someday"})
    assert verify(pipeline, "days").is_equal
    config = ["--config", str(project.file)]
    assert run(["why", "days/orders", "--key", "12", *config]) == 0  # by a Spark of its own
    assert "day=2026-01-02" in capsys.readouterr().out
    assert run(["why", "days", "--key", "12", *config]) == 2
    assert "days/cache/orders" in capsys.readouterr().err


def running(pipeline, write):
    """The names of its operators, as states and late rows have them."""
    (found,) = [described for described in pipeline.flow().writes if described.name == write]
    return [operator.name for operator in found.operators]


def produce_at(project, topic, *rows):
    """(second, row): by their time in the log, not by when the test runs."""
    producer = Producer({"bootstrap.servers": project.bootstrap, "linger.ms": 0})
    for second, row in rows:
        is_deleted = row.get("_deleted")
        producer.produce(
            topic,
            key=json.dumps({"id": row["id"]}).encode(),
            value=None if is_deleted else json.dumps(row).encode(),
            timestamp=HOUR_AGO_MS + second * 1000,
        )
    producer.flush()


def listed(traced, *names):
    """The records, by topic and place."""
    return sorted((names.index(cause.topic), cause.offset) for cause in traced.causes)


@pytest.fixture
def _at_end(monkeypatch):
    """Stores that have everything, without a query that filled them."""

    def position(pipeline, write):
        return Position("test", 0, ends_of(pipeline.environment.log, write.topics))

    monkeypatch.setattr(tracing, "_position", position)


@pytest.mark.usefixtures("_at_end")
@long
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
        doubled = F.udf(lambda id_: 2 * id_, "bigint")
        counted = rich.where("_op != 'd'").groupBy(doubled("id").alias("id")).count()
        flow.write(counted, to="cache", table="doubled", key="id")
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

    traced = why(pipeline, "cache/orders", {"id": "1"})
    assert traced.row["country"] == "FR"
    assert listed(traced, orders, customers) == [(0, 3), (1, 2)]  # as the customer was then
    name = running(pipeline, "cache/orders")[0]  # not one of the bounded run's own
    assert [cause.use for cause in traced.causes] == [f"{name}: event", f"{name}: table row"]
    assert [cause.row["id"] for cause in traced.causes] == [1, 295]
    assert (traced.count, traced.untraced, traced.is_certain) == (2, [], True)

    gone = why(pipeline, "cache/orders", {"id": "2"})
    assert gone.row is None
    assert listed(gone, orders, customers) == [(0, 5)]

    window = why(pipeline, "revenue", {"minute": "2026-01-01T00:00:00Z", "country": "DE"})
    assert window.row["revenue"] == 500 + 1 + 1000
    assert listed(window, orders, customers) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert window.untraced == []

    unknown = why(pipeline, "doubled", {"id": "2"})
    assert unknown.row["count"] == 2
    assert unknown.causes == []
    assert [cause.topic for cause in unknown.untraced] == sorted([orders, customers])


@pytest.mark.usefixtures("_at_end")
@long
def test_chains_of_joins_and_topics_that_are_read_twice(tmp_path, broker_address, spark):
    project = Project(tmp_path, broker_address)
    topics = [f"{name}-{uuid.uuid4().hex[:8]}" for name in ("people", "visits", "sales")]
    people, visits, sales = map(project.topic, topics)
    project.pipeline(
        "chains",
        f"""
        people = flow.changes("{people}", "id bigint, boss bigint, name string")
        bosses = flow.changes("{people}", "id bigint, name string")
        bosses = bosses.withColumnRenamed("id", "boss").withColumnRenamed("name", "boss_name")
        pairs = hw.join_tables(people, bosses, on="boss", left_key="id", right_key="boss")
        flow.write(pairs, to="cache", table="pairs", key=["id", "boss"])
        visits = flow.changes("{visits}", "id bigint, shop bigint, at timestamp")
        sales = flow.changes("{sales}", "id bigint, shop bigint, sold_at timestamp")
        both = hw.join(
            visits.withColumnRenamed("id", "visit"), sales.withColumnRenamed("id", "sale"),
            on="shop", within="1 minute",
            left_time=hw.event_time("at", future=None),
            right_time=hw.event_time("sold_at", future=None),
        )
        counted = hw.tumbling(
            both.withColumn("key", F.col("visit") % 2),
            hw.event_time("sold_at", future=None, delay="1 hour"), "1 hour", by="key", early=True,
        ).agg(n=hw.agg.count(), sales=hw.agg.distinct("sale"))
        flow.write(counted, to="cache", table="counted", key=["key", "window_start"])
        """,
    )
    produce_at(project, people, *((n, {"id": n, "boss": 1, "name": f"p{n}"}) for n in range(4)))
    produce_at(project, people, (9, {"id": 1, "boss": 1, "name": "chief"}))
    times = {"at": "2026-01-01T00:00:00Z", "sold_at": "2026-01-01T00:00:10Z"}
    # All pairs of a sale stand at the place of the sale.
    produce_at(project, visits, *((n, {"id": n, "shop": n // 4, **times}) for n in range(8)))
    produce_at(project, sales, *((n, {"id": n, "shop": n, **times}) for n in range(2)))
    (pipeline,) = project.pipelines(spark, "chains")

    pair = why(pipeline, "pairs", {"id": "3", "boss": "1"})
    assert pair.row["boss_name"] == "chief"
    assert listed(pair, people) == [(0, 3), (0, 4)]
    own = why(pipeline, "pairs", {"id": "1", "boss": "1"})
    assert listed(own, people) == [(0, 4)]
    _, left, right = running(pipeline, "cache/pairs")
    assert own.causes[0].use == f"{left}: row, {right}: row"

    start = "2026-01-01T00:00:00Z"
    odd = why(pipeline, "counted", {"key": "1", "window_start": start})
    assert odd.row["n"] == 4
    expected = [(0, 1), (0, 3), (0, 5), (0, 7), (1, 0), (1, 1)]
    assert listed(odd, visits, sales) == expected
    assert odd.is_certain
