"""Pipelines from a topic to a store: run, rebuilt, verified, and what happens when they fail."""

import shutil
import uuid

import pytest
from confluent_kafka import Consumer, TopicPartition
from support.pipelines.project import Project, wait_for

from headwater.client.group_offsets import GroupOffsets
from headwater.errors import PipelineError
from headwater.pipelines.lineage.tracing import why
from headwater.pipelines.offsets import ends_of
from headwater.pipelines.publishing import dead_letters
from headwater.pipelines.running import questions, status
from headwater.pipelines.running.questions import ask
from headwater.pipelines.running.rebuilding import drop, promote, rebuild, versions_of
from headwater.pipelines.verification.stores import verify
from headwater.settings import ClientSettings
from headwater.sinks.contract import Log

SCHEMA = "id bigint, country string, total decimal(10,2)"


@pytest.fixture
def project(tmp_path, broker_address):
    return Project(tmp_path, broker_address)


@pytest.fixture
def orders(project):
    """A topic of its own for each test."""
    return project.topic(f"orders-{uuid.uuid4().hex[:8]}", 2)


def order(id_, country="DE", total="1.50"):
    return {"id": id_, "country": country, "total": total}


def copying(project, orders, name="copy", table="orders"):
    project.pipeline(
        name,
        f"""
        orders = flow.changes("{orders}", "{SCHEMA}")
        flow.write(orders, to="cache", table="{table}", key="id")
        """,
    )


def test_a_store_follows_its_topic(project, orders, spark):
    copying(project, orders)
    project.pipeline(
        "sums",
        f"""
        orders = flow.changes("{orders}", "{SCHEMA}").where("_op != 'd'")
        sums = orders.groupBy("country").agg(F.sum("total").alias("total"), F.count("*").alias("n"))
        flow.write(sums, to="cache", table="sums", key=["country"])
        """,
    )
    project.produce(orders, order(1), order(2, "FR"), order(3))
    with project.running(spark, "copy", "sums"):
        wait_for(lambda: len(project.rows("SELECT id FROM orders")) == 3, "the first rows")
        project.produce(
            orders, order(3, total="7.25"), {"id": 2, "_deleted": True}, order(4, "FR", "0.10")
        )
        expected = [(1, "DE", "1.50"), (3, "DE", "7.25"), (4, "FR", "0.10")]
        in_order = "SELECT id, country, total FROM orders ORDER BY id"
        wait_for(lambda: project.rows(in_order) == expected, "changes and the delete")
        in_order = "SELECT country, total, n FROM sums ORDER BY country"
        summed = [("DE", "10.25", 3), ("FR", "1.60", 2)]
        wait_for(lambda: project.rows(in_order) == summed, "the sums")
        ends = ends_of(Log(project.bootstrap), [orders])[orders]
        with GroupOffsets(project.bootstrap, ClientSettings(), "headwater.copy.cache.orders") as g:
            partitions = {(orders, number): end for number, end in ends.items()}
            wait_for(lambda: g.committed(partitions) == partitions, "no lag in its group")
        write = wait_for(
            lambda: status.read(project.state_dir, "copy").writes.get("cache/orders"), "a status"
        )
        assert write["state"] == "running"
        assert write["topics"] == [orders]


def test_what_is_written_can_be_proven_and_traced(project, orders, spark, monkeypatch):
    monkeypatch.setattr(questions, "_TAKEN_WITHIN_S", 120.0)  # on a slow machine
    project.pipeline(
        "both",
        f"""
        orders = flow.changes("{orders}", "{SCHEMA}")
        flow.write(orders.where("total > 1"), to="cache", table="large", key="id")
        sums = orders.groupBy("country").agg(F.sum("total").alias("total"))
        flow.write(sums, to="cache", table="sums", key=["country"])
        """,
    )
    project.produce(orders, *(order(n, "DE" if n % 2 else "FR", f"{n}.00") for n in range(100)))
    with project.running(spark, "both"):
        wait_for(lambda: len(project.rows("SELECT id FROM large")) == 98, "all rows")
        wait_for(lambda: len(project.rows("SELECT country FROM sums")) == 2, "both sums")
        (pipeline,) = project.pipelines(spark, "both")
        verdict = verify(pipeline, "large")  # while it runs
        assert (verdict.is_equal, verdict.rows) == (True, 98)
        assert verify(pipeline, "cache/sums").is_equal

        traced = why(pipeline, "sums", {"country": "FR"}, limit=2)
        assert traced.row["country"] == "FR"
        assert traced.count == 50
        assert len(traced.causes) == 2
        assert all(cause.row["country"] == "FR" for cause in traced.causes)
        question = {"write": "large", "key": {"id": "42"}, "limit": 20}
        answer = ask(project.state_dir, "both", question)  # the runner answers
        (cause,) = answer["causes"]
        assert (cause["topic"], cause["op"], cause["record"]["total"]) == (orders, "u", 42.0)

    project.execute("UPDATE large SET total = '9.00' WHERE id = 7")
    project.execute("DELETE FROM large WHERE id = 8")
    project.execute("INSERT INTO large (id, country, total) VALUES (1000, 'XX', '5.00')")
    verdict = verify(pipeline, "large")
    found = {difference.key["id"]: difference for difference in verdict.differences}
    assert (verdict.count, set(found)) == (3, {7, 8, 1000})
    assert found[7].columns == ["total"]
    assert found[8].stored is None
    assert found[1000].derived is None


