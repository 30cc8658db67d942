"""`headwater view list` and `headwater view check`."""

import json

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from support.pipelines.project import Project

from headwater.cli import main

ORDERS = "id bigint, customer bigint, total decimal(10,2), at timestamp"


@pytest.fixture
def project(spark, tmp_path, broker_address, monkeypatch):
    project = Project(tmp_path, broker_address)
    monkeypatch.setattr("headwater.cli.pipelines.check.spark_of", lambda *_: spark)
    monkeypatch.chdir(tmp_path)
    return project


def view(project, name, text, *settings):
    (project.directory / f"{name}.sql").write_text(text)
    schemas = f'schemas = {{ orders = "{ORDERS}", customers = "id bigint, country string" }}'
    lines = [f'[view.{name}]\nfile = "{name}.sql"', *(settings or ['into = "cache"']), schemas]
    project.section("\n".join(lines))


def run(capsys, *argv, code=0):
    assert main.run(list(argv)) == code
    shown = capsys.readouterr().out
    main.run([*argv, "--json"])
    return shown, json.loads(capsys.readouterr().out)


def test_views_are_listed_without_a_broker(project, capsys):
    project._sections[0] = '[broker]\nbootstrap = "127.0.0.1:1"'
    view(project, "by_day", "SELECT at, count(*) AS n FROM orders JOIN customers GROUP BY at")
    settings = ('into = "topic"', 'table = "highest"', 'key = ["n"]')
    view(project, "top", "SELECT max(n) AS n FROM by_day", *settings)
    view(project, "wrong", "SELECT FROM FROM;")
    project.pipeline("other", "pass")
    shown, found = run(capsys, "view", "list", code=1)
    assert [one["view"] for one in found] == ["by_day", "top", "wrong"]
    by_day, top, wrong = found
    assert (by_day["reads"], by_day["into"], by_day["key"]) == (
        ["orders", "customers"], "cache/by_day", [],
    )  # fmt: skip
    assert (top["reads"], top["into"], top["key"]) == (["by_day"], "topic/highest", ["n"])
    assert wrong["error"] == "view wrong: wrong.sql:1:13: expected table name near 'FROM'"
    assert "orders, customers" in shown
    assert "topic/highest" in shown


def test_what_a_view_would_have_is_shown(project, capsys):
    view(project, "sums", "SELECT customer, sum(total) AS s FROM orders GROUP BY customer")
    view(
        project, "loose", "SELECT customer, total FROM orders", 'into = "cache"', 'key = ["total"]'
    )
    view(project, "pairs", "SELECT o.id, c.id AS c FROM orders o, customers c WHERE o.id < c.id",
         'into = "cache"', 'key = ["id", "c"]')  # fmt: skip
    shown, found = run(capsys, "view", "check")
    sums, loose, pairs = (one["writes"][0] for one in found)
    assert "a join has no equality" in pairs["warnings"][1]
    assert sums["columns"] == {"customer": "bigint", "s": "decimal(20,2)"}
    assert (sums["key"], sums["warnings"]) == (["customer"], [])
    assert "does not imply that total is unique" in loose["warnings"][0]
    assert "sums  ok  sums.sql" in shown
    assert "warning: the query does not imply that total is unique" in shown


def test_a_file_that_no_view_has_can_be_checked(project, capsys):
    view(project, "sums", "SELECT customer, sum(total) AS s FROM orders GROUP BY customer")
    (project.directory / "new one.sql").write_text("SELECT s, count(*) AS n FROM sums GROUP BY s")
    _, (found,) = run(capsys, "view", "check", "new one.sql")
    assert found["writes"][0]["key"] == ["s"]
    _, (found,) = run(capsys, "view", "check", "sums.sql")
    assert found["pipeline"] == "sums"
    assert main.run(["view", "check", "no.sql"]) == 2
    assert main.run(["view", "check", "summs"]) == 2
    assert "did you mean sums?" in capsys.readouterr().err


