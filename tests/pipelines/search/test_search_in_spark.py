"""hw.search in a pipeline: queries that are added, changed and removed while it runs, matches
exactly once in a topic and in a store, and verified; and what it says of wrong uses."""

import json
import re
import textwrap
from pathlib import Path

import pytest
from confluent_kafka import Producer
from support.pipelines.project import Project, wait_for

from headwater.client.reading.fetching import LATEST, Fetcher
from headwater.errors import PipelineError
from headwater.pipelines.verification.stores import verify
from headwater.settings import ClientSettings

PAGE = Path(__file__).parents[3] / "docs/search.md"


def page_example() -> str:
    """The lines of the function that the page begins with, and a write into a store."""
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    body = textwrap.dedent(code.partition("-> None:\n")[2])
    return body + 'flow.write(matches, to="cache", table="matches", key=["id", "query_id"])\n'


@pytest.fixture
def project(tmp_path, headwater_broker):
    """With a broker of its own: the topics have the names of the page."""
    return Project(tmp_path, headwater_broker.bootstrap)


def produce_at(project, topic, *rows):
    """(second, row): by their time in the log, not by when the test runs."""
    producer = Producer({"bootstrap.servers": project.bootstrap, "linger.ms": 0})
    for second, row in rows:
        is_deleted = len(row) == 1
        producer.produce(
            topic,
            key=json.dumps({"id": row["id"]}).encode(),
            value=None if is_deleted else json.dumps(row).encode(),
            timestamp=1_750_000_000_000 + second * 1000,
        )
    producer.flush()


def values_of(project, topic: str, count: int) -> list[bytes]:
    """All committed records of a topic, which are so many."""
    with Fetcher(project.bootstrap, ClientSettings()) as fetcher:
        places = [(topic, number) for number in range(fetcher.partitions(topic))]
        ends = fetcher.offsets(places, LATEST)
        found = [
            record
            for name, number in places
            for record in fetcher.records(name, number, 0, ends[name, number])
        ]
    assert len(found) == count
    return [bytes(record.value) for record in sorted(found, key=lambda one: one.value)]


def article(second: int, number: int, title: str, city: str = "Rome") -> tuple[int, dict]:
    return second, {"id": number, "title": title, "post": {"city": city}}


def test_queries_change_while_documents_flow_past_them(spark, project):
    project.topic("articles", 2)
    project.topic("searches", 1)
    project.pipeline("found", page_example())
    produce_at(
        project,
        "searches",
        (0, {"id": "storms", "query": "storm AND NOT sports", "owner": "ann"}),
        (0, {"id": "oslo", "query": "post.city:Oslo", "owner": "bob"}),
        (0, {"id": "broken", "query": "storm AND"}),
    )
    produce_at(
        project,
        "articles",
        article(5, 1, "Two storms over the sea"),
        article(6, 2, "Storming sports"),
        article(7, 3, "Quiet", "Oslo"),
    )
    with project.running(spark, "found"):
        wait_for(lambda: len(project.rows("SELECT * FROM matches")) == 2, "two matches")
        produce_at(
            project,
            "searches",
            (10, {"id": "oslo"}),
            (10, {"id": "storms", "query": "qui*", "owner": "ann"}),
        )
        produce_at(
            project,
            "articles",
            article(15, 4, "A storm", "Oslo"),
            article(16, 5, "Quiet again"),
        )
        project.wait_until_at_end(spark, "articles", "found")
        project.wait_until_at_end(spark, "searches", "found")
    rows = project.rows("SELECT id, query_id, owner, highlights FROM matches ORDER BY id")
    assert [(row[0], row[1], row[2], json.loads(row[3])) for row in rows] == [
        (1, "storms", "ann", ["Two <em>storms</em> over the sea"]),
        (3, "oslo", "bob", []),
        (5, "storms", "ann", ["<em>Quiet</em> again"]),
    ]
    in_topic = [json.loads(value) for value in values_of(project, "matches", 3)]
    assert [(row["id"], row["query_id"]) for row in in_topic] == [
        (1, "storms"),
        (3, "oslo"),
        (5, "storms"),
    ]
    assert verify(project.pipelines(spark, "found")[0], "cache/matches").is_equal


def test_wrong_uses_are_errors_when_the_pipeline_is_built(spark, project):
    project.topic("docs", 1)
    project.topic("asked", 1)
    head = """
        docs = flow.changes("docs", "id bigint, title string")
        asked = flow.table("asked", hw.SEARCHES, key="id")
        plain = flow.table("asked", "id string, words string", key="id")
        numbers = flow.table("asked", "id string, query bigint", key="id")
    """
    cases = {
        'hw.search(docs, asked, text="body")': "there is no column body",
        "hw.search(docs, asked, text=[])": "names no field",
        'hw.search(docs, plain, text="title")': "asked has no column query",
        'hw.search(docs, numbers, text="title")': "query of asked is int64",
        'hw.search(docs.drop("_at"), asked, text="title")': "no column _at",
        'hw.search(docs, asked.distinct(), text="title")': "topic of the table cannot be found",
        'hw.search(docs, asked, text="title", language="klingon")': "no language klingon",
        'hw.search(docs.withColumn("owner", F.lit(1)), asked, text="title")': "be called owner",
    }
    for number, (call, message) in enumerate(cases.items()):
        project.pipeline(f"wrong{number}", head + f"    found = {call}\n")
        with pytest.raises(PipelineError) as error:
            project.pipelines(spark, f"wrong{number}")[0].flow()
        assert message in error.value.what, call
