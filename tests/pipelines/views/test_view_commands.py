"""Views on views, in a store and in a topic: `headwater view explain` and `headwater view read`."""

import json
import time
import uuid

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from support.pipelines.project import Project, wait_for
from tiers import IS_FULL

from headwater.cli import main
from headwater.client.reading.fetching import LATEST, Fetcher
from headwater.inspect.view_rows import parse_moment
from headwater.pipelines.verification.stores import verify
from headwater.settings import ClientSettings
from headwater.sinks.topic.history import Moment

PAGES = "SELECT page, count(*) AS n, max(ms) AS slowest FROM {clicks} GROUP BY page HAVING n < 3"
HISTORY = 'options = { "cleanup.policy" = "delete", "retention.ms" = "-1" }'


@pytest.fixture
def project(spark, tmp_path, broker_address, monkeypatch):
    monkeypatch.setattr("headwater.cli.pipelines.check.spark_of", lambda *_: spark)
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path, broker_address)


@pytest.fixture
def command(capsys):
    def run(*argv, code=0):
        assert main.run(["view", *argv]) == code
        captured = capsys.readouterr()
        return captured.out if code == 0 else captured.err

    return run


def clock_ms():
    return time.time_ns() // 1_000_000


@pytest.mark.timeout(600)
def test_views_on_views_are_read_as_they_are_and_as_they_were(project, spark, command):
    clicks, pages = f"clicks-{uuid.uuid4().hex[:8]}", f"pages-{uuid.uuid4().hex[:8]}"
    project.topic(clicks)
    (project.directory / "pages.sql").write_text(PAGES.format(clicks=f"`{clicks}`"))
    (project.directory / "sizes.sql").write_text(
        "SELECT n, count(*) AS pages FROM pages GROUP BY n"
    )
    schemas = f'schemas = {{ "{clicks}" = "page string, ms int" }}'
    settings = ('[view.pages]\nfile = "pages.sql"', 'into = "topic"', f'table = "{pages}"')
    project.section("\n".join((*settings, HISTORY, schemas)))
    project.section('[view.sizes]\nfile = "sizes.sql"\ninto = "cache"\n')
    assert "has never run" in command("read", "pages", code=3)

    def click(*names):
        project.produce(clicks, *({"page": name, "ms": 5} for name in names), key="page")

    def read(*argv):
        lines = command("read", "pages", *argv, "--json").splitlines()
        return sorted((row["page"], row["n"]) for row in map(json.loads, lines))

    def sizes():
        return sorted(project.rows("SELECT n, pages FROM sizes"))

    def explained():
        plan = json.loads(command("explain", "sizes", "--json"))
        assert plan["is_running"]
        return lines_of(plan["plan"])

    click("a", "b", "b")
    with project.running(spark, "pages", "sizes"):
        wait_for(lambda: sizes() == [(1, 1), (2, 1)], "the view of the view")
        wait_for(lambda: offset_of(project, pages) == 3, "the first transaction")
        assert read() == [("a", 1), ("b", 2)]
        first_ms = clock_ms()
        wait_for(lambda: clock_ms() > first_ms, "the next millisecond")
        click("b", "c")  # b leaves the result
        wait_for(lambda: sizes() == [(1, 2)], "the change of the view of the view")
        wait_for(lambda: ("c", 1) in read(), "the change")
        wanted = [
            ("write to cache/sizes", "n", None),
            ("count(1)", "pages.n", 1),
            ("filter n < 3L", "", None),
            ("count(1)", f"{clicks}.page", 3),  # the other view's maximum is read by nobody here
            (f"topic {clicks}: each record is a row", "", None),
        ]
        wait_for(lambda: explained() == wanted, "the state in the status")
    assert read() == [("a", 1), ("c", 1)]
    assert b'{"page":"b"}' in tombstones(project, pages)

    # As it was: after each transaction, and never in the middle of one.
    assert read("--as-of", f"@{first_ms}") == [("a", 1), ("b", 2)]
    assert read("--as-of", f"@{clock_ms()}") == [("a", 1), ("c", 1)]
    assert [read("--as-of", str(offset)) for offset in range(4)] == [
        [], [], [("a", 1), ("b", 2)], [("a", 1), ("b", 2)],
    ]  # fmt: skip
    assert "is not there yet" in command("read", "pages", "--as-of", "1000", code=1)
    assert "not a time" in command("read", "pages", "--as-of", "yesterday", code=2)
    assert command("read", "sizes", "--json") == '{"n":1,"pages":2}\n'
    assert "sizes has no history" in command("read", "sizes", "--as-of", "1", code=2)
    shown = command("read", "pages", "-n", "1")
    assert shown.splitlines()[0].split() == ["PAGE", "N", "SLOWEST"]
    for policy in ("compact", "delete"):
        alter = ("alter", pages, "-c", f"cleanup.policy={policy}", "-b", project.bootstrap)
        assert main.run(["topic", *alter]) == 0
        if policy == "compact":
            assert "is compacted" in command("read", "pages", "--as-of", "2", code=1)
            assert read() == [("a", 1), ("c", 1)]
    remove_records(project, pages, 2)
    assert "no longer has its whole history" in command("read", "pages", "--as-of", "3", code=1)

    shown = command("explain", "sizes")
    assert "grows with the groups" in shown
    if IS_FULL:  # as long as all else; test_views.py verifies a view in both tiers
        (pipeline,) = project.pipelines(spark, "sizes")
        assert verify(pipeline, "sizes").is_equal


