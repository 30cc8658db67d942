"""Flow, captures, pipelines, stores and jobs of a project, by what its processes have left."""

import re
import sys
import time

import pytest
from support.console.recorded_project import ORDERS, RecordedProject
from support.console.serving import serving
from tiers import long

import headwater
from headwater import extras
from headwater.console.project import definitions, jobs, overview
from headwater.console.web import cache
from headwater.errors import MissingExtra
from headwater.pipelines.running import status
from headwater.supervisor.status_file import ChildStatus
from headwater.testing import InProcessBroker

TIMEOUT_S = 60


def wait_until(condition, what):
    end_s = time.monotonic() + TIMEOUT_S
    while not (found := condition()):
        assert time.monotonic() < end_s, f"{what} has not happened"
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Readings are renewed sooner than they would, so that tests need not wait."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(overview, "_PROJECT_AGE_S", 0.2)
        patched.setattr(definitions, "_STORE_AGE_S", 0.2)
        patched.setattr(cache, "_SHARE", 1.0)
        yield from _served(tmp_path_factory)


def _served(tmp_path_factory):
    directory = tmp_path_factory.mktemp("recorded")
    with InProcessBroker.serving(str(tmp_path_factory.mktemp("broker"))) as broker:
        recorded = RecordedProject(directory, broker.bootstrap)
        recorded.capture()
        recorded.pipeline()
        with serving(directory) as console:
            console.project = recorded
            yield console
        recorded.ended()


@pytest.fixture
def browser(served):
    return served.browser()


def nodes_of(browser):
    """States of the flow's nodes, by their ids."""
    return {node["id"]: node["state"] for node in browser.get("/flow.json").json["nodes"]}


def posted(browser, path, fields=None, *, confirmed=False):
    fields = {**(fields or {}), **({"confirmed": "yes"} if confirmed else {})}
    return browser.post(path, fields)


@pytest.mark.parametrize("page", ["/flow", "/captures", "/pipelines", "/stores"])
def test_without_the_extra_of_pipelines_pages_show_the_rest(served, browser, monkeypatch, page):
    missing = MissingExtra("the state of a pipeline", ["pipelines"], ["pyspark"])

    def require(*_):
        raise missing

    with monkeypatch.context() as patched:
        patched.setattr(extras, "require", require)
        shown = wait_until(
            lambda: missing.what in (found := browser.get(page).text.lower()) and found, "the hint"
        )
        assert "pip install &#39;headwater[pipelines]&#39;" in shown
        assert ("shop" if page in ("/flow", "/captures") else "cache/orders") in shown
        (capture,) = browser.get("/captures.json").json["captures"]
        assert (capture["capture"], capture["state"]) == ("shop", "following")
        orders, idle = browser.get("/pipelines.json").json["pipelines"]
        assert (orders["state"], idle["state"]) == ("running", "never ran")
        (write,) = orders["writes"]
        assert write["lag"] is None
        assert missing.hint in write["store_error"]
        assert browser.get("/pipelines/orders/").status == 200
        assert browser.get("/stores/orders/cache/orders/").status == 200
    wait_until(lambda: missing.what not in browser.get(page).text.lower(), "the whole state")


def stand_in(monkeypatch, source):
    """What is run instead of `headwater …`."""
    code = "import json, sys, time\n" + source
    monkeypatch.setattr(jobs, "_COMMAND", (sys.executable, "-c", code))


def ended_job(browser, answer):
    assert answer.status == 303, answer.text
    path = answer.headers["location"]
    wait_until(
        lambda: browser.get(path.rstrip("/") + ".json").json["state"] not in ("waiting", "running"),
        "the end of the job",
    )
    return path


@pytest.mark.parametrize(
    "path",
    ["/flow", "/groups", "/queues", "/captures", "/captures/shop/", "/pipelines",
     "/pipelines/orders/", "/pipelines/idle/", "/stores", "/stores/orders/cache/orders/", "/jobs"],
)  # fmt: skip
def test_every_page_has_its_json_beside_it(browser, path):
    page = browser.get(path)
    assert page.status == 200, page.text
    assert "This page as JSON" in page.text
    assert browser.get(path.rstrip("/") + ".json").json is not None
    assert " style=" not in page.text  # the policy would drop it
    assert "<script>" not in page.text


