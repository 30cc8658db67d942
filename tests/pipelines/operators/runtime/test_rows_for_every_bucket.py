"""Rows that concern every key reach every bucket, in log order."""

import pyarrow as pa
from support.pipelines.operator_driver import Driver, Source


class Passing:
    output = pa.schema([("name", pa.string()), ("_op", pa.string())])

    def step(self, state, inputs):
        return inputs[0].rows.select(["name", "_op"])


def test_a_truncate_reaches_every_bucket_in_log_order(tmp_path):
    source = Source(
        pa.schema([("name", pa.string())]),
        ("name",),
        ("name", "_op"),
        everywhere=lambda row: row["_op"] == "t",
    )
    driver = Driver(Passing(), [source], tmp_path)
    names = [{"name": f"n{number}"} for number in range(20)]
    truncate = {"name": None, "_op": "t"}
    found = driver.batch({("a", 0): [*names, truncate, *names, truncate]})
    ops = [row["_op"] for row in found]
    assert ops.count("c") == 40
    assert ops.count("t") == 6
    before = {row["name"] for row in found if row["_op"] == "c"}
    assert before == {row["name"] for row in names}
    by_bucket = "".join(ops).split("t")
    assert len(by_bucket) == 7  # of each of the three buckets: rows, truncate, rows, truncate
    assert by_bucket[0::2][:3] == by_bucket[1::2]
    assert by_bucket[6] == ""
