"""Files that tasks write for a Delta table: which count, and what becomes of the others."""

from contextlib import closing

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from support.sinks.sink_contract import ID
from support.sinks.sink_rows import batch, contents, position, rows_of, table
from test_delta_contract import Delta

from headwater.errors import Fenced, NotStaged
from headwater.sinks.contract import Target


@pytest.fixture
def backend(tmp_path):
    return Delta(str(tmp_path / "lake"))


@pytest.fixture
def store(backend):
    with closing(backend.store(Target("shop", "events", ()))) as store:
        yield store


def without_rows(number):
    return batch(number, ID.empty_table())


def rows(*ids, v="a"):
    return iter([table(ID, [{"id": id_, "v": v} for id_ in ids])])


def test_files_count_when_they_are_committed(tmp_path, store):
    with store.writer(1, ID) as writer:
        staging = writer.staging(without_rows(0))
        assert staging.is_local
        tokens = [staging.stage(rows(1, 2), "1"), staging.stage(iter([]), "2")]
        staging.stage(rows(1, 2, v="second attempt"), "3")
        assert rows_of(store) == []
        writer.commit(without_rows(0), tokens)
        staging.stage(rows(7, v="late"), "4")
        writer.commit(without_rows(0), tokens)  # the response was lost
        assert rows_of(store) == [{"id": 1, "v": "a"}, {"id": 2, "v": "a"}]
        writer.apply(batch(1, table(ID, [{"id": 3, "v": "b"}])))
        writer.commit(without_rows(2), [])
    assert contents(store)[0] == position(2)
    found = DeltaTable(str(tmp_path / "lake" / "events"))
    assert found.count() == 3
    added = pa.table(found.get_add_actions()).to_pylist()
    [staged] = [add for add in added if "part-1-" in add["path"]]
    assert staged["num_records"] == 2
    assert (staged["min"]["id"], staged["max"]["id"]) == (1, 2)


def test_long_texts_are_no_bounds_in_the_log(tmp_path, store):
    """Every reader of the table loads them, of all files."""
    with store.writer(1, ID) as writer:
        token = writer.staging(without_rows(0)).stage(rows(1, 2, v="x" * 1000), "1")
        writer.commit(without_rows(0), [token])
    assert len(token) < 1000
    [added] = pa.table(DeltaTable(str(tmp_path / "lake" / "events")).get_add_actions()).to_pylist()
    assert (added["min"]["id"], added["max"]["id"]) == (1, 2)
    assert added["null_count"]["v"] == 0
    assert rows_of(store) == [{"id": id_, "v": "x" * 1000} for id_ in (1, 2)]


def test_what_a_writer_has_staged_does_not_count_when_it_was_replaced(store, monkeypatch):
    """Also if that happens between its last look and its commit."""
    with store.writer(1, ID) as zombie:
        tokens = [zombie.staging(without_rows(0)).stage(rows(1, v="zombie"), "1")]
        commit, writers = DeltaTable.create_write_transaction, []

        def late(delta_table, *given, **named):
            monkeypatch.undo()
            writers.append(store.writer(1, ID))
            commit(delta_table, *given, **named)

        monkeypatch.setattr(DeltaTable, "create_write_transaction", late)
        with pytest.raises(Fenced):
            zombie.commit(without_rows(0), tokens)
        [writer] = writers
        with writer:
            writer.commit(without_rows(0), [writer.staging(without_rows(0)).stage(rows(2), "1")])
    assert rows_of(store) == [{"id": 2, "v": "a"}]


def test_rows_that_may_replace_others_are_left_to_the_driver(backend):
    with closing(backend.store(Target("shop", "orders", ("id",)))) as store:
        with store.writer(1, ID) as writer:
            staging = writer.staging(without_rows(0))  # the table is empty
            token = staging.stage(rows(1, 2, 1, v="b"), "1")
            with pytest.raises(NotStaged):
                staging.stage(iter([table(ID, [{}], ["t"])]), "2")
            writer.commit(without_rows(0), [token])
            with pytest.raises(NotStaged, match="replace"):
                writer.staging(without_rows(1))
        assert rows_of(store) == [{"id": 1, "v": "b"}, {"id": 2, "v": "b"}]


def test_tables_with_partitions_are_left_to_the_driver(backend):
    target = Target("shop", "events", (), {"partition_by": "v"})
    with (
        closing(backend.store(target)) as store,
        store.writer(1, ID) as writer,
        pytest.raises(NotStaged, match="partitions"),
    ):
        writer.staging(without_rows(0))
