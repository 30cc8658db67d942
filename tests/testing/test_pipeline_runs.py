"""`hw.testing.run`: what a pipeline writes, from rows in memory."""

import re
import runpy
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812
from support.pipelines.project import Project
from support.shared_broker import shared_broker

import headwater as hw
from headwater.errors import ConfigError, PipelineError, RowRefused

ORDERS = "shop.public.orders"
CUSTOMERS = "shop.public.customers"


@pytest.fixture(autouse=True)
def _shared(spark):
    """The session of the test run is the one that `run` finds."""


def at(second: int, minute: int = 0) -> datetime:
    return datetime(2026, 3, 1, 12, minute, second, tzinfo=UTC)


@hw.pipeline
def orders(flow: hw.Flow) -> None:
    rows = flow.changes(ORDERS)
    flow.write(rows, to="cache", table="orders", key="id")
    placed = rows.where("_op in ('c', 'r')")
    revenue = placed.groupBy("country").agg(F.sum("total").alias("total"))
    flow.write(revenue, to="warehouse", table="revenue", key=["country"])
    flow.write(rows.select("id", "_op", "_position"), to="warehouse", table="log")


def test_each_write_has_the_rows_that_its_store_would_have():
    results = hw.testing.run(
        orders,
        {
            ORDERS: [
                {"id": 2, "country": "DE", "total": 5},
                {"id": 1, "country": "DE", "total": 3},
                {"id": 3, "country": "FR", "total": 1, "_op": "r"},
                {"id": 1, "country": "DE", "total": 4, "_op": "u"},
                {"id": 2, "_op": "d"},
            ]
        },
    )
    assert results["cache/orders"] == [
        {"id": 1, "country": "DE", "total": 4},
        {"id": 3, "country": "FR", "total": 1},
    ]
    assert results["revenue"] == [
        {"country": "DE", "total": 8},
        {"country": "FR", "total": 1},
    ]
    assert [(row["id"], row["op"]) for row in results["log"]] == [
        (2, "c"), (1, "c"), (3, "r"), (1, "u"), (2, "d"),
    ]  # fmt: skip
    assert list(results) == ["cache/orders", "warehouse/revenue", "warehouse/log"]
    assert results["orders"].arrow.column_names == ["id", "country", "total"]
    assert results.late == []


def test_a_table_of_two_sinks_is_named_with_its_sink():
    @hw.pipeline
    def both(flow):
        for sink in ("cache", "search"):
            flow.write(flow.changes("a", "id int"), to=sink, table="t", key="id")

    results = hw.testing.run(both, {"a": [{"id": 1}]})
    assert results["search/t"] == [{"id": 1}]
    with pytest.raises(KeyError, match="writes several tables t: it writes cache/t, search/t"):
        results["t"]
    with pytest.raises(KeyError, match="does not write u"):
        results["u"]
    assert results.get("u") is None


TYPES = (
    "id bigint not null, price decimal(10,2), day date, at timestamp, local timestamp_ntz,"
    " tags array<string>, more struct<a: int, b: double>, raw binary, ok boolean, text string"
)


@hw.pipeline
def typed(flow: hw.Flow) -> None:
    flow.write(flow.changes("typed", TYPES), to="cache", table="t", key="id")


def test_values_are_read_by_the_schema_as_those_of_json():
    texts = {
        "id": 1, "price": "1.10", "day": "2026-03-01", "at": "2026-03-01T13:00:05+01:00",
        "local": "2026-03-01T12:00:05", "tags": ["a", None], "more": {"a": 1, "b": 0.5},
        "raw": "AAE=", "ok": True, "text": {"json": [1]},
    }  # fmt: skip
    values = texts | {
        "id": 2, "price": Decimal("1.10"), "day": date(2026, 3, 1), "at": at(5),
        "local": at(5).replace(tzinfo=None), "raw": b"\0\1",
        "more": {"a": 1, "b": float("nan")},
    }  # fmt: skip
    one, two = hw.testing.run(typed, {"typed": [texts, values]})["t"]
    assert one == texts | {
        "price": Decimal("1.10"), "day": date(2026, 3, 1), "at": at(5),
        "local": at(5).replace(tzinfo=None), "raw": b"\0\1", "text": '{"json": [1]}',
    }  # fmt: skip
    assert two["more"]["b"] != two["more"]["b"]
    ours = {"id", "more"}
    assert {name: two[name] for name in two if name not in ours} == {
        name: one[name] for name in one if name not in ours
    }


