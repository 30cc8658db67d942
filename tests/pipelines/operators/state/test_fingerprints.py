"""Fingerprints: operators find their state by what they are, not by where they are created."""

from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 (as all of PySpark's users write it)

from headwater.errors import PipelineError
from headwater.pipelines.operators.runtime.naming import Built, building, is_operator, name_operator
from headwater.pipelines.operators.state.fingerprints import NO_SETTING, fingerprint
from headwater.pipelines.plans import Node, plan_of

SCHEMA = pa.schema([("n", pa.int64())])


@dataclass(frozen=True)
class Windows:
    size_us: int
    by: tuple[str, ...]
    output: pa.Schema = SCHEMA
    columns: tuple[str, ...] = field(default=("id", "n"), metadata=NO_SETTING)


MINUTES = Windows(60_000_000, ("name",))
ORDERS = Node("StreamingRelationV2", topic="orders", text="StreamingRelationV2 [id#1, n#2]")


def over(text, *children, **about):
    return Node(text.partition(" ")[0].lstrip("~"), children or (ORDERS,), text=text, **about)


PAID = over("Filter (status#3 = paid)")
OPEN = over("Filter (status#7 = open)")


def of(operator, *inputs):
    return fingerprint(operator, inputs, is_operator)


def test_the_same_operator_is_the_same_in_another_process():
    again = over("Filter (status#1234 = paid)", replace(ORDERS, text="StreamingRelationV2 [id#99]"))
    assert of(MINUTES, PAID) == of(Windows(60_000_000, ("name",)), again)


@pytest.mark.parametrize(
    ("operator", "inputs"),
    [
        (MINUTES, [OPEN]),
        (MINUTES, [PAID, PAID]),
        (replace(MINUTES, size_us=1), [PAID]),
        (replace(MINUTES, by=("shop",)), [PAID]),
        (MINUTES, [over("Filter (status#3 = paid)", replace(ORDERS, topic="returns"))]),
        (MINUTES, [over("Project [(n#1 + 1) AS n#2]", PAID)]),
        (MINUTES, [over("MapInArrow users(id#1)#2", PAID, function="users")]),
    ],
)
def test_another_operator_is_another_one(operator, inputs):
    assert of(operator, *inputs) != of(MINUTES, PAID)


def test_new_columns_of_an_input_make_no_other_operator():
    narrow = over("Project [id#1, n#2L, f(a#1, n#2L) AS computed#5]", PAID)
    wide = over("Project [id#1, new#7, n#2L, f(a#1, n#2L) AS computed#9]", PAID)
    wider = replace(MINUTES, output=pa.schema([("m", pa.string())]), columns=("id", "n", "new"))
    assert of(MINUTES, narrow) == of(wider, wide)
    assert of(MINUTES, over("Project [id#1, n#2L]", PAID)) == of(MINUTES, PAID)
    other = over("Project [id#1, n#2L, f(n#2L, a#1) AS computed#5]", PAID)
    assert of(MINUTES, narrow) != of(MINUTES, other)


@pytest.mark.parametrize(
    "text",
    [
        "Filter (rand({0}) < 0.5)",
        "Project [uuid(Some(-{0})) AS id#1]",
        "Filter exists(a#1, lambdafunction((lambda x_{0}#5 > 1), lambda x_{0}#5, false))",
        "Repartition {0}, true",
        "Sample 0.0, 0.5, false, {0}, Bernoulli",
        "EventTimeWatermark 5b5e929e-40ed-44b4-8eed-0120{0}, at#1: timestamp, 1 minutes",
        "CollectMetrics read, [count(1) AS n#2L], {0}",
        "~CTERelationRef {0}, true, [id#1L], true, false",
    ],
)
def test_numbers_that_are_others_each_time_make_no_other_operator(text):
    assert of(MINUTES, over(text.format(12))) == of(MINUTES, over(text.format(345)))


def test_a_frame_that_is_built_again(spark):
    """As at every start: by the numbers of another plan the operator would miss its state."""

    def built():
        rows = spark.readStream.format("rate").load().withWatermark("timestamp", "1 minute")
        rows = rows.observe("read", F.count("*").alias("n")).sample(0.5)
        rows.createOrReplaceTempView("of_fingerprints")
        sql = "WITH odd AS (SELECT * FROM of_fingerprints WHERE value % 2 = 1) SELECT * FROM odd"
        united = spark.sql(sql).unionByName(rows.where("value > 7"))
        return of(MINUTES, plan_of(united.withColumn("x", F.rand() + F.col("value"))))

    assert built() == built()


def test_parts_of_a_plan_that_are_named_by_numbers_are_distinguished():
    def both(one, other):
        parts = [over(f"CTERelationDef {one}, false", PAID), over(f"CTERelationDef {other}, false")]
        return over("WithCTE", *parts, Node("CTERelationRef", text=f"CTERelationRef {other}, true"))

    assert of(MINUTES, both(3, 4)) == of(MINUTES, both(17, 18))
    assert of(MINUTES, both(3, 4)) != of(MINUTES, both(3, 3))


def test_a_bounded_run_calls_operators_as_the_stream_does():
    """`why` names them. A frame that is a stream is marked, and may have a watermark of Spark's."""
    stream = over("~Project [at#1-T600ms, (n#2L + 1) AS n#3L]", over("~Filter (n#2L > 1)"))
    read = Node("DataSourceV2Relation", topic="orders", text="RelationV2[id#1] headwater")
    bounded = over("Project [at#5, (n#6L + 1) AS n#7L]", over("Filter (n#6L > 1)", read))
    assert of(MINUTES, stream) == of(MINUTES, bounded)


def test_an_operator_among_the_inputs_counts_by_its_name():
    with building("p") as now:
        now.built["mine"] = Built("mine", 8, ())
        one = over("MapInArrow mine(x#1)", PAID, function="mine")
        other = over("MapInArrow mine(x#1)", OPEN, function="mine")
        assert of(MINUTES, one) == of(MINUTES, other)
        assert of(MINUTES, one) != of(MINUTES, PAID)


def names(*fingerprints):
    with building("p"):
        return [name_operator("tumbling", fingerprint) for fingerprint in fingerprints]


def test_neither_inserting_nor_swapping_changes_the_name_of_another():
    assert names("aa", "bb") == ["tumbling-aa", "tumbling-bb"]
    assert names("bb", "aa") == ["tumbling-bb", "tumbling-aa"]
    assert names("cc", "aa", "bb") == ["tumbling-cc", "tumbling-aa", "tumbling-bb"]
    assert names("aa", "aa", "aa") == ["tumbling-aa", "tumbling-aa-2", "tumbling-aa-3"]


def test_a_name_of_the_users_own():
    with building("p"):
        assert name_operator("tumbling", "aa", "by-shop") == "by-shop"
        with pytest.raises(PipelineError, match="two operators are called by-shop"):
            name_operator("hopping", "bb", "by-shop")
        for wrong in ("", "a/b", "..", "a b"):
            with pytest.raises(PipelineError, match="name="):
                name_operator("tumbling", "aa", wrong)
