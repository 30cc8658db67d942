"""The same log gives the same store, however it is cut into batches."""

import random
import uuid

from support.pipelines.project import Project

from headwater.pipelines.running.environment import open_store
from headwater.pipelines.running.rebuilding import rebuild, versions_of

SCHEMA = "id bigint, country string, total decimal(10,2)"


def test_the_size_of_batches_does_not_matter(tmp_path, broker_address, spark):
    project = Project(tmp_path, broker_address)
    orders = project.topic(f"orders-{uuid.uuid4().hex[:8]}", 2)
    rng = random.Random(6)
    for number in range(60):
        if number == 20:  # a record that cannot be read
            project.produce_bytes(orders, b'{"id": 0, "total": "no number"}', b"bad")
        row = {"id": rng.randrange(20), "country": rng.choice(["DE", "FR"]), "total": f"{number}.5"}
        project.produce(orders, row if rng.random() < 0.8 else {"id": row["id"], "_deleted": True})
    for batch_rows in (7, 1000):
        project.pipeline(
            f"by{batch_rows}",
            f"""
            orders = flow.changes("{orders}", "{SCHEMA}")
            flow.write(orders, to="cache", table="orders{batch_rows}", key="id")
            sums = orders.where("_op != 'd'").groupBy("country")
            sums = sums.agg(F.sum("total").alias("total"), F.count("*").alias("n"))
            flow.write(sums, to="cache", table="sums{batch_rows}", key="country")
            """,
            batch_rows=str(batch_rows),
        )
    small, large = project.pipelines(spark, "by7", "by1000")
    for pipeline in (small, large):
        assert set(rebuild(pipeline).values()) == {1}
    for few, many in zip(small.flow().writes, large.flow().writes, strict=True):
        assert contents(small, few) == contents(large, many)
        (of_few,), (of_many,) = versions_of(small, few), versions_of(large, many)
        assert of_few.position.offsets == of_many.position.offsets
        assert of_few.position.batch > of_many.position.batch + 5


def contents(pipeline, write) -> list[dict]:
    store = open_store(pipeline.environment, pipeline.name, write)
    try:
        with store.read(1) as found:
            rows = [row for batch in found.rows for row in batch.to_pylist()]
    finally:
        store.close()
    assert rows
    return sorted(rows, key=str)