@pytest.mark.parametrize("form", [pd.DataFrame, pa.Table.from_pylist, tuple])
def test_rows_may_be_a_table(form):
    rows = [
        {"id": 1, "country": "DE", "total": 1.5, "_op": "c"},
        {"id": 1, "country": "FR", "total": 2.5, "_op": "u"},
    ]
    results = hw.testing.run(orders, {ORDERS: form(rows)})
    assert results["cache/orders"] == [{"id": 1, "country": "FR", "total": 2.5}]
    typed_rows = form([{"id": 1, "price": Decimal("1.10")}])
    assert hw.testing.run(typed, {"typed": typed_rows})["t"][0]["price"] == Decimal("1.10")


def test_a_schema_is_given_with_the_rows():
    schema = "id bigint, country string, total decimal(10,2)"
    for given in (([], schema), hw.testing.topic([], schema)):
        results = hw.testing.run(orders, {ORDERS: given})
        assert results["revenue"] == []
        assert str(results["cache/orders"].arrow.schema.field("total").type) == "decimal128(10, 2)"


def test_times_are_those_of_the_rows_or_the_earliest():
    @hw.pipeline
    def times(flow):
        for topic in ("a", "b"):
            rows = flow.changes(topic, "id int").withColumnRenamed("_at", "at")
            flow.write(rows, to="cache", table=topic, key="id")

    given = {
        "a": [{"id": 1}, {"id": 2, "_at": at(7)}, {"id": 3}],
        "b": [{"id": 1, "_at": "2026-03-01T12:00:05Z"}, {"id": 2}],
    }
    results = hw.testing.run(times, given)
    assert [row["at"] for row in results["a"]] == [at(5), at(7), at(7)]
    assert [row["at"] for row in results["b"]] == [at(5), at(5)]


@hw.pipeline
def clicks(flow: hw.Flow) -> None:
    rows = flow.changes("clicks", "user string, at timestamp")
    time = hw.event_time("at", delay="10 seconds")
    counts = hw.tumbling(rows, time, "1 minute", by="user", late="side").agg(n=hw.agg.count())
    flow.write(counts, to="cache", table="clicks", key=["user", "window_start"])


CLICKS = [
    {"user": "a", "at": at(1)},
    {"user": "a", "at": at(2)},
    {"user": "b", "at": at(5)},
    {"user": "a", "at": at(30, minute=2)},
    {"user": "b", "at": at(3)},
]


def test_windows_are_complete_when_a_later_row_closes_them():
    results = hw.testing.run(clicks, {"clicks": CLICKS})
    found = [(row["user"], row["window_start"], row["n"]) for row in results["clicks"]]
    assert found == [("a", at(0), 2), ("b", at(0), 1)]
    (late,) = results.late
    assert late["operator"].startswith("tumbling")
    assert (late["cause"], late["topic"], late["offset"]) == ("late", "clicks", 4)
    assert late["row"]["user"] == "b"
    assert late["row"]["at"] == at(3)


def test_operators_join_topics():
    @hw.pipeline
    def joined(flow):
        placed = flow.changes(ORDERS)
        named = hw.enrich(placed, flow.table(CUSTOMERS), on=[("customer", "id")])
        flow.write(named, to="cache", table="enriched", key="id")
        customers = flow.changes(CUSTOMERS).withColumnRenamed("id", "customer")
        both = hw.join_tables(placed, customers, on="customer", left_key="id", right_key="customer")
        flow.write(both, to="cache", table="joined", key="id")
        dated = hw.enrich(placed, flow.table(CUSTOMERS), on=[("customer", "id")], as_of="at")
        flow.write(dated, to="cache", table="dated", key="id")

    customers = [{"id": 7, "name": "Ada", "_at": at(0)}, {"id": 7, "name": "Eve", "_at": at(9)}]
    rows = [
        {"id": 1, "customer": 7, "at": at(5), "_at": at(5)},
        {"id": 2, "customer": 7, "at": at(5), "_at": at(10)},
        {"id": 3, "customer": 8, "at": at(5), "_at": at(10)},
    ]
    given = {
        ORDERS: hw.testing.topic(rows, key="id"),
        CUSTOMERS: hw.testing.topic(customers, "id bigint, name string", key="id"),
    }
    results = hw.testing.run(joined, given)
    assert [row["name"] for row in results["enriched"]] == ["Ada", "Eve", None]
    assert [row["name"] for row in results["joined"]] == ["Eve", "Eve"]
    assert [row["name"] for row in results["dated"]] == ["Ada", "Ada", None]
    none = hw.testing.topic([], "id bigint, name string", key="id")
    results = hw.testing.run(joined, {**given, CUSTOMERS: none})
    assert [row["name"] for row in results["enriched"]] == [None, None, None]
    del given[CUSTOMERS]
    with pytest.raises(PipelineError, match=f"no rows of {CUSTOMERS}"):
        hw.testing.run(joined, given)
    with pytest.raises(PipelineError, match=f"the key of {CUSTOMERS} is unknown") as raised:
        hw.testing.run(joined, {**given, CUSTOMERS: customers})
    assert 'hw.testing.topic(rows, key="id")' in raised.value.hint


