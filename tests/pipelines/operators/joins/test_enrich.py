"""hw.enrich in a pipeline: the table read in step with the log, over restarts, and verified; and
what it says of wrong uses."""

import json

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from support.pipelines.project import Project
from tiers import count, long

from headwater.errors import PipelineError
from headwater.pipelines.verification.stores import verify

ORDERS = "id bigint, customer_id bigint, total bigint"
CUSTOMERS = "id bigint, country string"
PIPELINE = f"""
    orders = flow.changes("orders", "{ORDERS}")
    customers = flow.table("customers", "{CUSTOMERS}", key="id")
    rich = hw.enrich(orders, customers, on="customer_id")
    flow.write(rich, to="cache", table="rich", key="id")
"""


@pytest.fixture
def project(tmp_path, broker_address):
    return Project(tmp_path, broker_address)


def produce_at(project, topic, *rows):
    """(second, row): by their time in the log, not by when the test runs."""
    producer = Producer({"bootstrap.servers": project.bootstrap, "linger.ms": 0})
    for second, row in rows:
        producer.produce(
            topic,
            key=json.dumps({"id": row["id"]}).encode(),
            value=json.dumps(row).encode(),
            timestamp=1_750_000_000_000 + second * 1000,
        )
    producer.flush()


def test_orders_get_the_customer_as_it_was_over_restarts(spark, project):
    project.topic("orders", 2)
    project.topic("customers", 3)
    project.pipeline("rich", PIPELINE)
    expected = {}
    for start in (0, 100, 200)[: count(quick=2, full=3)]:
        # In the topic before the orders, but of a time between them.
        changes = [(start + 1, {"id": n, "country": f"c{start}-{n}"}) for n in range(6)]
        produce_at(project, "customers", *changes)
        orders = []
        for second, version in ((start, start - 100), (start + 5, start)):
            for n in range(10):
                order = 2 * start + second % 100 * 2 + n
                customer = n % 8  # two of them are not there
                row = {"id": order, "customer_id": customer, "total": n}
                orders.append((second, row))
                is_there = customer < 6 and version >= 0
                expected[order] = f"c{version}-{customer}" if is_there else None
        produce_at(project, "orders", *orders)
        with project.running(spark, "rich"):
            project.wait_until_at_end(spark, "orders", "rich")
            project.wait_until_at_end(spark, "customers", "rich")
    found = dict(project.rows("SELECT id, country FROM rich"))
    assert found == expected
    pipeline = project.pipelines(spark, "rich")[0]
    assert verify(pipeline, "cache/rich").is_equal
    write = pipeline.flow().writes[0]
    assert write.topics == ("customers", "orders")
    assert write.reads("customers")
    assert not write.not_from_log


def test_wrong_uses_are_errors_when_the_pipeline_is_built(spark, project):
    admin = AdminClient({"bootstrap.servers": project.bootstrap})
    for name, policy in (("compacted", "compact"), ("both", "compact,delete"), ("kept", "delete")):
        new = NewTopic(name, 1, config={"cleanup.policy": policy})
        admin.create_topics([new])[name].result()
    project.topic("bought", 1)
    cases = {
        'hw.enrich(orders, kept.where("id > 1").distinct(), on="customer_id")': (
            "the topic of the table cannot be found"
        ),
        'hw.enrich(orders, kept, on="total2")': "there is no column total2",
        'hw.enrich(orders, kept, on=[("customer_id", "country")])': "the key of kept is id",
        'hw.enrich(orders, kept, on="customer_id", how="outer")': "how='outer'",
        'hw.enrich(orders, kept, on="customer_id", columns={"country": "id"})': "be called id",
        'hw.enrich(orders, kept, on="customer_id", columns=["city"])': "kept has no column city",
        'hw.enrich(orders, kept, on="customer_id", valid_from="x")': "go with as_of",
        'hw.enrich(orders, both, on="customer_id", as_of="_at")': "both is compacted",
        'hw.enrich(orders, compacted, on="customer_id", as_of="_at")': "compacted is compacted",
        'hw.enrich(orders.withColumn("customer_id", F.lit("x")), kept, on="customer_id")': (
            "customer_id is string, id of the table is bigint"
        ),
    }
    head = f"""
        orders = flow.changes("bought", "{ORDERS}")
        kept, both, compacted = [
            flow.table(name, "{CUSTOMERS}", key="id") for name in ("kept", "both", "compacted")
        ]
    """
    for number, (call, message) in enumerate(cases.items()):
        project.pipeline(f"wrong{number}", head + f"    rich = {call}\n")
        with pytest.raises(PipelineError) as error:
            project.pipelines(spark, f"wrong{number}")[0].flow()
        assert message in error.value.what
    project.pipeline(
        "right",
        head
        + """    rich = hw.enrich(orders, kept, on="customer_id", as_of="_at")
        flow.write(rich, "cache", "t", "id")
    """,
    )
    assert project.pipelines(spark, "right")[0].flow().writes[0].topics == ("bought", "kept")
    project.pipeline(
        "joined",
        head
        + """    rich = orders.join(kept, orders.customer_id == kept.id)
        flow.write(rich.select("customer_id", "total"), "cache", "t")
    """,
    )
    assert project.pipelines(spark, "joined")[0].flow().writes[0].not_from_log
    project.pipeline(
        "looked_up",
        head
        + """    rich = hw.lookup(
            orders, url="sqlite:///shop.db", table="t", on="customer_id", columns="country string"
        )
        flow.write(rich, "cache", "t", "id")
    """,
    )
    assert list(project.pipelines(spark, "looked_up")[0].flow().unrepeatable) == ["hw.lookup"]


REVENUE = """
    orders = flow.changes("sold", "id bigint, customer_id bigint, created_at timestamp")
    customers = flow.table("buyers", "id bigint, country string", key="id")
    rich = hw.enrich(orders, customers, on="customer_id")
    time = hw.event_time("created_at", delay="1 second", future=None)
    per_hour = hw.tumbling(rich, time, "1 hour", by=["country"]).agg(orders=hw.agg.count())
    flow.write(per_hour.drop("_mark"), to="cache", table="hours", key=["country", "window_start"])
"""


@long
def test_windows_over_enriched_orders_miss_none_that_is_in_time(spark, project):
    """The orders of one partition go through the buckets of their customers, and event time
    follows their order again: minutes apart, with a delay of a second, none is late.
    """
    project.topic("sold", 1)
    project.topic("buyers", 2)
    project.pipeline("revenue", REVENUE)
    produce_at(project, "buyers", *[(0, {"id": n, "country": f"c{n % 3}"}) for n in range(9)])
    orders = []
    for n in range(300):
        created = f"2026-01-01T{n // 60:02}:{n % 60:02}:00Z"
        orders.append((10 + n, {"id": n, "customer_id": n * 7 % 9, "created_at": created}))
    produce_at(project, "sold", *orders)
    with project.running(spark, "revenue"):
        project.wait_until_at_end(spark, "sold", "revenue")
        project.wait_until_at_end(spark, "buyers", "revenue")
    found = project.rows("SELECT country, orders FROM hours")
    assert sorted(found) == sorted((f"c{n}", 20) for n in range(3) for _ in range(4))
    assert verify(project.pipelines(spark, "revenue")[0], "cache/hours").is_equal
