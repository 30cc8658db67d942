"""The text of views: its tables, other views in it, and mistakes by line and column."""

import dataclasses

import pytest

from headwater.errors import ConfigError, PipelineError, QueryRefused
from headwater.pipelines.pipeline_file import PipelineFile
from headwater.pipelines.settings import ViewSettings
from headwater.pipelines.views.composition import composed
from headwater.pipelines.views.sql_text import SqlText
from headwater.pipelines.views.view_file import files_of


@pytest.fixture
def views(tmp_path):
    """Views with these texts, each of which may read the others."""

    def make(**texts):
        made = {name: ViewSettings(name=name, file=f"{name}.sql", into="x") for name in texts}
        for name, text in texts.items():
            (tmp_path / f"{name}.sql").write_text(text)
        return {name: dataclasses.replace(view, views=made) for name, view in made.items()}

    return make


def test_tables_are_found_in_the_text_and_replaced_there(views, tmp_path):
    query = (
        "WITH t AS (SELECT * FROM shop.public.orders) -- FROM nothing\n"
        "SELECT `a-b`.x FROM t JOIN `a-b` ON true WHERE y IN (SELECT y FROM shop.public.orders o)"
    )
    found = composed(views(v=query)["v"], tmp_path)
    assert list(found.reads) == ["shop.public.orders", "a-b"]
    assert {name: table.topic for name, table in found.tables.items()} == {
        "t0": "shop.public.orders", "t1": "a-b",
    }  # fmt: skip
    assert found.text == (
        "WITH t AS (SELECT * FROM t0 AS `orders`) -- FROM nothing\n"
        "SELECT `a-b`.x FROM t JOIN t1 AS `a-b` ON true WHERE y IN (SELECT y FROM t0 o)"
    )


def test_a_query_of_a_with_reads_the_table_of_its_own_name():
    text = "WITH o AS (SELECT * FROM o), p AS (SELECT * FROM o) SELECT * FROM o JOIN p"
    (found,) = SqlText("v", "v.sql", text).references()
    assert found.start == text.index("o)")
    recursive = text.replace("WITH", "WITH RECURSIVE")
    with pytest.raises(QueryRefused, match=r"v\.sql:1:36: o reads itself"):
        SqlText("v", "v.sql", recursive).references()


def test_names_of_tables_are_none_that_the_query_defines(views, tmp_path):
    query = "WITH t0 AS (SELECT * FROM a) SELECT * FROM t0 JOIN b"
    found = composed(views(v=query)["v"], tmp_path)
    assert found.text == ("WITH t0 AS (SELECT * FROM t_0 AS `a`) SELECT * FROM t0 JOIN t_1 AS `b`")


def test_a_view_is_a_subquery_of_those_that_read_it(views, tmp_path):
    made = views(
        top="SELECT * FROM mid m JOIN orders USING (id); -- the end\n",
        mid="SELECT * FROM base -- all of it",
        base="SELECT id FROM orders",
    )
    found = composed(made["top"], tmp_path)
    assert found.text == (
        "SELECT * FROM (SELECT * FROM (SELECT id FROM t0 AS `orders`\n) AS `base`\n) m"
        " JOIN t0 AS `orders` USING (id)"
    )
    assert [table.topic for table in found.tables.values()] == ["orders"]
    assert list(found.reads) == ["mid", "orders"]
    assert files_of(made["top"], tmp_path) == [
        tmp_path / name for name in ("top.sql", "mid.sql", "base.sql")
    ]


def test_columns_of_a_topic_are_those_that_its_own_view_gives(views, tmp_path):
    made = views(top="SELECT * FROM base JOIN clicks", base="SELECT * FROM clicks")
    base = dataclasses.replace(made["base"], schemas={"clicks": "page string"})
    top = dataclasses.replace(made["top"], schemas={"clicks": "at timestamp"}, views={"base": base})
    found = composed(top, tmp_path)
    assert [table.schema for table in found.tables.values()] == ["page string", "at timestamp"]