def test_topics_by_a_pattern_and_values_as_bytes():
    @hw.pipeline
    def raw(flow):
        flow.write(flow.changes(pattern="a-.*", schema="id int"), to="c", table="p", key="id")
        rows = flow.changes("raw", value="bytes", options={"headers": "true"})
        flow.write(rows.drop("timestamp"), to="c", table="raw", key="offset")

    record = {"key": b"k", "value": {"a": 1}, "headers": {"h": "1"}}
    results = hw.testing.run(raw, {"a-1": [{"id": 1}], "a-2": [{"id": 2}], "raw": [record]})
    assert [row["id"] for row in results["p"]] == [1, 2]
    assert results["raw"] == [
        {
            "key": b"k", "value": b'{"a": 1}', "topic": "raw", "partition": 0, "offset": 0,
            "headers": [{"name": "h", "value": b"1"}],
        }
    ]  # fmt: skip


def test_a_truncate_empties_the_table():
    rows = [
        {"id": 1, "country": "DE", "total": 1},
        {"_op": "t"},
        {"id": 2, "country": "DE", "total": 1},
    ]
    results = hw.testing.run(orders, {ORDERS: rows})
    assert [row["id"] for row in results["cache/orders"]] == [2]


FILE = """
import headwater as hw
from helpers import doubled

@hw.pipeline
def numbers(flow):
    rows = flow.changes("n", "id int")
    flow.write(rows.withColumn("twice", doubled("id")), to="cache", table="n", key="id")
"""
HELPERS = """
from pyspark.sql.functions import udf

@udf("int")
def doubled(number):
    if number == 13:
        raise ValueError("13 is refused")
    return 2 * number
"""


def test_a_pipeline_is_named_by_its_file(tmp_path, monkeypatch):
    (tmp_path / "numbers.py").write_text(FILE)
    (tmp_path / "helpers.py").write_text(HELPERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    results = hw.testing.run("numbers.py", {"n": [{"id": 2}]})
    assert results["n"] == [{"id": 2, "twice": 4}]
    with pytest.raises(PipelineError, match=r"helpers.py:7: .*13 is refused"):
        hw.testing.run(tmp_path / "numbers.py", {"n": [{"id": 13}]})
    sys.modules.pop("helpers")


def test_a_function_of_an_imported_module_reaches_the_workers(tmp_path, monkeypatch):
    """Also of those beside it, which workers cannot import."""
    package = tmp_path / "flows_of_a_test"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "numbers.py").write_text(FILE.replace("from helpers", "from .helpers"))
    (package / "helpers.py").write_text(HELPERS)
    monkeypatch.syspath_prepend(tmp_path)
    from flows_of_a_test.numbers import numbers

    assert hw.testing.run(numbers, {"n": [{"id": 3}]})["n"] == [{"id": 3, "twice": 6}]


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ({ORDERS: [{"id": 1, "country": "DE", "total": 1}], "shop.orders": []},
         f"does not read shop.orders: it reads {ORDERS}", ""),
        ({"shop.public.order": []}, f"no rows of {ORDERS}.*: it has rows of shop.public.order",
         "does shop.public.order mean it?"),
        ({}, f"the test has no rows of {ORDERS}", "hw.testing.topic"),
        ({ORDERS: []}, f"the columns of {ORDERS} are unknown", "schema="),
        ({ORDERS: [{"id": 1, "country": None, "total": 1}]}, "the type of country", "schema="),
        ({ORDERS: [{"id": 1}, {"id": "x"}]}, "values of id .* no common type", "schema="),
        ({ORDERS: [1, 2]}, "are list", "dictionaries"),
        ({ORDERS: "x"}, "are str", "dictionaries"),
        ({ORDERS: ([{"id": 1, "totl": 1}], "id int, total int")}, "does not have: totl", "total"),
        ({ORDERS: ([{"id": "x"}], "id int")}, "row 0 of .* field id: expected", ""),
        ({ORDERS: ([{"id": None}], "id int not null")}, "row 0 of .* has no id", ""),
        ({ORDERS: ([], "id whatever")}, "cannot read the schema", "as in SQL"),
        ({ORDERS: [{"id": 1, "_op": "x"}]}, "_op of a row of .* is 'x'", "c, u, r, d, t"),
        ({ORDERS: [{"id": 1, "_at": "soon"}]}, "_at of a row of .* is 'soon'", "2026"),
        ({ORDERS: (pa.table({"id": ["x"]}), "id int")}, "does not become int32", ""),
    ],
)  # fmt: skip
def test_a_mistake_in_the_rows_is_reported(given, message, hint):
    with pytest.raises(PipelineError, match=message) as raised:
        hw.testing.run(orders, given)
    assert hint in raised.value.hint