def test_the_flow_joins_source_topic_pipeline_and_store(browser):
    flow = browser.get("/flow.json").json
    joined = {(edge["from"], edge["to"]) for edge in flow["edges"]}
    assert joined >= {
        ("source:shop", f"topic:{ORDERS}"),
        ("source:shop", "topic:shop.schema"),
        (f"topic:{ORDERS}", "pipeline:orders"),
        ("pipeline:orders", "store:orders/cache/orders"),
    }
    (cause,) = flow["causes"]
    assert cause["id"] == "source:shop"
    assert "main.items" in cause["cause"]
    page = browser.get("/flow").text
    for node in flow["nodes"]:
        # Once in the picture, once in the table, at least.
        assert page.count(f'href="{node["href"]}"') >= 2
        assert browser.get(node["href"]).status == 200
    assert browser.get("/").headers["location"] == "/flow"


def test_the_processes_that_up_looks_after(served, browser):
    children = [
        ChildStatus("broker", "broker", "ready", address="127.0.0.1:9092"),
        ChildStatus("capture shop", "capture", "paused", restarts=4, reason="no such host"),
    ]
    with served.project.supervised(*children):
        assert "no such host" in browser.get("/flow").text
        assert "no such host" in browser.get("/captures/shop/").text
    # Why it was started again is no trouble any more once it is ready.
    ready = ChildStatus("capture shop", "capture", "ready", restarts=4, reason="no such host")
    with served.project.supervised(ready):
        assert "no such host" not in browser.get("/captures/shop/").text
    assert browser.get("/flow.json").json["processes"] == []


def test_a_capture_with_its_progress_and_the_fix_of_its_error(browser):
    capture = browser.get("/captures/shop.json").json
    tables = {table["table"]: table for table in capture["tables"]}
    assert tables["main.orders"]["snapshot"] == {"rows": 40, "estimated_rows": 160, "done": False}
    assert tables["main.orders"]["records"] == 100
    assert tables["main.items"]["failed"]["hint"] == "give it a primary key"
    assert (capture["lag_bytes"], capture["retained_bytes"]) == (0, 4096)
    (change,) = capture["schema_changes"]
    assert (change["table"], change["ddl"]) == (
        "main.orders",
        "ALTER TABLE orders ADD product TEXT",
    )
    page = browser.get("/captures/shop/").text
    assert "Table main.items is not followed: items has no key" in page
    assert "Give it a primary key" in page
    assert 'value="40" max="160"' in page


def test_copying_a_table_again_asks_first(browser, monkeypatch):
    stand_in(monkeypatch, "print(json.dumps({'rows': 160, 'tables': ['main.orders']}))")
    path, fields = "/captures/shop/snapshot", {"table": "main.orders"}
    asked = posted(browser, path, fields)
    assert asked.status == 200
    assert "Copy main.orders again?" in asked.text
    assert browser.get("/jobs.json").json["jobs"] == []
    job = ended_job(browser, posted(browser, path, fields, confirmed=True))
    assert "160 rows of main.orders copied" in browser.get(job).text
    command = browser.get(job.rstrip("/") + ".json").json["command"]
    assert command == "headwater capture snapshot --wait --table=main.orders shop"
    assert posted(browser, path, {"table": "main.nothing"}, confirmed=True).status == 400
    assert "Copy main.orders again" in browser.get("/captures/shop/").text  # it is not forgotten


def test_a_pipeline_with_its_batches_watermark_and_plan(browser):
    pipeline = browser.get("/pipelines/orders.json").json
    assert pipeline["state"] == "running"
    (write,) = pipeline["writes"]
    assert (write["lag"], write["batch_ms"], write["store_ms"]) == (40, 250, 200)
    assert 80 < write["operators"]["tumbling-1"]["watermark_gap_s"] < 600
    assert write["plan"].startswith("== Physical Plan ==")
    page = browser.get("/pipelines/orders/").text
    assert "partition 3 of clicks" in page
    assert "3 late" in page
    assert "40 records behind" in page
    assert "== Physical Plan ==" in page
    idle = browser.get("/pipelines/idle/").text
    assert "No process runs it now" in idle


@long
def test_a_pipeline_that_fails_before_it_says_what_it_writes(served, browser):
    """What an earlier process reported of its writes is their definition, not their state."""
    served.project.pipeline(read=100)
    status._written.clear()
    status.write(
        served.project.state_dir, "orders", {"": {"state": "failed", "error": "boom", "hint": ""}}
    )
    try:
        pipeline = wait_until(
            lambda: (found := browser.get("/pipelines/orders.json").json)["error"] and found,
            "the failure",
        )
        assert pipeline["state"] == "failed"
        (write,) = pipeline["writes"]
        assert (write["state"], write["health"]) == ("failed", "bad")
        assert write["rows_per_s"] == 0.0  # of a batch of long ago
        page = browser.get("/pipelines/orders/").text
        assert "boom" in page
        assert ">running<" not in page
        expected = {"pipeline:orders": "broken", "store:orders/cache/orders": "idle"}
        wait_until(lambda: expected.items() <= nodes_of(browser).items(), "the nodes' states")
    finally:
        served.project.pipeline()


