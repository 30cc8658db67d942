"""When a capture of SQLite looks for changes."""

import os
import sqlite3
from contextlib import closing

import pytest

from headwater.capture.sqlite.file_watch import Watch


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_commit_of_another_connection_is_a_change(tmp_path, mode):
    path = str(tmp_path / "shop.db")
    with closing(sqlite3.connect(path)) as writer, closing(sqlite3.connect(path)) as reader:
        writer.execute(f"PRAGMA journal_mode = {mode}")
        writer.execute("CREATE TABLE t (x)")
        watch = Watch(path, reader)
        assert watch.is_changed()  # the first look
        assert not watch.is_changed()
        writer.execute("INSERT INTO t VALUES (1)")
        assert not watch.is_changed()
        writer.commit()
        assert watch.is_changed()
        assert not watch.is_changed()
        watch.look_again()
        assert watch.is_changed()


def test_a_commit_that_is_visible_long_after_it_was_written_is_a_change(tmp_path):
    """A disk that takes a second to sync: the time of the log is that of the write before it."""
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as writer, closing(sqlite3.connect(path)) as reader:
        writer.execute("PRAGMA journal_mode = wal")
        writer.execute("CREATE TABLE t (x)")
        writer.commit()
        writer.execute("PRAGMA wal_checkpoint(RESTART)")  # the log is written from its start again
        files = [path, path.with_name("shop.db-wal")]
        watch = Watch(str(path), reader)
        for file in files:
            os.utime(file, (1e9, 1e9))
        watch.is_changed()
        assert not watch.is_changed()
        before = [file.stat().st_size for file in files]
        with writer:
            writer.execute("INSERT INTO t VALUES (1)")
        for file in files:
            os.utime(file, (1e9, 1e9))
        assert [file.stat().st_size for file in files] == before
        assert watch.is_changed()
