"""Which operators a write goes through, and what becomes of its rows, by the plan of its frame."""

import pytest

from headwater.pipelines.operators.runtime.naming import (
    Built,
    building,
    inputs_with_rows,
    is_operator,
    operators_in,
)
from headwater.pipelines.plans import Node, gives_op, moves_rows, plan_of, streams_of

SOURCE = Node("StreamingRelationV2", has_op=True)


def over(name, *children, **about):
    return Node(name, children or (SOURCE,), **about)


def of_operators(first="tumbling-2", second="tumbling-1"):
    packed = over(
        "Union",
        over("MapInArrow", over("MapInArrow", function=second, has_op=True), function="Packing"),
        over("MapInArrow", function="users"),
    )
    moved = over("RepartitionByExpression", packed)
    return over("Project", over("MapInArrow", moved, function=first))


def built(*names):
    return {name: Built(name, 8, (("name",),)) for name in names}


def test_operators_of_a_plan():
    with building("p") as now:
        now.built |= built("tumbling-1", "tumbling-2", "join-1")
        assert [operator.name for operator in operators_in(of_operators())] == [
            "tumbling-2",
            "tumbling-1",
        ]


def test_functions_of_users_are_none():
    with building("p") as now:
        now.built |= built("tumbling-1", "tumbling-2")
        assert operators_in(of_operators("dropping", "mapped")) == ()


def test_outside_of_a_pipeline_there_are_none():
    assert operators_in(of_operators()) == ()


def test_below_an_operator_is_its_own_business():
    with building("p") as now:
        now.built |= built("tumbling-1", "tumbling-2")
        assert not gives_op(of_operators(), is_operator)
        assert gives_op(of_operators("users"), is_operator)
        beside = over("Union", of_operators(), over("Project"))
        assert gives_op(beside, is_operator), "the second input comes straight from the log"


@pytest.mark.parametrize(
    ("plan", "gives"),
    [
        (over("Project", over("Filter", has_op=True)), True),
        (over("Project", over("Aggregate")), False),
        (over("Project", over("Filter", over("Join", SOURCE, SOURCE), has_op=True)), False),
        (over("Union", over("Aggregate"), over("Project")), True),
        (over("Project", Node("CTERelationRef", has_op=True)), False),  # what it refers to counts
        (over("WithCTE", over("CTERelationDef"), Node("CTERelationRef", has_op=True)), True),
        (over("MapInArrow", Node("StreamingRelationV2"), function="users", has_op=True), True),
        (over("Project", Node("Range")), False),
    ],
)
def test_where_op_comes_from(plan, gives):
    assert gives_op(plan, is_operator) is gives


def test_whose_rows_a_write_has():
    """An enrichment gives the events' rows; a window makes rows of its own."""
    orders, customers = (
        Node("StreamingRelationV2", topic=topic) for topic in ("orders", "customers")
    )
    joined = over("MapInArrow", over("Union", orders, customers), function="enrich-1")
    with building("p") as now:
        now.built["enrich-1"] = Built("enrich-1", 8, (), (over("Project", orders),))
        now.built["tumbling-1"] = Built("tumbling-1", 8, ())
        assert streams_of(over("Project", joined)) == [orders, customers]
        assert streams_of(over("Project", joined), inputs_with_rows) == [orders]
        windows = over("MapInArrow", joined, function="tumbling-1")
        both = over("Union", over("Project", joined), windows, customers)
        assert streams_of(both, inputs_with_rows) == [orders, customers]


PLAIN = over("Project", over("Filter", over("Union", over("SubqueryAlias", alias="Join"), SOURCE)))


def test_rows_of_a_source_are_as_the_log_has_them():
    assert not moves_rows(PLAIN)


@pytest.mark.parametrize(
    "name",
    ["Join", "AsOfJoin", "Repartition", "RepartitionByExpression", "Deduplicate",
     "DeduplicateWithinWatermark", "Aggregate", "GlobalLimit"],
)  # fmt: skip
def test_what_moves_rows(name):
    assert moves_rows(over(name, PLAIN))
    assert moves_rows(of_operators())


def test_the_plan_of_a_frame(spark):
    """With more columns than Spark shows, one of which is called like a step of plans."""
    wide = ", ".join(f"id AS c{at}" for at in range(40))
    rows = spark.sql(f"SELECT {wide}, id AS Join, 'c' AS _op FROM range(3)").alias("wide")
    mapped = rows.mapInArrow(lambda batches: batches, rows.schema)
    plan = plan_of(mapped.select("c1").where("c1 > 0"))
    names = ["Filter", "Project", "MapInArrow", "SubqueryAlias", "Project", "Range"]
    assert [node.name for node in plan] == names
    assert [node.has_op for node in plan] == [False, False, True, True, True, False]
    assert [node.function for node in plan if node.function] == ["<lambda>"]
    assert [node.alias for node in plan if node.alias] == ["wide"]
    assert gives_op(plan, is_operator)
    assert not moves_rows(plan)
    assert moves_rows(plan_of(mapped.repartition(2)))
