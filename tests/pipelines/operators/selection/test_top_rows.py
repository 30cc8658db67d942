"""hw.top against a table that is sorted as a whole after each batch."""

import random
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipelines.chained import as_input
from support.pipelines.operator_driver import Driver, Source
from support.pipelines.project import Project
from tiers import examples, long, some

import headwater as hw
from headwater.errors import PipelineError, StateLost
from headwater.pipelines.lineage.tracing import why
from headwater.pipelines.operators.joins.tables.table_changes import TableChanges
from headwater.pipelines.operators.joins.tables.table_join import OneChangePerRow
from headwater.pipelines.operators.selection.top_rows import TopRows
from headwater.pipelines.verification.stores import verify

SCHEMA = pa.schema([("id", pa.int64()), ("shop", pa.string()), ("total", pa.int64())])
NAMES = SCHEMA.names


class Ranking:
    """The operators of hw.top one behind the other; what one gives goes to the next in any order.
    `rows` are those of a store that applies the changes."""

    def __init__(self, directory, n=2, *, ascending=False, rank=None, seed=0):
        top = TopRows(n, ("total",), ascending, ("shop",), ("id",), rank, SCHEMA)
        ranked = [] if rank is None else [pa.field(rank, pa.int32())]
        stages = [
            (
                TableChanges("ranked", SCHEMA, ("id",), ("shop",)),
                Source(SCHEMA, ("id",), (*NAMES, "_op"), everywhere=lambda row: row["_op"] == "t"),
            ),
            (top, Source(SCHEMA, ("shop",), (*NAMES, "_op"))),
            (
                OneChangePerRow(("id",), top.output),
                Source(
                    pa.schema([*SCHEMA, *ranked]),
                    ("id",),
                    (*NAMES, *(field.name for field in ranked), "_op"),
                ),
            ),
        ]
        self.drivers = [
            Driver(operator, [source], directory and directory / str(number), buckets=2)
            for number, (operator, source) in enumerate(stages)
        ]
        self._random = random.Random(seed)
        self.rows = {}

    def batch(self, rows):
        found = self.drivers[0].batch({("t", 0): rows})
        for driver in self.drivers[1:]:
            self._random.shuffle(found)
            found = driver.batch(as_input(found)) if found else []
        changed = set()
        for change in found:
            assert change["id"] not in changed, "two changes of one row"
            changed.add(change["id"])
            row = {name: value for name, value in change.items() if name[0] != "_"}
            if change["_op"] == "c":
                assert change["id"] not in self.rows
                self.rows[change["id"]] = row
            elif change["_op"] == "u":
                assert self.rows[change["id"]] != row, "it is as it was"
                self.rows[change["id"]] = row
            else:
                del self.rows[change["id"]]
        return found


def first_of(table, n, ascending=False, rank=None):
    groups = {}
    for row in table.values():
        groups.setdefault(row["shop"], []).append(row)
    found = {}
    for rows in groups.values():
        sign = 1 if ascending else -1
        rows.sort(
            key=lambda row: (
                row["total"] is None,
                sign * row["total"] if row["total"] is not None else 0,
                row["id"],
            )
        )
        for rank_of_row, row in enumerate(rows[:n], 1):
            found[row["id"]] = {**row, **({} if rank is None else {rank: rank_of_row})}
    return found


CHANGE = st.tuples(
    st.integers(0, 12),
    st.sampled_from(["a", "b", "c", None]),
    st.one_of(st.integers(0, 5), st.none()),
    st.sampled_from("cuuurdt"),
)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.lists(CHANGE, min_size=1, max_size=8), min_size=1, max_size=8),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from([None, "nth"]),
)
def test_the_store_has_the_first_rows_after_each_batch(
    tmp_path_factory, batches, n, ascending, rank
):
    settings = {"ascending": ascending, "rank": rank}
    ranking = Ranking(tmp_path_factory.mktemp("top"), n, **settings)
    table, log = {}, []
    for batch in batches:
        rows = []
        for id_, shop, total, op in batch:
            row = {"id": id_, "shop": shop, "total": total}
            if op == "t":
                table.clear()
                row = dict.fromkeys(row)
            elif op == "d":
                table.pop(id_, None)
                row |= {"shop": None, "total": None}
            else:
                table[id_] = row
            rows.append({**row, "_op": op})
        log += rows
        ranking.batch(rows)
        assert ranking.rows == first_of(table, n, **settings)
    whole = Ranking(None, n, **settings)
    found = whole.batch(log)
    assert whole.rows == ranking.rows
    if found:
        (causes,) = whole.drivers[1].lineage(
            [row for row in whole.drivers[1].again() if row["id"] == found[0]["id"]]
        )
        assert [row["id"] for row in causes] == [found[0]["id"]]