def test_a_store_is_rebuilt_beside_the_one_in_use(project, orders, spark):
    copying(project, orders)
    project.produce(orders, *map(order, range(10)))
    with project.running(spark, "copy"):
        wait_for(lambda: len(project.rows("SELECT id FROM orders")) == 10, "the first version")
        project.execute("UPDATE orders SET country = 'spoilt'")
        (pipeline,) = project.pipelines(spark, "copy")
        seen = []
        assert rebuild(pipeline, report=seen.append) == {"cache/orders": 2}
        assert (seen[-1].done, seen[-1].total) == (10, 10)
        assert project.rows("SELECT DISTINCT country FROM orders") == [("spoilt",)]
        project.produce(orders, order(10))  # the new version is behind the live one
        wait_for(lambda: len(project.rows("SELECT id FROM orders")) == 11, "the live version")
        assert promote(pipeline) == {"cache/orders": (1, 2)}
        assert project.rows("SELECT DISTINCT country FROM orders") == [("DE",)]
        assert len(project.rows("SELECT id FROM orders")) == 11
        project.produce(orders, order(11))
        wait_for(
            lambda: len(project.rows("SELECT id FROM orders")) == 12, "the runner on version 2"
        )

        assert promote(pipeline, version=1) == {"cache/orders": (2, 1)}
        assert ("spoilt",) in project.rows("SELECT DISTINCT country FROM orders")
        wait_for(lambda: len(project.rows("SELECT id FROM orders")) == 12, "version 1 caught up")
        (write,) = pipeline.flow().writes
        drop(pipeline, write, 2)
        assert [version.number for version in versions_of(pipeline, write)] == [1]
    with pytest.raises(PipelineError, match="no version newer than the live one"):
        promote(pipeline)


@pytest.mark.parametrize("lost", ["checkpoint", "store"])
def test_what_is_lost_is_derived_again(project, orders, spark, lost):
    copying(project, orders)
    project.produce(orders, *map(order, range(10)))
    with project.running(spark, "copy"):
        wait_for(lambda: len(project.rows("SELECT id FROM orders")) == 10, "the first run")
    project.produce(orders, order(10))
    if lost == "checkpoint":
        shutil.rmtree(project.state_dir)
    else:
        project.store.unlink()
    with project.running(spark, "copy"):
        wait_for(lambda: len(project.rows("SELECT id FROM orders")) == 11, "the second run")
    (pipeline,) = project.pipelines(spark, "copy")
    assert verify(pipeline, "orders").is_equal


def test_one_that_fails_does_not_take_the_others_along(project, orders, spark):
    copying(project, orders)
    project.execute("CREATE TABLE taken (id INTEGER)")  # of another application
    copying(project, orders, "bad", "taken")
    project.pipeline("worse", "flow.changes('orders').nonsense()")
    project.produce(orders, order(1))
    with project.running(spark, "bad", "worse", "copy") as runner:
        wait_for(lambda: project.rows("SELECT id FROM orders"), "the good one")
        wait_for(lambda: len(runner.errors()) == 2, "two errors")
        project.produce(orders, order(2))
        wait_for(lambda: len(project.rows("SELECT id FROM orders")) == 2, "the good one goes on")
        project.execute("DROP TABLE taken")  # fixed: it is retried
        wait_for(lambda: len(project.rows("SELECT id FROM taken")) == 2, "the bad one")
    assert status.read(project.state_dir, "worse").writes[""]["state"] == "failed"


def test_a_file_that_changes_takes_the_place_of_what_runs(project, orders, spark):
    def writes():
        return status.read(project.state_dir, "copy").writes

    def labelled(label, more=""):
        (project.directory / "labels.py").write_text(
            f"def label(country):\n    return country + '-{label}'\n"
        )
        project.pipeline(
            "copy",
            f"""
            from labels import label
            orders = flow.changes("{orders}", "{SCHEMA}")
            labelled = orders.withColumn("country", F.udf(label)("country"))
            flow.write(labelled, to="cache", table="orders", key="id")
            {more}
            """,
        )

    def country(number):
        return project.rows(f"SELECT country FROM orders WHERE id = {number}")

    project.pipeline("copy", f'flow.changes("{orders}").nonsense()')
    project.produce(orders, order(1))
    with project.running(spark, "copy"):
        wait_for(lambda: writes().get("", {}).get("state") == "failed", "the mistake")
        labelled("a")
        wait_for(lambda: country(1) == [("DE-a",)], "the corrected one")

        labelled("b", 'flow.write(orders, to="cache", table="plain", key="id")')
        wait_for(lambda: project.rows("SELECT id FROM plain"), "another write")
        project.produce(orders, order(2))
        wait_for(lambda: country(2) == [("DE-b",)], "the edited one")
        assert country(1) == [("DE-a",)]  # it goes on from its checkpoint

        (project.directory / "copy.py").write_text("import headwater as hw\n\ndef copy(flow\n")
        wait_for(
            lambda: "copy.py:3: '('" in (writes()["cache/orders"]["error"] or ""), "the mistake"
        )
        project.produce(orders, order(3))
        wait_for(lambda: country(3) == [("DE-b",)], "the one before goes on")
        assert writes()["cache/orders"]["state"] == "running"

        labelled("c")
        wait_for(lambda: set(writes()) == {"cache/orders"}, "one write fewer")
        project.produce(orders, order(4))
        wait_for(lambda: country(4) == [("DE-c",)], "the last one")
        assert writes()["cache/orders"]["error"] is None