def test_a_pipeline_whose_changed_file_is_not_in_use(served, browser):
    served.project.pipeline(error="its file has changed, and does not load", read=100)
    try:
        (write,) = wait_until(
            lambda: (
                (found := browser.get("/pipelines/orders.json").json["writes"])[0]["error"]
                and found
            ),
            "the error",
        )
        assert (write["state"], write["health"]) == ("running", "warn")
        page = browser.get("/pipelines/orders/").text
        assert "The changed pipeline file is not in use." in page
        assert ", behind" not in page
    finally:
        served.project.pipeline()


def test_rebuilding_and_promoting_ask_first(browser, monkeypatch):
    stand_in(monkeypatch, "print(json.dumps({'versions': {'cache/orders': 2}, 'promoted': False}))")
    for path, fields in (
        ("/pipelines/orders/rebuild", {"write": "cache/orders"}),
        ("/pipelines/orders/promote", {"version": "2"}),
    ):
        before = len(browser.get("/jobs.json").json["jobs"])
        assert "orders?" in posted(browser, path, fields).text
        assert len(browser.get("/jobs.json").json["jobs"]) == before
    job = ended_job(
        browser,
        posted(
            browser, "/pipelines/orders/rebuild", {"write": "cache/orders", "promote": "1"},
            confirmed=True,
        ),
    )  # fmt: skip
    assert "version 2 is complete" in browser.get(job).text
    command = browser.get(job.rstrip("/") + ".json").json["command"]
    assert command == "headwater pipeline rebuild --write=cache/orders --promote orders"
    wrong = posted(browser, "/pipelines/orders/promote", {"version": "--drop"}, confirmed=True)
    assert wrong.status == 400


def test_a_store_with_its_position_against_the_log(browser):
    store = wait_until(
        lambda: (
            (found := browser.get("/stores/orders/cache/orders.json").json)["lag"] == 40 and found
        ),
        "a reading of now",
    )
    assert (store["is_in_step"], store["kind"]) == (False, "sqlite")
    assert store["positions"] == [
        {"topic": ORDERS, "partition": 0, "position": 60, "end_offset": 100, "lag": 40}
    ]
    (listed,) = browser.get("/stores.json").json["stores"]
    assert listed["store"] == "orders/cache/orders"


def test_a_store_that_comes_in_step(served, browser):
    served.project.apply(100)
    try:
        wait_until(
            lambda: browser.get("/stores/orders/cache/orders.json").json["is_in_step"], "in step"
        )
    finally:
        served.project.apply(60)
        wait_until(
            lambda: browser.get("/stores/orders/cache/orders.json").json["lag"] == 40, "behind"
        )


VERDICT = {
    "name": "orders", "write": "cache/orders", "version": 1, "is_equal": False, "rows": 61,
    "offsets": {}, "different": 2, "not_derived": [],
    "differences": [
        {"key": {"id": 3}, "stored": {"id": 3, "product": "lamp<b>"},
         "derived": {"id": 3, "product": "desk"}},
        {"key": {"id": 4}, "stored": None, "derived": {"id": 4, "product": "chair"}},
    ],
}  # fmt: skip


def test_verifying_shows_the_rows_that_differ(browser, monkeypatch):
    stand_in(
        monkeypatch,
        f"sys.stderr.write('deriving …\\n'); print(json.dumps([{VERDICT!r}])); sys.exit(3)",
    )
    job = ended_job(browser, posted(browser, "/stores/orders/cache/orders/verify"))
    for page in (browser.get(job).text, browser.get("/stores/orders/cache/orders/").text):
        assert "2 of 61 rows differ" in page
        assert "<mark>product=lamp&lt;b&gt;</mark>" in page  # what a store has is shown, not run
        assert "missing" in page
    assert "verify orders/cache/orders" in browser.get(job).text


def test_why_a_row_is_as_it_is(browser, monkeypatch):
    trace = {
        "write": "cache/orders", "row": {"id": 3, "product": "desk"}, "count": 5, "untraced": [],
        "is_certain": True,
        "causes": [{"topic": ORDERS, "partition": 0, "offset": 41, "at": None, "op": "u",
                    "record": {"id": 3}, "use": "enrich-1: event"}],
    }  # fmt: skip
    stand_in(monkeypatch, f"print(json.dumps({trace!r}))")
    assert posted(browser, "/stores/orders/cache/orders/why", {}).status == 400
    answer = posted(browser, "/stores/orders/cache/orders/why", {"key.id": "--limit=3"})
    job = ended_job(browser, answer)
    page = browser.get(job).text
    assert "0@41" in page
    assert "enrich-1: event" in page
    assert "and 4 older" in page
    command = browser.get(job.rstrip("/") + ".json").json["command"]
    assert command == "headwater why --key=id=--limit=3 orders/cache/orders"


