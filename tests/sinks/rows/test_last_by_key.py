"""A batch reduced to the last row of each key."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import RowRefused, StoreDiverged
from headwater.sinks.contract import (
    Batch,
    Position,
    fields_from_text,
    fields_to_text,
    is_applied,
)
from headwater.sinks.rows.last_by_key import reduce

changes = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.sampled_from(["c", "u", "d", "t", None]))
)


def table(rows):
    return pa.table(
        {
            "shop": pa.array([row[0] for row in rows], pa.string()),
            "id": pa.array([row[1] for row in rows], pa.int64()),
            "n": pa.array(range(len(rows)), pa.int64()),
            "_op": pa.array([row[2] for row in rows], pa.string()),
        }
    )


@settings(deadline=None)  # the first call loads kernels of Arrow
@given(st.lists(changes, max_size=4))
def test_reduced_batches_leave_what_single_changes_leave(batches):
    expected, stored = {}, {}
    for batch in batches:
        for n, (shop, id_, op) in enumerate(batch):
            if op == "t":
                expected.clear()
            elif op == "d":
                expected.pop((shop, id_), None)
            else:
                expected[shop, id_] = n
        reduced = reduce(table(batch), ["shop", "id"])
        if reduced.clears:
            stored.clear()
        deleted = [(row["shop"], row["id"]) for row in reduced.deletes.to_pylist()]
        upserted = {(row["shop"], row["id"]): row["n"] for row in reduced.upserts.to_pylist()}
        assert len(set(deleted)) == len(deleted)
        assert len(upserted) == len(reduced.upserts)
        assert not upserted.keys() & set(deleted)
        for key in deleted:
            stored.pop(key, None)
        stored |= upserted
    assert stored == expected


def test_rows_without_an_op_are_upserts_in_order():
    reduced = reduce(pa.table({"id": [1, 2, 1], "n": [1, 2, 3]}), ["id"])
    assert reduced.upserts.to_pylist() == [{"id": 2, "n": 2}, {"id": 1, "n": 3}]
    assert len(reduced.deletes) == 0


def test_a_key_without_a_value_is_refused():
    with pytest.raises(RowRefused, match="a row has no id") as refused:
        reduce(pa.table({"id": [1, None], "n": [1, 2]}), ["id"])
    assert refused.value.row == {"id": None, "n": 2}
    assert refused.value.column == "id"


def batch(id_, starts, offsets, query="q"):
    return Batch(query, id_, {"t": starts} if starts else {}, {"t": offsets}, pa.table({}))


def test_which_batches_are_applied_already():
    stored = Position("q", 5, {"t": {0: 10, 1: 7}})
    assert not is_applied(None, batch(0, {}, {0: 10}))
    assert is_applied(stored, batch(5, {0: 3, 1: 7}, {0: 10, 1: 7}))
    assert is_applied(stored, batch(3, {0: 0}, {0: 2}))
    assert not is_applied(stored, batch(6, {0: 10, 1: 7}, {0: 11, 1: 7}))
    assert not is_applied(stored, batch(6, {0: 10, 1: 7, 2: 0}, {0: 11, 1: 7, 2: 4}))


@pytest.mark.parametrize(
    "wrong",
    [
        batch(6, {0: 10}, {0: 11}, query="other"),
        batch(6, {0: 9, 1: 7}, {0: 11, 1: 7}),
        batch(6, {0: 11, 1: 7}, {0: 12, 1: 7}),
        batch(5, {0: 3, 1: 7}, {0: 12, 1: 7}),
        batch(4, {0: 3}, {0: 10, 2: 1}),
    ],
)
def test_a_batch_that_does_not_fit_is_an_error(wrong):
    with pytest.raises(StoreDiverged):
        is_applied(Position("q", 5, {"t": {0: 10, 1: 7}}), wrong)


def test_an_empty_store_takes_no_later_batch():
    with pytest.raises(StoreDiverged, match="the store is empty"):
        is_applied(None, batch(9, {0: 3}, {0: 10}))


def test_position_and_fields_survive_storing():
    position = Position("q", 5, {"t": {0: 10, 12: 7}, "u": {}})
    assert Position.from_json(position.to_json()) == position
    fields = pa.schema([("a", pa.decimal128(10, 2)), ("b", pa.timestamp("us", "UTC"))])
    assert fields_from_text(fields_to_text(fields)) == fields


def test_rows_without_a_key_are_left_out_and_reported():
    refused = []
    rows = table(
        [("a", 1, None), (None, 2, "d"), ("b", None, "c"), (None, None, "t"), ("c", 3, "u")]
    )
    reduced = reduce(rows, ["shop", "id"], refused)
    assert reduced.clears
    assert reduced.upserts["n"].to_pylist() == [4]
    assert refused == []  # rows before a truncation are not checked

    reduced = reduce(rows.slice(0, 3), ["shop", "id"], refused)
    assert reduced.upserts["n"].to_pylist() == [0]
    assert [(error.column, error.row["n"]) for error in refused] == [("shop", 1), ("id", 2)]


def test_without_a_key_every_row_is_added():
    rows = table([("a", 1, None), ("a", 1, None)]).drop_columns(["_op"])
    assert reduce(rows, []).upserts.equals(rows)
