"""Event time follows the order of a partition's rows, also where Spark has shuffled them."""

from datetime import UTC, datetime, timedelta

from support.pipelines.project import Project

import headwater as hw

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = (
    "name string, at timestamp, _op string, _at timestamp,"
    " _position struct<topic: string, partition: int, offset: bigint>"
)
UNION = """
    rows = flow.changes("shuffled", "name string, at timestamp")
    both = rows.where("name = 'a'").union(rows.where("name = 'b'"))
    counts = hw.tumbling(both, hw.event_time("at", future=None), "1 minute").agg(
        rows=hw.agg.count()
    )
    flow.write(counts, to="cache", table="counts", key="window_start")
"""
MINUTES = 20


def _log():
    """A row each ten seconds, and one of each minute that comes two minutes late."""
    rows = []
    for minute in range(MINUTES):
        seconds = [*range(60 * minute, 60 * minute + 60, 10), 60 * minute - 120]
        rows += [
            ("ab"[n % 2], START + timedelta(seconds=second)) for n, second in enumerate(seconds)
        ]
    return rows


def test_rows_that_were_shuffled_are_late_by_their_offset(spark):
    rows = [(name, at, "c", at, ("t", 0, offset)) for offset, (name, at) in enumerate(_log())]
    frame = spark.createDataFrame(rows, SCHEMA).repartition(3)
    found = hw.tumbling(frame, "at", "1 minute").agg(rows=hw.agg.count()).collect()
    assert [row.rows for row in found] == [6] * (MINUTES - 1)


def test_a_union_of_a_topic_with_itself_is_one_partition_still(spark, tmp_path, broker_address):
    project = Project(tmp_path, broker_address)
    project.topic("shuffled", 1)
    project.pipeline("counts", UNION)
    rows = [{"name": name, "at": at.isoformat()} for name, at in _log()]
    project.produce("shuffled", *rows, key="name")
    with project.running(spark, "counts"):
        project.wait_until_at_end(spark, "shuffled", "counts")
    found = project.rows("SELECT rows FROM counts ORDER BY window_start")
    assert [row[0] for row in found] == [6] * (MINUTES - 1)
