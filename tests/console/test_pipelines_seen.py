"""A pipeline that runs on Spark, and a capture, as the console shows them."""

import os
import sqlite3
import sys
import textwrap
import threading
import time

import pytest
from support.console.serving import serving
from tiers import IS_FULL

from headwater import config
from headwater.inspect.pipelines import load_pipelines
from headwater.pipelines.running.runner import Runner
from headwater.testing import InProcessBroker

TIMEOUT_S = 240
PIPELINE = """
import headwater as hw
from pyspark.sql import functions as F

@hw.pipeline
def totals(flow: hw.Flow) -> None:
    orders = flow.changes("shop.main.orders")
    flow.write(orders.withColumn("twice", F.col("quantity") * 2), to="cache", table="totals",
               key="id")
"""


def wait_until(condition, what):
    end_s = time.monotonic() + TIMEOUT_S
    while not (found := condition()):
        assert time.monotonic() < end_s, f"{what} has not happened"
        time.sleep(0.2)
    return found


@pytest.fixture
def project(tmp_path):
    with InProcessBroker.serving(str(tmp_path / "broker")) as broker:
        database = sqlite3.connect(tmp_path / "shop.db")
        with database:
            database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, quantity INTEGER)")
            database.executemany("INSERT INTO orders VALUES (?, ?)", [(n, n) for n in range(5)])
        database.close()
        (tmp_path / "totals.py").write_text(PIPELINE)
        (tmp_path / "headwater.toml").write_text(
            textwrap.dedent(f"""
            [broker]
            bootstrap = "{broker.bootstrap}"
            data_dir = "data"
            [capture.shop]
            source = "sqlite:///{tmp_path}/shop.db"
            tables = ["main.*"]
            [sink.cache]
            kind = "sqlite"
            url = "sqlite:///{tmp_path}/cache.db"
            [pipeline.totals]
            file = "totals.py"
            [spark]
            master = "local[2]"
            """)
        )
        yield tmp_path


def capturing(directory):
    """`headwater capture run shop`, in a process of its own."""
    import subprocess

    inherited = {
        name: text for name, text in os.environ.items() if not name.startswith("HEADWATER_")
    }
    return subprocess.Popen(
        [sys.executable, "-m", "headwater.cli.main", "capture", "run", "shop"],
        cwd=directory,
        env=inherited,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def test_a_change_is_followed_from_the_database_to_the_store(project, spark):
    loaded = config.load(path=str(project / "headwater.toml"), environ={})
    capture = capturing(project)
    runner = Runner(load_pipelines(loaded, lambda: spark, ["totals"]))
    thread = threading.Thread(target=runner.run, name="runner")
    try:
        with serving(project) as served:
            browser = served.browser()
            wait_until(
                lambda: [
                    capture
                    for capture in browser.get("/captures.json").json["captures"]
                    if capture["state"] == "following"
                ],
                "following",
            )
            thread.start()
            store = "/stores/totals/cache/totals.json"
            wait_until(
                lambda: (answer := browser.get(store)).status == 200 and answer.json["is_in_step"],
                "in step",
            )
            database = sqlite3.connect(project / "shop.db", timeout=60)
            with database:
                database.execute("UPDATE orders SET quantity = 50 WHERE id = 3")
            database.close()
            wait_until(lambda: _stored(project, 3) == 100, "the change in the store")
            wait_until(lambda: browser.get(store).json["is_in_step"], "in step again")
            (write,) = wait_until(
                lambda: (
                    (writes := browser.get("/pipelines/totals.json").json["writes"])
                    and writes[0].get("batch_ms")
                    and writes[0]["plan"]
                    and writes
                ),
                "a batch that is reported",
            )
            assert 0 <= write["store_ms"] <= write["batch_ms"]
            assert "Optimized Logical Plan" in write["plan"]
            joined = {
                (edge["from"], edge["to"]) for edge in browser.get("/flow.json").json["edges"]
            }
            assert joined >= {
                ("source:shop", "topic:shop.main.orders"),
                ("topic:shop.main.orders", "pipeline:totals"),
                ("pipeline:totals", "store:totals/cache/totals"),
            }
            (change,) = browser.get("/captures/shop.json").json["schema_changes"]
            assert [column["name"] for column in change["columns"]] == ["id", "quantity"]
            if IS_FULL:
                _verify_at_a_click(browser)
    finally:
        runner.stop.set()
        if thread.ident is not None:
            thread.join()
        capture.terminate()
        capture.wait(60)


def _verify_at_a_click(browser):
    """The real commands, each with a Spark of its own."""
    for path, fields in (("verify", {}), ("why", {"key.id": "3"})):
        answer = browser.post(f"/stores/totals/cache/totals/{path}", fields)
        job = answer.headers["location"].rstrip("/") + ".json"
        ended = wait_until(
            lambda job=job: (
                (found := browser.get(job).json)["state"] not in ("waiting", "running") and found
            ),
            "the end of the job",
        )
        assert ended["state"] == "done", ended
        if path == "verify":
            assert ended["result"][0]["is_equal"]
        else:
            assert ended["result"]["row"]["twice"] == 100
            assert ended["result"]["causes"]


def _stored(directory, order):
    database = sqlite3.connect(directory / "cache.db", timeout=60)
    try:
        found = database.execute("SELECT twice FROM totals WHERE id = ?", (order,)).fetchone()
        return found[0] if found else None
    except sqlite3.OperationalError:
        return None  # not there yet
    finally:
        database.close()
