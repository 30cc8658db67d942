"""Which offsets a batch has, when a store has come far enough, and in which order rows are."""

import orjson
import pyarrow as pa
import pytest

from headwater.errors import PipelineError
from headwater.pipelines.checkpoint import Checkpoint
from headwater.pipelines.offsets import has_reached, lag_records
from headwater.pipelines.running.row_order import check_truncates, in_log_order
from headwater.sinks.contract import Position


@pytest.fixture
def checkpoint(tmp_path):
    made = Checkpoint(tmp_path, "p", "cache/orders", 1)
    for name in ("offsets", "commits"):
        (made.path / name).mkdir(parents=True)
    (made.path / "metadata").write_text('{"id":"q"}')
    return made


def write_offsets(checkpoint, batch, *sources, name="offsets"):
    lines = [
        "v1",
        "{}",
        *("-" if source is None else orjson.dumps(source).decode() for source in sources),
    ]
    (checkpoint.path / name / str(batch)).write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("sources", "merged"),
    [
        ([{"a": {"0": 5}}], {"a": {0: 5}}),
        ([{"a": {"0": 5}}, {"b": {"0": 7}}, None], {"a": {0: 5}, "b": {0: 7}}),
        ([{"a": {"0": 5}}, {"a": {"0": 3}}], {"a": {0: 3}}),
        ([{"a": {"0": 3}}, {"a": {"0": 5}}], {"a": {0: 3}}),
        # Only one of the two has found the new partition: nothing of it counts yet.
        ([{"a": {"0": 5, "1": 9}}, {"a": {"0": 5}}], {"a": {0: 5}}),
        ([{"a": {"0": 5}}, {"a": {"0": 5, "1": 9}}], {"a": {0: 5}}),
    ],
)
def test_what_all_sources_have_read_counts(checkpoint, sources, merged):
    write_offsets(checkpoint, 4, *sources)
    assert checkpoint.offsets(4) == merged
    assert checkpoint.offsets(5) is None


def test_whether_a_checkpoint_stands_where_its_store_does(checkpoint):
    at = Position("q", 1, {"a": {0: 5}})
    assert not checkpoint.is_at(at)
    write_offsets(checkpoint, 0, {"a": {"0": 0}})
    write_offsets(checkpoint, 1, {"a": {"0": 5}})
    assert checkpoint.is_at(at)
    assert not checkpoint.is_at(Position("other", 1, {"a": {0: 5}}))
    assert not checkpoint.is_at(Position("q", 1, {"a": {0: 4}}))
    assert checkpoint.is_at(Position("q", 0, {"a": {0: 0}}))  # batch 1 comes again
    write_offsets(checkpoint, 1, {}, name="commits")
    assert checkpoint.is_at(at)
    assert not checkpoint.is_at(Position("q", 0, {"a": {0: 0}}))  # batch 1 does not
    write_offsets(checkpoint, 2, {"a": {"0": 6}})
    assert checkpoint.is_at(at)
    write_offsets(checkpoint, 3, {"a": {"0": 7}})
    assert not checkpoint.is_at(at)
    (checkpoint.path / "offsets" / "1").write_text("")  # a power cut, elsewhere than here
    assert not checkpoint.is_at(at)


def test_how_far_a_store_is():
    position = Position("q", 1, {"a": {0: 5, 1: 2}})
    assert has_reached(position, {"a": {0: 5}})
    assert not has_reached(position, {"a": {0: 6}})
    assert not has_reached(position, {"a": {0: 5}, "b": {0: 1}})
    assert has_reached(position, {"a": {0: 1, 2: 0}})  # an empty partition
    assert not has_reached(None, {"a": {0: 1}})
    assert has_reached(None, {"a": {0: 0}})
    assert lag_records(position, {"a": {0: 9, 1: 1}, "b": {0: 3}}) == 7
    assert lag_records(None, {"a": {0: 9}}) == 9


def test_rows_are_put_into_the_order_of_the_log():
    positions = [("b", 0, 1), ("a", 1, 0), ("b", 0, 0), ("a", 0, 7), ("a", 1, 3), ("a", 0, 12)]
    rows = [
        {"n": n, "_at": None, "_position": {"topic": topic, "partition": part, "offset": offset}}
        for n, (topic, part, offset) in enumerate(positions)
    ]
    position = pa.struct(
        [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
    )
    schema = pa.schema([("n", pa.int64()), ("_at", pa.timestamp("us")), ("_position", position)])

    def ordered(chosen):
        table = in_log_order(pa.Table.from_pylist(chosen, schema))
        assert table.column_names == ["n"]
        return table["n"].to_pylist()

    assert ordered(rows) == [3, 5, 1, 4, 2, 0]  # by topic, partition, offset, whichever comes first
    assert ordered(rows[::-1]) == [3, 5, 1, 4, 2, 0]
    assert ordered([rows[4], rows[3], rows[5]]) == [3, 5, 4]
    assert ordered([]) == []
    unordered = pa.table({"n": [2, 1]})
    assert in_log_order(unordered).equals(unordered)


def test_a_truncate_is_refused_where_it_has_no_order():
    rows = pa.table({"id": [1, None], "_op": ["c", "t"]})
    check_truncates(rows, {"a": {0: 5}})
    check_truncates(rows.slice(0, 1), {"a": {0: 5, 1: 5}})
    check_truncates(rows.drop_columns(["_op"]), {"a": {0: 5, 1: 5}})
    for offsets in ({"a": {0: 5, 1: 5}}, {"a": {0: 5}, "b": {0: 5}}):
        with pytest.raises(PipelineError, match="has several partitions"):
            check_truncates(rows, offsets)