def test_records_that_cannot_be_read_and_rows_that_do_not_fit(project, orders, spark):
    project.pipeline(
        "strict",
        f"""
        orders = flow.changes("{orders}", "{SCHEMA}")
        flow.write(orders.where("country is not null"), to="cache", table="strict", key="total")
        """,
        bad_rows="dead-letter",
    )
    project.produce(orders, order(1), {"id": 2, "country": "DE", "total": None})
    project.produce_bytes(orders, b"not JSON", b"k")
    project.produce(orders, order(3, total="2.00"))
    with project.running(spark, "strict"):
        wait_for(lambda: len(project.rows("SELECT id FROM strict")) == 2, "the good rows")
        letters = wait_for(lambda: consumed(project, f"{orders}.dlq", 2), "the bad record")
        assert [message.value() for message in letters] == [b"not JSON"]
        (refused,) = wait_for(lambda: consumed(project, "strict.dlq", 1), "the refused row")
        assert dict(refused.headers())["headwater.dlq.column"] == b"total"
    counted = dead_letters.counts(project.bootstrap, ClientSettings(), "strict")
    assert sum(counted.values()) == 1
    (pipeline,) = project.pipelines(spark, "strict")
    assert why(pipeline, "strict", {"total": "2.00"}).causes[0].row["id"] == 3


def consumed(project, topic, partitions):
    consumer = Consumer({"bootstrap.servers": project.bootstrap, "group.id": "test"})
    try:
        found = []
        for partition in range(partitions):
            try:
                end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=60)[
                    1
                ]
            except Exception:  # the topic is not there yet
                return []
            consumer.assign([TopicPartition(topic, partition, 0)])
            while end and (message := consumer.poll(1)) is not None:
                if message.error() is None:
                    found.append(message)
        return found
    finally:
        consumer.close()


WIDE = ", ".join(f"c{number} int" for number in range(40))


@pytest.mark.parametrize("others", ["n int", WIDE, "JoinDate date"])
def test_deletes_are_not_lost_by_a_projection(project, orders, spark, others):
    """However many columns there are, and whatever they are called."""
    project.pipeline(
        "narrow",
        f"""
        orders = flow.changes("{orders}", "id bigint, {others}, total int").select("id", "total")
        flow.write(orders, to="cache", table="narrow", key="id")
        """,
    )
    (pipeline,) = project.pipelines(spark, "narrow")
    with pytest.raises(PipelineError, match="has lost its column _op"):
        pipeline.flow()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("flow.write(1 / 0, to='cache', table='t')", r"wrong.py:6: ZeroDivisionError"),
        ("flow.changes('x', 'id bigint')", "writes nothing"),
        ("flow.write(object(), to='cache', table='t')", "what is written to t is no DataFrame"),
        (
            "flow.write(flow.changes('x', 'id bigint'), to='cach', table='t')",
            "a sink that does not exist: cach",
        ),
        (
            "flow.write(flow.changes('x', 'id bigint'), to='cache', table='t', key='no')",
            "a column that is not there: no",
        ),
    ],
)
def test_mistakes_in_the_function(project, spark, body, message):
    project.pipeline("wrong", body)
    (pipeline,) = project.pipelines(spark, "wrong")
    with pytest.raises(PipelineError, match=message):
        pipeline.flow()


def test_topics_by_a_pattern(project, spark):
    mark = uuid.uuid4().hex[:8]
    project.topic(f"{mark}-a")
    project.pipeline(
        "many",
        f"""
        orders = flow.changes(pattern="{mark}-.*", schema="{SCHEMA}")
        flow.write(orders, to="cache", table="many", key="id")
        """,
    )
    project.produce(f"{mark}-a", order(1))
    with project.running(spark, "many"):
        wait_for(lambda: len(project.rows("SELECT id FROM many")) == 1, "the first topic")
        project.topic(f"{mark}-b")
        project.produce(f"{mark}-b", order(2))
        wait_for(lambda: len(project.rows("SELECT id FROM many")) == 2, "the topic that appeared")
        topics = [f"{mark}-a", f"{mark}-b"]
        wait_for(
            lambda: status.read(project.state_dir, "many").writes["cache/many"]["topics"] == topics,
            "both in the status",
        )
    (pipeline,) = project.pipelines(spark, "many")
    assert verify(pipeline, "many").is_equal
