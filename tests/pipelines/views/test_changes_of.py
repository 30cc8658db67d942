"""CHANGES OF a view in SQL, and `flow.changes_of` in a pipeline: the records of its topic."""

import json
import uuid

import pytest
from support.pipelines.project import Project, wait_for

import headwater as hw
from headwater.errors import HeadwaterError, NotReady, PipelineError
from headwater.inspect.view_rows import view_contents
from headwater.pipelines.lineage.tracing import why
from headwater.pipelines.verification.stores import verify
from headwater.pipelines.views.composition import composed
from headwater.pipelines.views.sql_text import SqlText

HISTORY = 'options = { "cleanup.policy" = "delete", "retention.ms" = "-1"%s }'


@pytest.fixture
def project(tmp_path, broker_address):
    return Project(tmp_path, broker_address)


def view(project, name, query, *lines):
    (project.directory / f"{name}.sql").write_text(query)
    project.section("\n".join([f"[view.{name}]", f'file = "{name}.sql"', *lines]))


def contents(project, name):
    loaded = project.config()
    try:
        with view_contents(loaded, loaded.pipelines[name], None) as (found, _):
            rows = [row for batch in found.rows for row in batch.to_pylist()]
    except NotReady:
        return {}
    return {row["page"]: row["n"] for row in rows}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("form", ["json", pytest.param("debezium", marks=pytest.mark.long)])
def test_every_change_of_a_view_is_a_row(project, spark, form):
    clicks = project.topic(f"t{uuid.uuid4().hex[:8]}")
    pages = f"pages_{uuid.uuid4().hex[:8]}"
    columns = f'schemas = {{ {clicks} = "page string, user string, paid decimal(9,2)" }}'
    view(
        project,
        pages,
        f"SELECT page, count(*) AS n, sum(paid) AS paid FROM {clicks} GROUP BY page"
        " HAVING count(DISTINCT user) < 3",
        'into = "topic"',
        columns,
        HISTORY % f', "value" = "{form}"',
    )
    view(
        project,
        "busy",
        f"""SELECT c.page, count(*) AS changes, count_if(c._op = 'd') AS gone, max(c.n) AS most,
                  max(c.paid) AS paid, count_if(c._op = 'c') AS new, max(_position.offset) AS last,
                  bool_and(_at > timestamp'2020-01-01') AS is_timed
           FROM CHANGES OF {pages} c GROUP BY c.page""",
        'into = "cache"',
    )
    project.pipeline(
        "audit",
        f"""\
        changes = flow.changes_of("{pages}").selectExpr(
            "page", "n", "_op AS op", "_position.offset AS at", "_position"
        )
        flow.write(changes, to="cache", table="audit", key="at", ignore_deletes=True)
        counted = hw.sql("SELECT page, count(*) AS n FROM c GROUP BY page",
                         c=flow.changes_of("{pages}"))
        flow.write(counted, to="cache", table="counted", key="page")
        """,
    )

    def produce(page, user, paid, **counts):
        """And waits until the view has these rows, so that each change is one of its own."""
        project.produce(clicks, {"page": page, "user": user, "paid": paid}, key="page")
        wait_for(lambda: contents(project, pages) == counts, f"the view with {counts}")

    with project.running(spark, pages):
        produce("a", "x", "1.50", a=1)
        produce("a", "y", "2.25", a=2)
        produce("b", "x", None, a=2, b=1)
        produce("a", "z", "1.00", b=1)  # the third user: a leaves the result
        with project.running(spark, "busy", "audit"):
            new = 1 if form == "debezium" else 0
            busy = [("a", 3, 1, 2, "3.75", new), ("b", 1, 0, 1, None, new)]

            def rows():
                found = project.rows("SELECT page, changes, gone, most, paid, new FROM busy")
                return sorted(found) == busy

            wait_for(rows, "all changes")
            written = [("a", 1, "u"), ("a", 2, "u"), ("b", 1, "u"), ("a", None, "d")]
            if form == "debezium":
                written = [(p, n, "c" if n == 1 else op) for p, n, op in written]
            wait_for(
                lambda: project.rows("SELECT page, n, op FROM audit ORDER BY at") == written,
                "the changes in their order",
            )
            wait_for(
                lambda: sorted(project.rows("SELECT page, n FROM counted")) == [("a", 3), ("b", 1)],
                "the changes as events",
            )
            produce("b", "x", "7.00", b=2)
            busy[1] = ("b", 2, 0, 2, "7.00", new)
            wait_for(rows, "another change")
            assert project.rows("SELECT min(is_timed), max(last) > 3 FROM busy") == [(1, 1)]
    if form == "json":
        return
    (pipeline,) = project.pipelines(spark, "busy")
    assert verify(pipeline, "busy").is_equal
    causes = why(pipeline, "busy", {"page": "a"}, limit=10).causes
    assert {cause.topic for cause in causes} == {pages}
    assert [cause.row.get("n") for cause in causes] == [None, 2, 1]


