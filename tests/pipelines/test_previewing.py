"""`hw.flow` and `hw.preview`: frames over the last records of the log."""

import pytest
from pyspark.sql import functions as F  # noqa: N812
from support.pipelines.project import Project

import headwater as hw
from headwater.errors import ConfigError, PipelineError, RequestRefused

SCHEMA = "id bigint, name string, at timestamp"


@pytest.fixture
def project(tmp_path, broker_address):
    return Project(tmp_path, broker_address)


@pytest.fixture
def topic(project, request):
    rows = [{"id": n, "name": "ab"[n % 2], "at": f"2026-03-01T12:{n:02}:00Z"} for n in range(60)]
    name = project.topic(f"previewed-{request.node.name}")
    project.produce(name, *rows)
    return name


def test_the_last_records_are_shown(spark, project, topic):
    flow = hw.flow(10, loaded=project.config())
    rows = flow.changes(topic, SCHEMA)
    assert sorted(hw.preview(rows)["id"]) == list(range(50, 60))
    assert list(rows.columns) == ["id", "name", "at", "_op", "_at", "_position"]
    assert len(hw.preview(rows, 3)) == 3
    counted = hw.preview(rows.groupBy("name").count().orderBy("name"))
    assert counted.to_dict("list") == {"name": ["a", "b"], "count": [5, 5]}
    project.produce(topic, {"id": 60})
    assert 60 not in list(hw.preview(flow.changes(topic, SCHEMA))["id"]), "one view of the log"
    newer = hw.flow(10, loaded=project.config()).changes(topic, SCHEMA)
    assert 60 in list(hw.preview(newer)["id"])


def test_after_a_query_topics_are_found_as_before(spark, project, topic):
    flow = hw.flow(10, loaded=project.config())
    rows = flow.changes(topic, SCHEMA)
    hw.sql("SELECT name, count(*) AS n FROM t GROUP BY name", keys={"t": "id"}, t=rows)
    later = hw.flow(10, loaded=project.config())
    assert len(hw.preview(later.changes(topic, SCHEMA))) == 10


def test_several_partitions_and_patterns(spark, project):
    project.topic("tail-a", 4)
    project.topic("tail-b")
    project.produce("tail-a", *({"id": n} for n in range(400)))
    project.produce("tail-b", {"id": -1})
    flow = hw.flow(20, loaded=project.config())
    by_topic = flow.changes(pattern="tail-.*", schema="id int").groupBy("_position.topic").count()
    assert dict(hw.preview(by_topic).itertuples(index=False)) == {"tail-a": 20, "tail-b": 1}


def test_operators_work_and_tables_are_whole(spark, project, topic):
    project.topic("names")
    others = ({"name": "b"} for _ in range(30))
    project.produce("names", {"name": "a", "long": "Ada"}, *others, key="name")
    project.produce(topic, {"id": 60, "name": "a", "at": "2026-03-01T13:00:00Z"})
    flow = hw.flow(10, loaded=project.config())
    rows = flow.changes(topic, SCHEMA)
    table = flow.table("names", "name string, long string", key="name")
    shown = hw.preview(hw.enrich(rows, table, on="name"))
    assert set(shown["long"].dropna()) == {"Ada"}
    windows = hw.tumbling(rows, "at", "5 minutes", by="name").agg(n=hw.agg.count())
    assert set(hw.preview(windows)["name"]) == {"a", "b"}


def test_what_cannot_be_shown_is_an_error(spark, project, topic, tmp_path):
    flow = hw.flow(loaded=project.config())
    rows = flow.changes(topic, SCHEMA)
    stream = spark.readStream.format("rate").load()
    with pytest.raises(PipelineError, match="is a stream") as raised:
        hw.preview(stream)
    assert "hw.flow()" in raised.value.hint
    with pytest.raises(PipelineError, match="no DataFrame"):
        hw.preview(hw.tumbling(rows, "at", "1 minute"))

    @F.udf("int")
    def refused(number):
        raise ValueError("not this one")

    with pytest.raises(PipelineError, match=r"test_previewing.py:\d+: ValueError: not this one"):
        hw.preview(rows.select(refused("id")))
    with pytest.raises(ConfigError, match=f"columns of {topic} are unknown"):
        flow.changes(topic)
    with pytest.raises(RequestRefused, match="there is no topic not-there"):
        flow.changes("not-there", "id int")
