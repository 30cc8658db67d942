"""What `flow.write` finds out by the plan of a frame, before anything runs."""

import pytest
from support.pipelines.project import Project

from headwater.errors import PipelineError

HEAD = """
    orders = flow.changes("plain", "id bigint, name string, total int, at timestamp")
    names = flow.table("others", "name string, kind string", key="name")
    changes = orders.select("id", "name", "total", "_op")
    windows = hw.tumbling(orders, "at", "1 minute", by="name").agg(n=hw.agg.count())
"""


@pytest.fixture
def flow_of(spark, tmp_path, broker_address):
    project = Project(tmp_path, broker_address)

    def flow(line):
        project.pipeline("checked", HEAD + "    " + line)
        return project.pipelines(spark, "checked")[0].flow()

    return flow


@pytest.mark.parametrize(
    "frame",
    [
        'changes.repartition(4, "name")',
        'changes.where("id > 1").join(names.select("name", "kind"), "name")',
        'changes.dropDuplicates(["id", "total"])',
    ],
)
def test_changes_whose_order_is_lost_are_refused(flow_of, frame):
    with pytest.raises(PipelineError, match="has _op and no _position"):
        flow_of(f'flow.write({frame}, to="cache", table="t", key="id")')


@pytest.mark.parametrize(
    "frame",
    [
        "changes",
        'changes.union(changes.where("id > 1"))',
        'orders.repartition(4, "name")',
        'orders.groupBy("id").agg(F.max_by("_op", "_position.offset").alias("_op"))',
        'changes.repartition(4).drop("_op").groupBy("id").count()',
    ],
)
def test_changes_that_have_an_order_are_taken(flow_of, frame):
    assert len(flow_of(f'flow.write({frame}, to="cache", table="t", key="id")').writes) == 1


@pytest.mark.parametrize(
    ("frame", "key"),
    [
        ("windows", "name"),
        ('windows.select("name", "n", "_op")', "name"),
        ('windows.withColumnRenamed("window_start", "minute").where("n > 1")', "name"),
        ('windows.withColumn("name", F.upper("name"))', "name"),
    ],
)
def test_a_key_that_does_not_distinguish_windows_is_refused(flow_of, frame, key):
    with pytest.raises(PipelineError, match="does not distinguish windows"):
        flow_of(f'flow.write({frame}, to="cache", table="t", key="{key}")')


@pytest.mark.parametrize(
    ("frame", "key"),
    [
        ("windows", ["name", "window_start"]),
        ('windows.drop("window_start")', ["name", "window_end"]),
        ('windows.withColumnRenamed("window_start", "minute")', ["name", "minute"]),
        (
            'windows.withColumn("w", F.date_format("window_start", "HH:mm")).drop("_mark")',
            ["name", "w"],
        ),
        ("windows", []),
    ],
)
def test_a_key_that_distinguishes_windows_is_taken(flow_of, frame, key):
    assert len(flow_of(f'flow.write({frame}, to="cache", table="t", key={key})').writes) == 1


def test_an_enriched_write_has_the_rows_of_its_events(flow_of):
    """Partitions of the table have no part in the order of a truncate."""
    flow = flow_of('flow.write(hw.enrich(orders, names, on="name"), "cache", "t", "id")')
    (write,) = flow.writes
    assert write.topics == ("others", "plain")
    assert write.rows_of("plain")
    assert not write.rows_of("others")


ALIKE = """
    rows = flow.changes("plain", "id bigint, name string, total int, at timestamp{more}")
    def counted(status, **given):
        of_status = rows.where(f"name = '{{status}}'").withColumn("more", F.col("total") + 1)
        return hw.tumbling(of_status, "at", "1 minute", **given).agg(n=hw.agg.sum("more"))
    for table in {tables}:
        flow.write(counted(table), to="cache", table=table, key="window_start")
"""


def test_operators_that_are_alike_keep_their_names_when_others_come_or_change_places(
    spark, tmp_path, broker_address
):
    """By which they find their state: it was by their number."""
    project = Project(tmp_path, broker_address)

    def operators(tables, more=""):
        project.pipeline("alike", ALIKE.format(tables=tables, more=more))
        writes = project.pipelines(spark, "alike")[0].flow().writes
        return {write.table: write.operators[0].name for write in writes}

    first = operators(["paid", "open"])
    assert first["paid"] != first["open"]
    assert operators(["open", "paid"]) == first
    assert operators(["new", "open", "paid"]).items() > first.items()
    assert operators(["paid", "open"], ", added string") == first, "a new column"
