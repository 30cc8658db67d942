"""hw.enrich with a table that was selected from, filtered and renamed."""

import json

import pytest
from confluent_kafka import Producer
from support.pipelines.project import Project
from tiers import long, some

from headwater.errors import PipelineError
from headwater.pipelines.lineage.tracing import why
from headwater.pipelines.verification.stores import verify

ORDERS = "id bigint, customer_id bigint"
CUSTOMERS = "id bigint, country string, rating int"
NAMES = ("country", "rating")
HEAD = f"""
    orders = flow.changes("orders-of", "{ORDERS}")
    customers = flow.table("customers-of", "{CUSTOMERS}", key="id")
"""
PIPELINE = (
    HEAD
    + """
    good = (
        customers.where("rating > 0")
        .withColumnRenamed("id", "customer")
        .alias("c")
        .select(F.col("c.customer"), F.upper("country").alias("land"), 100 / F.col("rating"))
        .withColumnRenamed("(100 / rating)", "share")
        .where("land != 'XX'")
    )
    flow.write(
        hw.enrich(orders, good, on=[("customer_id", "customer")]),
        to="cache", table="rich", key="id",
    )
    as_changes = flow.changes("customers-of", "id bigint, country string").where("country != 'xx'")
    flow.write(
        hw.enrich(orders, as_changes.drop("_at"), on="customer_id", key="id", how="inner"),
        to="cache", table="named", key="id",
    )
"""
)


@pytest.fixture
def project(tmp_path, broker_address):
    return Project(tmp_path, broker_address)


@long
def test_rows_that_do_not_meet_the_condition_are_not_there(spark, project):
    project.topic("orders-of", 2)
    project.topic("customers-of", 2)
    project.pipeline("rich", PIPELINE)
    producer = Producer({"bootstrap.servers": project.bootstrap, "linger.ms": 0})

    def produce(topic, second, id_, **row):
        producer.produce(
            topic,
            key=json.dumps({"id": id_}).encode(),
            value=json.dumps({"id": id_, **row}).encode() if row else None,
            timestamp=1_750_000_000_000 + second * 1000,
        )

    # What a customer is from a second on; None: it is deleted.
    versions = [("de", 1), ("de", 0), ("fr", 4), ("xx", 2), None, ("it", 5), (None, 1), ("at", 2)]
    expected, named = {}, {}
    for part in range(2):
        for second in range(4 * part, 4 * part + 4):
            for customer in range(3):
                version = versions[(second + customer) % len(versions)]
                row = {} if version is None else dict(zip(NAMES, version, strict=True))
                produce("customers-of", 10 * second, customer, **row)
                order = 10 * second + customer
                produce("orders-of", 10 * second + 5, order, customer_id=customer)
                country, rating = version or (None, 0)
                is_there = rating > 0 and country not in (None, "xx")
                expected[order] = (country.upper(), 100 / rating) if is_there else (None, None)
                if country not in (None, "xx"):
                    named[order] = country
        producer.flush()
        with project.running(spark, "rich"):
            project.wait_until_at_end(spark, "orders-of", "rich")
            project.wait_until_at_end(spark, "customers-of", "rich")
    found = project.rows("SELECT id, land, share FROM rich")
    assert {id_: (land, share) for id_, land, share in found} == expected
    assert dict(project.rows("SELECT id, country FROM named")) == named
    (pipeline,) = project.pipelines(spark, "rich")
    for write in some("rich", "named"):
        assert verify(pipeline, write).is_equal, write
    assert not pipeline.flow().writes[0].not_from_log
    traced = why(pipeline, "rich", {"id": "21"})
    assert {cause.topic for cause in traced.causes} == {"orders-of", "customers-of"}
    assert traced.row["land"] is None


WRONG = {
    'customers.select("country")': "has lost id, a column of its key",
    'customers.withColumn("id", F.col("id") + 1)': "has lost id, a column of its key",
    "customers.distinct()": "the topic of the table cannot be found",
    'customers.join(orders.select("id"), "id")': "the topic of the table cannot be found",
    'customers.withColumn("made", F.udf(lambda value: value)("country"))': (
        "cannot be done to its changes"
    ),
}


def test_what_cannot_be_repeated_is_an_error_when_the_pipeline_is_built(spark, project):
    project.topic("bought-by", 1)
    project.topic("buyers", 1)
    head = HEAD.replace("orders-of", "bought-by").replace("customers-of", "buyers")
    for number, (table, what) in enumerate(WRONG.items()):
        call = f'hw.enrich(orders, {table}, on="customer_id")'
        project.pipeline(f"wrong{number}", f"{head}    {call}\n")
        with pytest.raises(PipelineError) as error:
            project.pipelines(spark, f"wrong{number}")[0].flow()
        assert what in str(error.value), table
