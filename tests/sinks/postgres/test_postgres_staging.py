"""Rows that tasks stage for PostgreSQL: the contract of stores, and what is only true of tasks."""

import signal
from contextlib import closing

import pyarrow as pa
import pytest
from support.sinks.sink_contract import ID, SinkContract
from support.sinks.sink_rows import batch, contents, position, rows_of, table
from test_postgres_sink_contract import SCHEMAS, Postgres, warehouse
from tiers import long

from headwater.errors import Fenced, NotStaged, RowRefused, StoreUnreachable
from headwater.sinks.contract import Target

__all__ = ["warehouse"]

TARGET = Target("shop", "orders", ("id",))


class StagedPostgres(Postgres):
    is_staged = True


@long  # the quick tier has the representative ones
class TestStagedPostgresContract(SinkContract):
    @pytest.fixture
    def backend(self, warehouse):
        return StagedPostgres(warehouse, f"s{next(SCHEMAS)}")


@pytest.fixture
def postgres_backend(warehouse):
    return Postgres(warehouse, f"s{next(SCHEMAS)}")


@pytest.fixture
def store(postgres_backend):
    with closing(postgres_backend.store(TARGET)) as store:
        yield store


def without_rows(number, fields=ID):
    return batch(number, fields.empty_table())


def rows(*ids, v="a", ops=()):
    return iter([table(ID, [{"id": id_, "v": v} for id_ in ids], ops)])


def staged_tables(backend):
    found = backend.database.run(
        "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
        f" WHERE nspname = '{backend.schema}' AND relname LIKE '\\_\\_headwater%'"
        " AND relkind = 'r' AND relname <> '__headwater_positions'"
    )
    return sorted(name for (name,) in found)


def test_rows_are_seen_when_they_are_committed_and_no_attempt_is_left_over(postgres_backend, store):
    with store.writer(1, ID) as writer:
        staging = writer.staging(without_rows(0))
        tokens = [staging.stage(rows(1, 2), "1"), staging.stage(rows(3), "2")]
        staging.stage(rows(3, v="second attempt"), "3")
        assert rows_of(store) == []
        assert len(staged_tables(postgres_backend)) == 3
        writer.commit(without_rows(0), tokens)
        assert writer.position == position(0)
        assert rows_of(store) == [{"id": id_, "v": "a"} for id_ in (1, 2, 3)]
        assert staged_tables(postgres_backend) == []
        writer.commit(without_rows(0), tokens)  # the response was lost
        writer.apply(batch(1, table(ID, [{"id": 2, "v": "b"}])))
        staging = writer.staging(without_rows(2))
        tokens = [staging.stage(rows(1, 4, ops=["d", "c"]), "4"), staging.stage(rows(2, 2), "5")]
        writer.commit(without_rows(2), tokens)
        assert rows_of(store) == [{"id": id_, "v": "a"} for id_ in (2, 3, 4)]
        assert contents(store)[0] == position(2)


def test_a_task_that_wakes_up_after_its_batch_was_committed_changes_nothing(
    postgres_backend, store
):
    with store.writer(1, ID) as writer:
        late = writer.staging(without_rows(0))
        writer.commit(without_rows(0), [late.stage(rows(1), "1")])
        with pytest.raises(Fenced, match="is committed"):
            late.stage(rows(1, v="late"), "2")
        staging = writer.staging(without_rows(1))

        def sleeping():  # in the midst of its rows, while the driver commits
            writer.commit(without_rows(1), [staging.stage(rows(2), "3")])
            yield from rows(2, v="late")

        staging.stage(sleeping(), "4")
        assert len(staged_tables(postgres_backend)) == 1
        assert rows_of(store) == [{"id": 1, "v": "a"}, {"id": 2, "v": "a"}]
        last = writer.staging(without_rows(2))
        writer.commit(without_rows(2), [last.stage(rows(3), "5")])
        assert staged_tables(postgres_backend) == []
        assert [row["v"] for row in rows_of(store)] == ["a", "a", "a"]


def test_tasks_of_a_writer_that_was_replaced_stage_nothing(postgres_backend, store):
    with store.writer(1, ID) as zombie:
        staging = zombie.staging(without_rows(0))
        token = staging.stage(rows(1, v="zombie"), "1")
        with store.writer(1, ID) as writer:
            assert staged_tables(postgres_backend) == []
            with pytest.raises(Fenced):
                staging.stage(rows(1, v="zombie"), "2")
            with pytest.raises(Fenced):
                zombie.commit(without_rows(0), [token])
            own = writer.staging(without_rows(0))
            writer.commit(without_rows(0), [own.stage(rows(7), "1")])
    assert rows_of(store) == [{"id": 7, "v": "a"}]


def test_staged_rows_that_a_crash_of_the_server_has_taken_are_missed(postgres_backend, store):
    """PostgreSQL empties unlogged tables. Without a look the batch would be committed empty."""
    with store.writer(1, ID) as writer:
        tokens = [writer.staging(without_rows(0)).stage(rows(1), "1")]
        postgres_backend.database.close()
        postgres_backend.database.server.stop(signal.SIGQUIT)
        postgres_backend.database.server.start()
        with pytest.raises(StoreUnreachable):
            writer.commit(without_rows(0), tokens)
    table_name = staged_tables(postgres_backend)[0]
    assert postgres_backend.database.run(
        f"SELECT count(*) FROM {postgres_backend.table(table_name)}"
    ) == [(0,)]
    with store.writer(1, ID) as writer:
        tokens = [writer.staging(without_rows(0)).stage(rows(1), "1")]
        postgres_backend.database.run(
            f"TRUNCATE {postgres_backend.table(staged_tables(postgres_backend)[0])}"
        )
        with pytest.raises(StoreUnreachable, match="are gone"):
            writer.commit(without_rows(0), tokens)
    with store.writer(1, ID) as writer:
        assert writer.position is None
        writer.commit(without_rows(0), [writer.staging(without_rows(0)).stage(rows(1), "1")])
    assert rows_of(store) == [{"id": 1, "v": "a"}]


def test_what_tasks_cannot_stage_is_left_to_the_driver(postgres_backend, store):
    with store.writer(1, ID) as writer:
        staging = writer.staging(without_rows(0))
        with pytest.raises(NotStaged, match="truncate"):
            staging.stage(rows(1, 1, ops=["t", "c"]), "1")
        with pytest.raises(RowRefused):
            staging.stage(rows(1, v="a\0b"), "2")
        staging.stage(rows(1), "3")
        writer.apply(batch(0, table(ID, [{"id": 1, "v": "b"}])))
        assert staged_tables(postgres_backend) == []
    assert rows_of(store) == [{"id": 1, "v": "b"}]


def test_columns_that_are_new_in_a_staged_batch(store):
    wider = ID.append(pa.field("n", pa.int64()))
    with store.writer(1, ID) as writer:
        writer.commit(without_rows(0), [writer.staging(without_rows(0)).stage(rows(1), "1")])
        staging = writer.staging(without_rows(1, wider))
        given = iter([table(wider, [{"id": 2, "v": "b", "n": 2}])])
        writer.commit(without_rows(1, wider), [staging.stage(given, "2")])
        staging = writer.staging(without_rows(2))
        writer.commit(without_rows(2), [staging.stage(rows(1, v="c"), "3")])
    assert rows_of(store) == [{"id": 1, "v": "c", "n": None}, {"id": 2, "v": "b", "n": 2}]