@pytest.fixture(scope="module")
def viewed_orders(broker_address):
    """A topic that no capture has written, and no schema describes."""
    admin = AdminClient({"bootstrap.servers": broker_address})
    admin.create_topics([NewTopic("viewed_orders", 1)])["viewed_orders"].result()


@pytest.mark.usefixtures("viewed_orders")
@pytest.mark.parametrize(
    ("query", "place", "message", "hint"),
    [
        ("SELECT id,\n  totl FROM orders", "2:3", "there is no column totl",
         "did you mean total?"),
        ("SELECT o.id FROM orders o JOIN customers c ON o.customer = c.id\nWHERE id > 1", "2:7",
         "column id is ambiguous", "write c.id or o.id"),
        ("SELECT id, lenght(id) AS n FROM orders", "1:12", "there is no function lenght",
         "did you mean length?"),
        ("SELECT id FROM orders WHERE total > (SELECT id FROM customers)", "1:37",
         "may have several rows", "an aggregate without GROUP BY"),
        ("SELECT customer, corr(id, total) AS m FROM orders GROUP BY customer", "1:18",
         "cannot be maintained incrementally", "aggregate functions of views"),
        ("SELECT id, at + total AS n FROM orders", "1:12", "data type mismatch", ""),
        ("SELECT id, 1 + rand() AS n FROM orders", "1:16", "another result whenever", "leave out"),
        ("SELECT id FROM orders WHERE at > now() OR id > 1", "1:34", "although no record arrives",
         "WHERE ordered_at > now()"),
        ("SELECT id FROM viewed_ordres", "1:16", "there is no table viewed_ordres",
         "did you mean viewed_orders?"),
        ("SELECT *\nFROM viewed_orders", "2:6", "the columns of viewed_orders are unknown",
         'schemas = { "viewed_orders" = '),
        ("SELECT customer, total FROM orders", None, "implies no key", "key=["),
        ("SELECT (id FROM orders", "1:12", "expected )", ""),
    ],
)  # fmt: skip
def test_a_mistake_is_shown_with_its_place_and_a_hint(project, capsys, query, place, message, hint):
    view(project, "wrong", query)
    shown, (found,) = run(capsys, "view", "check", "wrong", code=1)
    assert found["line"] == (f"wrong.sql:{place}" if place else None)
    assert message in f"{found['error']} {found['detail']}".lower() or message in found["error"]
    assert hint in found["hint"]
    assert found["error"].startswith("view wrong: ")
    assert (place or "") in shown


def test_a_mistake_in_a_view_that_another_reads_is_in_its_own_file(project, capsys):
    view(project, "base", "SELECT id,\n       customr FROM orders")
    view(project, "top", "SELECT id FROM base")
    _, (found,) = run(capsys, "view", "check", "top", code=1)
    assert found["line"] == "base.sql:2:8"
    assert found["error"].startswith("view top: base.sql:2:8: there is no column customr")


def test_a_syntax_error_and_a_circle_need_no_spark(project, capsys, monkeypatch):
    monkeypatch.delattr("headwater.cli.pipelines.check.spark_of")
    view(project, "wrong", "SELECT (id FROM orders")
    view(project, "a", "SELECT * FROM b")
    view(project, "b", "SELECT * FROM a")
    _, found = run(capsys, "view", "check", code=1)
    assert [one["line"] for one in found] == ["wrong.sql:1:12", "b.sql:1:15", "a.sql:1:15"]
    assert found[1]["detail"] == "a → b → a"


def test_a_mistake_of_a_query_in_python_has_both_places(project, capsys):
    body = """
    orders = flow.changes("orders", "id bigint, total int")
    result = hw.sql("SELECT id,\\n  totl FROM orders", orders=orders)
    flow.write(result, to="cache", table="t", key="id")
    """
    project.pipeline("wrong", body)
    _, (found,) = run(capsys, "pipeline", "check", "wrong", code=1)
    assert found["error"] == "sql: line 2, column 3: there is no column totl"
    assert found["line"] == "wrong.py:8"
