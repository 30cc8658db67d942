"""The plan of a view as a graph on the page of its pipeline."""

import time

import pytest
from playwright.sync_api import expect
from support.console.chromium import check_readable
from support.console.recorded_project import ORDERS, RecordedProject
from support.console.serving import serving

from headwater.console.flow.layout import layout
from headwater.console.flow.view_plan import plan_graph, step_of
from headwater.console.project import overview
from headwater.pipelines.running import status
from headwater.pipelines.views.plan_steps import Step
from headwater.testing import InProcessBroker

PLAN = Step(
    "write",
    "write to cache/orders",
    "country",
    operators=("result",),
    inputs=(
        Step(
            "group",
            "count(1), sum(o.total)",
            "c.country",
            "one row for each group",
            "the groups",
            ("group",),
            inputs=(
                Step(
                    "join",
                    "join on o.customer_id = c.id",
                    "",
                    "the rows of both sides",
                    "the rows of both sides",
                    ("join",),
                    inputs=(
                        Step(
                            "filter",
                            "filter NOT (o.status = 'cancelled')",
                            inputs=(
                                Step("table", f"table {ORDERS}", "id", "its rows: id, total",
                                     "the rows of the table", ("orders",), ORDERS),
                            ),
                        ),
                        Step("table", "table shop.main.customers", "id", "its rows: id, country",
                             "the rows of the table", ("customers",), "shop.main.customers"),
                    ),
                ),
            ),
        ),
    ),
)  # fmt: skip


def operators(rows_in, rows_out):
    named = {"orders": 4310, "customers": 900, "join": 5210, "group": 12, "result": 0}
    return {
        name: {
            "state_rows": rows + 7,  # with those that were replaced
            "state_bytes": rows * 30,
            "watermark_us": None,
            "slowest": None,
            "rows": rows,
            "rows_in": rows_in,
            "rows_out": rows_out,
            "late_share": None,
            "late_alert": False,
        }
        for name, rows in named.items()
    }


def test_what_is_measured_is_found_by_the_names_of_operators():
    stored = step_of(PLAN.as_json())
    assert stored == PLAN
    seen = PLAN.with_state(operators(5, 5)).with_rates(operators(5, 5), operators(105, 25), 10)
    found = {step.does: step for step in seen}
    assert found[f"table {ORDERS}"].state_rows == 4310
    assert found[f"table {ORDERS}"].rows_in_per_s == 10
    assert found["count(1), sum(o.total)"].rows_out_per_s == 2
    assert found["write to cache/orders"].state_rows is None  # it stores nothing
    assert found["filter NOT (o.status = 'cancelled')"].rows_in_per_s is None
    begun_again = PLAN.with_rates(operators(105, 25), operators(5, 5), 10)
    assert {step.rows_in_per_s for step in begun_again} == {None}
    assert step_of({}) is None
    assert step_of({"inputs": [], "operators": [], "of": "another version"}) is None


def test_the_graph_goes_from_the_tables_to_the_write():
    picture = layout(plan_graph(PLAN.with_state(operators(0, 0)), "/stores/orders/cache/orders/"))
    columns = {placed.node.name: placed.x for placed in picture.nodes}
    assert columns[f"table {ORDERS}"] == columns["table shop.main.customers"] == 8
    order = [name for name, _ in sorted(columns.items(), key=lambda item: item[1])][2:]
    assert order == [
        "filter NOT (o.status = 'cancelled')",
        "join on o.customer_id = c.id",
        "count(1), sum(o.total)",
        "write to cache/orders",
    ]
    assert {(d.edge.source, d.edge.target) for d in picture.edges} == {
        ("step-1", "step-0"),
        ("step-2", "step-1"),
        ("step-3", "step-2"),
        ("step-5", "step-2"),
        ("step-4", "step-3"),
    }
    notes = {placed.node.name: placed.node.notes for placed in picture.nodes}
    assert notes["count(1), sum(o.total)"] == ("12 rows, 360 B",)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    directory = tmp_path_factory.mktemp("view")
    with (
        pytest.MonkeyPatch.context() as patched,
        InProcessBroker.serving(str(tmp_path_factory.mktemp("view-broker"))) as broker,
    ):
        patched.setattr(overview, "_PROJECT_AGE_S", 0.2)
        recorded = RecordedProject(directory, broker.bootstrap)
        recorded.pipeline(operators=operators(0, 0))
        status.write_view(recorded.state_dir, "orders", PLAN.as_json())
        with serving(directory) as console:
            console.project = recorded
            yield console
        recorded.ended()


def test_the_page_shows_the_steps_with_state_and_rates(served, new_page):
    page = new_page(viewport={"width": 1280, "height": 1000})
    page.goto(served.url + "/pipelines/orders/")
    picture = page.locator("svg.steps")
    expect(picture.locator("a.node")).to_have_count(6)
    expect(picture).to_contain_text("4,310 rows")
    counted = 0
    end_s = time.monotonic() + 60
    row = page.get_by_role("row").filter(has_text="count(1), sum(o.total)")
    while "/s" not in row.inner_text() or " 0.0/s" in row.inner_text():
        assert time.monotonic() < end_s, row.inner_text()
        counted += 1000
        served.project.pipeline(operators=operators(counted, counted // 10))
        time.sleep(0.3)
        page.reload()
    check_readable(page, "/pipelines/orders/")
    picture.locator("a.node").filter(has_text="join on").click()
    page.wait_for_url("**#row-2")
    picture.locator("a.node").filter(has_text="main.orders").click()
    page.wait_for_url(f"**/topics/{ORDERS}/**")