def test_a_mistake_in_the_pipeline_is_reported_with_its_line():
    @hw.pipeline
    def broken(flow):
        flow.write(flow.changes("a", "id int").select("nothing"), to="cache", table="t")

    with pytest.raises(PipelineError, match=r"test_pipeline_runs.py:\d+: AnalysisException"):
        hw.testing.run(broken, {"a": [{"id": 1}]})


def test_a_key_that_is_null_is_refused_as_by_stores():
    @hw.pipeline
    def keyed(flow):
        flow.write(flow.changes("a", "id int"), to="cache", table="t", key="id")

    with pytest.raises(RowRefused):
        hw.testing.run(keyed, {"a": [{"id": None}]})


def test_two_results_of_one_key_are_refused_as_by_verify():
    @hw.pipeline
    def counted(flow):
        rows = flow.changes("clicks", "user string, at timestamp")
        counts = hw.tumbling(rows, "at", "1 minute", by="user").agg(n=hw.agg.count())
        flow.write(counts, to="cache", table="t", key=["window_start"])

    with pytest.raises(PipelineError, match="two rows of one key: window_start=2026-03-01"):
        hw.testing.run(counted, {"clicks": CLICKS})


def test_what_is_no_pipeline_is_refused(tmp_path):
    with pytest.raises(PipelineError, match="is no pipeline"):
        hw.testing.run(lambda flow: None, {})
    with pytest.raises(PipelineError, match="there is no file"):
        hw.testing.run(tmp_path / "missing.py", {})
    (tmp_path / "empty.py").touch()
    with pytest.raises(ConfigError, match=r"empty.py has no pipeline"):
        hw.testing.run(tmp_path / "empty.py", {})


def test_the_example_of_the_documentation_runs(tmp_path):
    """The test of docs/testing.md, of the pipeline of docs/pipelines.md."""
    docs = Path(__file__).parents[2] / "docs"
    for page, file in (("pipelines.md", "pipelines/orders.py"), ("testing.md", "tests/test_it.py")):
        example = re.search(r"```python\n(.*?)```", (docs / page).read_text(), re.DOTALL)
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text(example[1])
    names = runpy.run_path(str(tmp_path / "tests/test_it.py"))
    names["test_revenue_is_that_of_placed_orders"]()


def test_the_test_of_a_new_project_passes():
    project = Path(hw.__file__).parent / "project_template"  # `headwater init` copies it
    names = runpy.run_path(str(project / "tests/test_orders.py"))
    names["test_an_order_has_its_total"]()


BOTH_WAYS = """
    rows = flow.changes("both", "id bigint, name string, at timestamp, total decimal(8,2)")
    flow.write(rows, to="cache", table="latest", key="id")
    twice = rows.union(rows)
    time = hw.event_time("at", delay="5 seconds")
    windows = hw.tumbling(twice, time, "1 minute", by="name").agg(
        n=hw.agg.count(), total=hw.agg.sum("total")
    )
    flow.write(windows.drop("_mark"), to="cache", table="windows", key=["name", "window_end"])
"""


def test_the_rows_are_those_of_the_running_pipeline(spark, tmp_path):
    with shared_broker(tmp_path / "broker") as address:
        project = Project(tmp_path, address)
        project.pipeline("both_ways", BOTH_WAYS)
        project.topic("both")
        rows = [
            {"id": n % 7, "name": "ab"[n % 2], "at": at(n * 13 % 60, n // 9).isoformat(),
             "total": f"{n}.50"}
            for n in range(60)
        ]  # fmt: skip
        results = hw.testing.run(project.directory / "both_ways.py", {"both": rows})
        project.produce("both", *(dict(row) for row in rows))
        with project.running(spark, "both_ways"):
            project.wait_until_at_end(spark, "both", "both_ways")
        latest = project.rows("SELECT id, name, total FROM latest ORDER BY id")
        windows = project.rows("SELECT name, n, total FROM windows ORDER BY name, window_end")
    assert [(row["id"], row["name"], str(row["total"])) for row in results["latest"]] == [
        (key, name, str(total)) for key, name, total in latest
    ]
    assert len(windows) > 4
    assert [(row["name"], row["n"], row["total"]) for row in results["windows"]] == [
        (name, n, Decimal(str(total))) for name, n, total in windows
    ]