def lines_of(step):
    own = (step["does"], step["key"], step["state_rows"])
    return [own, *(line for below in step["inputs"] for line in lines_of(below))]


def offset_of(project, topic):
    with Fetcher(project.bootstrap, ClientSettings()) as fetcher:
        return fetcher.offsets([(topic, 0)], LATEST)[topic, 0]


def remove_records(project, topic, offset):
    admin = AdminClient({"bootstrap.servers": project.bootstrap})
    (removed,) = admin.delete_records([TopicPartition(topic, 0, offset)]).values()
    removed.result()


def tombstones(project, topic):
    with Fetcher(project.bootstrap, ClientSettings()) as fetcher:
        end = fetcher.offsets([(topic, 0)], LATEST)[topic, 0]
        return [one.key for one in fetcher.records(topic, 0, 0, end) if one.value is None]


EXPLAINED = """
SELECT c.country, o.id, sum(o.total) OVER (PARTITION BY c.country ORDER BY o.id) AS running
FROM orders o LEFT JOIN (SELECT country, min(id) AS id FROM customers GROUP BY country) c
  ON o.customer = c.id
WHERE o.total > (SELECT avg(total) FROM orders) AND o.id IN (SELECT id FROM customers)
ORDER BY o.total DESC LIMIT 10
"""


def test_each_step_says_what_it_stores_and_what_grows(project, command):
    schemas = 'schemas = { orders = "id int, customer int, total int", customers = "id int, country'
    (project.directory / "v.sql").write_text(EXPLAINED)
    settings = ('[view.v]\nfile = "v.sql"\ninto = "cache"\nkey = ["id"]', schemas + ' string" }')
    project.section("\n".join(settings))
    plan = json.loads(command("explain", "v", "--json"))
    assert not plan["is_running"]
    found = {}

    def walk(step):
        found[step["does"]] = (step["key"], step["stores"], step["grows_with"])
        assert step["state_rows"] is None
        for below in step["inputs"]:
            walk(below)

    walk(plan["plan"])
    all_rows = ("all rows of its input", "the rows of its input")
    both_sides = ("the rows of both sides", "the rows of both sides")
    window = "sum(o.total) OVER (PARTITION BY c.country ORDER BY o.id ASC NULLS FIRST"
    (window,) = (does for does in found if does.startswith(window))
    assert found == {
        "write to cache/v": (
            "id",
            "its rows, because the query does not imply that the key is unique",
            "the rows of the result",
        ),
        "order by o.total DESC NULLS LAST, limit 10": ("", *all_rows),
        window: ("c.country", *all_rows),
        "left join on o.customer = c.id": ("", *both_sides),
        "rows that have a match on o.id = customers.id": ("", *both_sides),
        "filter ((o.total IS NOT NULL) AND (CAST(o.total AS DOUBLE) > scalarsubquery())),"
        " joined with their rows": (
            "", "all rows of its input, and those of subqueries", "the rows of its input",
        ),
        "avg(orders.total)": ("", "one row", ""),
        "filter c.id IS NOT NULL": ("", "", ""),
        "min(customers.id)": (
            "customers.country",
            "one row for each group, and the values of functions that cannot subtract",
            "the groups and their different values",
        ),
        "topic orders: each record is a row": ("", "", ""),
        "topic customers: each record is a row": ("", "", ""),
    }  # fmt: skip
    (project.directory / "v.sql").write_text(
        """WITH t AS (SELECT id, customer FROM orders WHERE id IN (SELECT id FROM customers))
           SELECT id, customer FROM t
           QUALIFY row_number() OVER (PARTITION BY customer ORDER BY id) <= 3
           UNION ALL SELECT -id, customer FROM t"""
    )
    shown = command("explain", "v")
    assert "the first 3 rows, order by " in shown
    assert shown.count("rows that have a match") == 2
    assert shown.count("= customers.id, as above\n") == 1
    assert "there is no view w" in command("explain", "w", code=2)


@pytest.mark.parametrize(
    ("text", "moment"),
    [("12", Moment(offsets={0: 12})), ("0:12,1:7", Moment(offsets={0: 12, 1: 7})),
     ("@1700000000000", Moment(time_ms=1700000000000)),
     ("2026-11-15T10:00:00Z", Moment(time_ms=1794736800000))],
)  # fmt: skip
def test_a_moment_is_a_time_or_an_offset_of_each_partition(text, moment):
    assert parse_moment(text) == moment