def test_only_what_changes_among_the_first_is_emitted(tmp_path):
    ranking = Ranking(tmp_path)
    table = [{"id": n, "shop": "a", "total": n} for n in range(5)]
    assert {(row["id"], row["_op"]) for row in ranking.batch(table)} == {(4, "c"), (3, "c")}
    assert ranking.batch([{"id": 0, "shop": "a", "total": 1, "_op": "u"}]) == []
    found = ranking.batch([{"id": 1, "shop": "a", "total": 9, "_op": "u"}])
    assert {(row["id"], row["_op"]) for row in found} == {(1, "c"), (3, "d")}
    found = ranking.batch([{"id": 4, "_op": "d"}])
    assert {(row["id"], row["_op"]) for row in found} == {(4, "d"), (3, "c")}


def test_another_number_is_another_state(tmp_path):
    row = {"id": 1, "shop": "a", "total": 1}
    Ranking(tmp_path, 2).batch([row])
    other = Ranking(tmp_path, 3)
    for driver in other.drivers:
        next(driver._numbers)
    with pytest.raises(StateLost):
        other.batch([row | {"total": 2}])


PIPELINE = """
    orders = flow.changes("ranked", "id bigint, shop string, total bigint")
    best = hw.top(orders, 2, by="total", per="shop", key="id", rank="nth")
    flow.write(best, to="cache", table="best", key="id")
    overall = hw.top(orders.select("id", "total", "_op", "_position"), 3, by="total", key="id")
    flow.write(overall, to="cache", table="overall", key="id")
    time = hw.event_time("_at", delay="0 s")
    hours = hw.tumbling(orders, time, "1 hour", by="shop").agg(orders=hw.agg.count())
    busiest = hw.top(
        hours.drop("_mark"), 1, by="orders", per="window_start", key=["shop", "window_start"]
    )
    flow.write(busiest, to="cache", table="busiest", key=["shop", "window_start"])
"""


@long
def test_a_ranking_goes_on_over_restarts(spark, tmp_path, broker_address):
    project = Project(tmp_path, broker_address)
    project.topic("ranked", 2)
    project.pipeline("ranking", PIPELINE)
    rng, table = random.Random(7), {}
    for _ in range(2):
        rows = []
        for _ in range(60):
            row = {"id": rng.randrange(30), "shop": rng.choice("ab"), "total": rng.randrange(99)}
            if rng.random() < 0.2:
                table.pop(row["id"], None)
                row = {"id": row["id"], "_deleted": True}
            else:
                table[row["id"]] = dict(row)
            rows.append(row)
        project.produce("ranked", *rows)
        with project.running(spark, "ranking"):
            project.wait_until_at_end(spark, "ranked", "ranking")
    found = project.rows("SELECT id, shop, total, nth FROM best")
    expected = first_of(table, 2, rank="nth").values()
    assert sorted(found) == sorted(tuple(row.values()) for row in expected)
    everything = {id_: row | {"shop": "all"} for id_, row in table.items()}
    found = project.rows("SELECT id, total FROM overall")
    expected = first_of(everything, 3).values()
    assert sorted(found) == sorted((row["id"], row["total"]) for row in expected)
    (pipeline,) = project.pipelines(spark, "ranking")
    for write in some("busiest", "best", "overall"):
        assert verify(pipeline, write).is_equal, write
    best = max(expected, key=lambda row: (row["total"], -row["id"]))
    traced = why(pipeline, "overall", {"id": str(best["id"])})
    assert traced.row["total"] == best["total"]
    assert [cause.row["id"] for cause in traced.causes] == [best["id"]]


ROWS = (
    "id bigint, shop string, total bigint, tags array<string>, _op string, _at timestamp,"
    " _position struct<topic: string, partition: int, offset: bigint>"
)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"n": 0}, "n=0"),
        ({"by": ()}, "by is empty"),
        ({"by": "no"}, "no column no"),
        ({"per": "tags"}, "neither ordered nor identified"),
        ({"key": ()}, "the key of the table cannot be found"),
        ({"rank": "total"}, "there is a column total already"),
    ],
)
def test_mistakes_are_errors_when_the_pipeline_is_built(spark, given, what):
    frame = spark.createDataFrame([], ROWS)
    with pytest.raises(PipelineError, match=what):
        hw.top(frame, **({"n": 1, "by": "total", "key": "id"} | given))
    with pytest.raises(PipelineError, match="a table that changes"):
        hw.tumbling(hw.top(frame, 1, by="total", key="id"), "total", "1 hour")


def test_rows_of_spark(spark):
    at = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        (n, "ab"[n % 2], n * 7 % 10, None, "c", at + timedelta(seconds=n), ("t", 0, n))
        for n in range(10)
    ]
    frame = spark.createDataFrame(rows, ROWS)
    found = hw.top(frame, 1, by="total", per="shop", key="id", ascending=True).collect()
    assert {(row.shop, row.id, row.total, row["_op"]) for row in found} == {
        ("a", 0, 0, "c"),
        ("b", 3, 1, "c"),
    }
    assert found[0].asDict().keys() == {*frame.columns} - {"_at"}