def test_changes_that_are_not_stored_are_refused_with_what_to_set(project, spark):
    topic = project.topic(f"t{uuid.uuid4().hex[:8]}")
    columns = f'schemas = {{ {topic} = "id int" }}'
    view(project, "totals", f"SELECT id, count(*) AS n FROM {topic} GROUP BY id",
         'into = "cache"', columns)  # fmt: skip
    compacted = f"v{uuid.uuid4().hex[:8]}"
    view(project, compacted, f"SELECT id, count(*) AS n FROM {topic} GROUP BY id",
         'into = "topic"', columns)  # fmt: skip
    view(project, "first", "SELECT\n  n FROM CHANGES OF totals", 'into = "cache"', 'key = ["n"]')
    view(project, "second", f"SELECT n FROM CHANGES OF {compacted}", 'into = "cache"',
         'key = ["n"]')  # fmt: skip

    def refused(name):
        (pipeline,) = project.pipelines(spark, name)
        with pytest.raises(HeadwaterError) as error:
            pipeline.flow()
        return error.value

    error = refused("first")
    assert "first.sql:2:10: the changes of view totals are not stored" in error.what
    assert 'into = "topic"' in error.hint
    assert "no topic has the changes of" in refused("second").what  # it has never run
    with project.running(spark, compacted):
        project.produce(topic, {"id": 1})
        project.wait_until_at_end(spark, topic, compacted)
    error = refused("second")
    assert "is compacted" in error.what
    assert "cleanup.policy" in error.hint


def test_the_words_are_found_in_the_text(tmp_path):
    text = "SELECT * FROM x JOIN changes  OF `a-b`.c USING (id), CHANGES OF v w, changes of"
    found = SqlText("v", "v.sql", text).references()
    assert [(one.name, one.is_changes, one.has_alias) for one in found] == [
        ("x", False, False),
        ("a-b.c", True, False),
        ("v", True, True),
        ("changes", False, True),  # a table called `changes`, as `of`
    ]
    assert text[found[1].start : found[1].end] == "changes  OF `a-b`.c"


def test_a_view_cannot_wait_for_its_own_changes(tmp_path):
    project = Project(tmp_path, "127.0.0.1:1")
    view(project, "one", "SELECT id FROM CHANGES OF other", 'into = "topic"')
    view(project, "other", "SELECT id FROM one", 'into = "topic"')
    with pytest.raises(PipelineError, match="depend on each other in a circle"):
        composed(project.config().pipelines["one"], tmp_path)


def test_in_a_test_the_changes_are_rows_of_the_test(spark):
    @hw.pipeline
    def audit(flow: hw.Flow) -> None:
        changes = flow.changes_of("revenue").selectExpr("country", "total", "_op AS op")
        flow.write(changes, to="cache", table="audit")

    rows = [{"country": "de", "total": 5}, {"country": "de", "_op": "d"}]
    found = hw.testing.run(audit, {"revenue": rows})["audit"]
    assert json.dumps(found) == json.dumps(
        [
            {"country": "de", "total": 5, "op": "u"},
            {"country": "de", "total": None, "op": "d"},
        ]
    )
