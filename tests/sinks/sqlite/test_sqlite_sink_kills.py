"""Drivers that write to SQLite are killed."""

import os
import signal

import pytest
from support.sinks.sink_killing import KillContract, Model, _wait_until_stopped
from support.sinks.sink_process import FENCED, FIELDS, made_batch
from support.sinks.sink_rows import comparable, contents, position
from test_sqlite_sink_contract import Sqlite

from headwater.errors import StoreUnreachable
from headwater.sinks.sqlite import database


class TestSqliteKills(KillContract):
    has_all_of_it = True
    drivers = ("sqlite3",)

    @pytest.fixture
    def backend(self, tmp_path):
        return Sqlite(tmp_path / "cache.db")

    def test_a_writer_that_was_stopped_and_wakes_up(self, killing, store, monkeypatch):
        """Within a transaction it holds the lock of the file, which cannot be taken from it: its
        successor gets an error. Before one it is fenced.
        """
        monkeypatch.setattr(database, "_BUSY_TIMEOUT_S", 0.1)
        model = Model(has_keys=True)
        killing.start(3, die_at=1_000_000)
        assert killing.wait() == 0, killing.said()
        number = killing.checkpoint.committed

        victim = killing.start(1, die_at=4, how=signal.SIGSTOP)
        _wait_until_stopped(victim)
        with pytest.raises(StoreUnreachable, match="locked"):
            store.writer(1, FIELDS)
        at, rows = contents(store)  # readers do not wait
        assert at == position(number)
        assert comparable(rows.to_pylist()) == model.rows(number)
        os.kill(victim, signal.SIGCONT)
        assert killing.wait() == 0, killing.said()
        assert contents(store)[0] == position(number + 1)

        victim = killing.start(1_000_000, die_at=0, how=signal.SIGSTOP)
        _wait_until_stopped(victim)
        with store.writer(1, FIELDS) as writer:
            writer.apply(made_batch(number + 2, has_keys=True))
            os.kill(victim, signal.SIGCONT)
            assert killing.wait() == FENCED, killing.said()
            writer.apply(made_batch(number + 3, has_keys=True))
        at, rows = contents(store)
        assert at == position(number + 3)
        assert comparable(rows.to_pylist()) == model.rows(number + 3)