@pytest.mark.parametrize(
    ("text", "place"),
    [("total", "top.sql:3:8"), ("orders.x", "top.sql:3:15"), ("wrong", "base.sql:2:8"),
     ("t0", "base.sql:3:6"), ("AS `base`", "top.sql:4:6")],
)  # fmt: skip
def test_a_place_in_sparks_text_is_one_in_a_file(views, tmp_path, text, place):
    made = views(
        top="-- Ü\n\nSELECT total, orders.x\nFROM base\nJOIN shop.main.orders ON true",
        base="-- first\nSELECT wrong\nFROM a.b.c",
    )
    query = composed(made["top"], tmp_path)
    found = query.located(QueryRefused("sql: mistake", offset=query.text.index(text)))
    assert found.place == place
    assert found.what == f"view top: {place}: mistake"


@pytest.mark.parametrize(
    ("view", "message"),
    [("self", r"self.sql:1:15: view self reads itself"),
     ("a", r"b.sql:2:6: views depend on each other in a circle: a → b → a"),
     ("reader", r"b.sql:2:6: views depend on each other in a circle: a → b → a")],
)  # fmt: skip
def test_a_view_that_depends_on_itself_is_refused(views, tmp_path, view, message):
    made = views(
        self="SELECT * FROM self",
        a="SELECT * FROM b",
        b="SELECT * FROM orders JOIN\n     a",
        reader="SELECT * FROM a",
    )
    with pytest.raises(QueryRefused, match=message):
        composed(made[view], tmp_path)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("SELECT (a FROM orders", r"v.sql:1:11: expected \) near 'FROM'", ""),
        ("SELECT a b c FROM orders", "v.sql:1:12: unexpected 'c'", ""),
        ("SELECT a,\n  b FROMM t WHERE x", "v.sql:2:11: unexpected 't'", "did you mean FROM?"),
        ("SELEC id FROM orders", "v.sql:1:10: unexpected 'FROM'", "did you mean SELECT?"),
        ("SELECT a\nFROM o WHERE b = 'x\n", "v.sql:2:18: ' is not closed", ""),
        ("SELECT a /* FROM o", "v.sql:1:10: a comment is not closed", ""),
        ("SELECT a FROM orders; SELECT b FROM orders", "one SELECT: v.sql has 2 statements", ""),
        ("DELETE FROM orders", "one SELECT: v.sql has a DELETE", ""),
        ("INSERT INTO a SELECT * FROM orders", "one SELECT: v.sql has an INSERT", ""),
        (
            """WITH RECURSIVE r AS (SELECT id FROM orders UNION ALL
  SELECT o.id FROM orders o JOIN r ON o.parent = r.id) SELECT * FROM r""",
            "v.sql:2:34: r reads itself: recursive queries",
            "join the table with itself",
        ),
        ("-- nothing", "one SELECT: v.sql has no statement", ""),
        ("SELECT 1", "reads no table", "SELECT … FROM"),
        (
            "SELECT *\nFROM CHANGES OF o MATCH_RECOGNIZE (PARTITION BY a PATTERN (A))",
            "v.sql:2:6: MATCH_RECOGNIZE over changes of o",
            "a topic of events",
        ),
        ("SELECT * FROM o MATCH_RECOGNIZE (a", r"v.sql:1:33: \( is not closed", ""),
    ],
)
def test_a_file_that_is_no_query_is_refused(views, tmp_path, text, message, hint):
    with pytest.raises(PipelineError, match=message) as refused:
        composed(views(v=text)["v"], tmp_path)
    assert refused.value.hint.startswith(hint)
    assert bool(refused.value.hint) == bool(hint)


def test_a_file_that_cannot_be_read_is_a_mistake(tmp_path):
    (tmp_path / "v.sql").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        composed(ViewSettings(name="v", file="v.sql", into="x"), tmp_path)


def test_a_view_is_loaded_again_when_one_that_it_reads_changes(views, tmp_path):
    made = views(top="SELECT * FROM base", base="SELECT id FROM orders")
    file = PipelineFile(made["top"], tmp_path)
    assert not file.is_changed()
    (tmp_path / "base.sql").write_text("SELECT id FROM other")
    assert [file.is_changed() for _ in range(2)] == [False, True]  # once it is written
    with file.replacing():
        pass
    assert not file.is_changed()
    (tmp_path / "base.sql").write_text("SELECT * FROM top")
    assert [file.is_changed() for _ in range(2)] == [False, True]
    with pytest.raises(QueryRefused, match="circle"), file.replacing():
        pass
    (tmp_path / "base.sql").write_text("SELECT id FROM orders")
    assert [file.is_changed() for _ in range(2)] == [False, True]