def test_a_job_can_be_cancelled_and_says_why_it_failed(browser, monkeypatch):
    stand_in(monkeypatch, "sys.stderr.write('half way\\n'); sys.stderr.flush(); time.sleep(600)")
    path = posted(browser, "/stores/verify").headers["location"]
    wait_until(lambda: "half way" in browser.get(path).text, "progress")
    again = posted(browser, "/stores/verify")
    assert again.status == 409
    assert "under way" in again.text
    browser.post(f"{path}cancel")
    assert browser.get(path.rstrip("/") + ".json").json["state"] == "cancelled"
    stand_in(monkeypatch, 'sys.stderr.write(\'{"error": "no Java"}\'); sys.exit(1)')
    job = ended_job(browser, posted(browser, "/stores/verify"))
    assert browser.get(job.rstrip("/") + ".json").json["error"] == {"error": "no Java"}
    assert "No Java" in browser.get(job).text


@pytest.mark.parametrize(
    "path",
    ["/captures/shopp/", "/pipelines/order/", "/stores/orders/cache/order/", "/jobs/999/",
     "/queues/none/", "/groups/none/"],
)  # fmt: skip
def test_what_is_not_there(browser, path):
    assert browser.get(path).status == 404


def test_nothing_is_changed_without_the_form_of_a_page(browser):
    for path in ("/stores/verify", "/pipelines/orders/rebuild", "/captures/shop/snapshot"):
        refused = browser.post(path, {"confirmed": "yes"}, token=False)
        assert refused.status == 403


def test_many_who_look_cost_one_reading(served):
    browsers = [served.browser() for _ in range(5)]
    browsers[0].get("/flow")
    before = _asked(browsers[0])
    for browser in browsers * 4:
        assert browser.get("/flow").status == 200
    assert _asked(browsers[0]) - before <= 20  # of 20 times 3 readings; seconds may pass


def _asked(browser):
    found = re.search(r"headwater_console_readings_total (\d+)", browser.get("/metrics").text)
    return int(found[1])


def test_without_a_broker_the_page_says_so_and_goes_on_when_it_is_back(tmp_path):
    with InProcessBroker.serving(str(tmp_path / "broker")) as broker:
        (tmp_path / "headwater.toml").write_text(
            f'[broker]\nbootstrap = "{broker.bootstrap}"\ndata_dir = "data"\n'
        )
        with serving(tmp_path) as served:
            browser = served.browser()
            assert "There are no topics yet" in browser.get("/flow").text
            address = broker.bootstrap
            broker.stop()
            answer = wait_until(
                lambda: (found := browser.get("/flow")).status == 503 and found, "the trouble"
            )
            assert "does not answer" in answer.text
            for path in ("/groups", "/captures", "/pipelines", "/stores"):
                assert browser.get(path).status in (200, 503)
            from dataclasses import replace

            broker._settings = replace(broker._settings, listen=address)
            broker.start()
            wait_until(lambda: browser.get("/flow").status == 200, "the recovery")


def test_rows_of_a_store_and_its_versions(browser):
    path = "/stores/orders/cache/orders/rows"
    shown = browser.get(f"{path}.json").json
    assert shown["columns"] == ["id", "product"]
    assert {"id": 60, "product": "lamp"} in shown["rows"]
    assert [(one["version"], one["is_live"]) for one in shown["versions"]] == [(1, True)]
    page = browser.get(f"{path}?version=1").text
    assert "<td>lamp</td>" in page
    assert f"Headwater {headwater.__version__} " in page
    assert browser.get(f"{path}?version=7").status == 400
    assert f'href="{path}?version=1"' in browser.get("/stores/orders/cache/orders/").text


def test_batches_and_errors_of_a_write_as_they_were_seen(served, browser):
    def events():
        (write,) = browser.get("/pipelines/orders.json").json["writes"]
        return [event.get("error") or event["batch"] for event in write["events"]]

    wait_until(lambda: 7 in events(), "the first batch")
    served.project.pipeline(batch=8, read=61)
    wait_until(lambda: [one for one in events() if one in (7, 8)] == [8, 7], "the next one")
    served.project.pipeline(batch=8, read=61, state="failed", error="no such column")
    wait_until(lambda: events()[0] == "no such column", "the error")
    assert "no such column" in browser.get("/pipelines/orders/").text
    served.project.pipeline(read=62)
