"""Which operators a write goes through, by the plan of its DataFrame."""

import pytest

from headwater.pipelines.operators.building import (
    Built,
    above_operators,
    building,
    moves_rows,
    name_operator,
    operators_in,
)

PLAN = """Project [name#1, total#2]
+- MapInArrow tumbling-2(bucket#3, packet#4)#5, [name#1, total#2, _mark#6], false
   +- RepartitionByExpression [bucket#3]
      +- Union false, false
         :- MapInArrow Packing(name#7, _position#8)#9, [bucket#3], false
         :  +- MapInArrow tumbling-1(bucket#13, packet#14)#15, [name#7, _op#16], false
         +- MapInArrow users(_op#10)#11, [name#7], false
            +- StreamingRelationV2 [name#7, _op#10]
"""


def built(*kinds):
    return {
        name: Built(name, 8, (("name",),)) for name in [name_operator(kind, []) for kind in kinds]
    }


def test_operators_of_a_plan():
    with building("p") as now:
        now.built |= built("tumbling", "tumbling", "join")
        assert [each.name for each in operators_in(PLAN)] == ["tumbling-2", "tumbling-1"]
        assert "_op" not in above_operators(PLAN)
        assert above_operators(PLAN).endswith("_mark#6], false")


def test_functions_of_users_are_none():
    plan = PLAN.replace("tumbling-2", "dropping").replace("tumbling-1", "mapped")
    with building("p") as now:
        now.built |= built("tumbling", "tumbling")
        assert operators_in(plan) == ()
        assert above_operators(plan) == plan


def test_outside_of_a_pipeline_there_are_none():
    assert operators_in(PLAN) == ()
    assert above_operators(PLAN) == PLAN


PLAIN = """Project [name#1, at#2, _position#3]
+- Filter (name#1 = Sort)
   +- Union false, false
      :- SubqueryAlias Join
      :  +- StreamingRelationV2 [name#1, at#2, _position#3]
      +- StreamingRelationV2 [name#1, at#2, _position#3]
"""


def test_rows_of_a_source_are_as_the_log_has_them():
    assert not moves_rows(PLAIN)


@pytest.mark.parametrize(
    "node",
    ["Join LeftOuter, (a#1 = b#2)", "Repartition 4, true", "RepartitionByExpression [a#1]",
     "Deduplicate [a#1]", "DeduplicateWithinWatermark [a#1]", "Aggregate [a#1], [a#1]"],
)  # fmt: skip
def test_what_moves_rows(node):
    assert moves_rows(PLAIN.replace("Filter (name#1 = Sort)", node))
    assert moves_rows(PLAN)
