"""Specific to Delta: maintenance, concurrent changes of others, a shortened log, S3."""

import errno
import os
import threading
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from support.sinks.sink_rows import batch, comparable, contents, position, rows_of, table

from bench.peers.provision import missing_tools
from bench.peers.s3proxy import s3_server
from headwater.errors import ConfigError, Fenced, StateLost, StoreRefused
from headwater.settings import Secret
from headwater.sinks.contract import Log, Target
from headwater.sinks.settings import SinkSettings
from headwater.sinks.stores import store_of

ID_N = pa.schema([("id", pa.int64()), ("n", pa.int64())])


def delta(url, key=("id",), **options):
    settings = SinkSettings("lake", kind="delta", url=Secret(str(url)))
    return store_of(settings, Target("shop", "orders", key, options), Log(""))


def rows(number, ids=range(10)):
    return table(ID_N, [{"id": id_, "n": number} for id_ in ids])


def test_small_files_are_compacted_and_old_ones_retained_for_readers(tmp_path):
    store = delta(tmp_path, (), compact_every="10")
    with store.writer(1, ID_N) as writer:
        for number in range(6):
            writer.apply(batch(number, rows(number)))
        reader = DeltaTable(str(tmp_path / "orders"))
        assert len(reader.file_uris()) == 6
        for number in range(6, 30):
            writer.apply(batch(number, rows(number)))
    assert len(DeltaTable(str(tmp_path / "orders")).file_uris()) < 12
    assert contents(store)[0] == position(29)
    assert len(rows_of(store)) == 300
    assert pa.table(reader.scan()).num_rows == 60  # an earlier reader continues


def test_a_batch_that_deletes_what_is_not_there_is_applied_all_the_same(tmp_path):
    """delta-rs makes no commit of a MERGE that changes nothing."""
    store = delta(tmp_path)
    with store.writer(1, ID_N) as writer:
        writer.apply(batch(0, rows(0)))
        writer.apply(batch(1, table(ID_N, [{"id": 77}], ["d"])))
        writer.apply(batch(2, table(ID_N, [{}], ["t"])))
        writer.apply(batch(3, table(ID_N, [{}], ["t"])))
        assert contents(store)[0] == position(3)
    assert store.writer(1, ID_N).position == position(3)


def test_compaction_by_another_process_does_not_disturb_the_writer(tmp_path):
    store = delta(tmp_path)
    over, problems = threading.Event(), []

    def compact_and_vacuum() -> None:
        while not over.wait(0.1):
            try:
                their = DeltaTable(str(tmp_path / "orders"))
                their.optimize.compact()
                their.vacuum(retention_hours=200, dry_run=False)
                their.alter.set_table_description("theirs")
            except Exception as error:
                if "Failed to commit" not in str(error):
                    problems.append(error)
                    return

    with store.writer(1, ID_N) as writer:
        writer.apply(batch(0, rows(0)))
        thread = threading.Thread(target=compact_and_vacuum)
        thread.start()
        try:
            for number in range(1, 30):
                writer.apply(batch(number, rows(number, range(number, number + 5))))
        finally:
            over.set()
            thread.join()
    assert not problems
    table_ = DeltaTable(str(tmp_path / "orders"))
    assert table_.metadata().description == "theirs"
    assert table_.version() > 31  # ours, and theirs
    expected = dict.fromkeys(range(10), 0)
    for number in range(1, 30):
        expected |= dict.fromkeys(range(number, number + 5), number)
    assert contents(store)[0] == position(29)
    assert rows_of(store) == comparable({"id": i, "n": n} for i, n in expected.items())


def test_a_log_that_others_have_shortened(tmp_path):
    """The position is then that of the writer's begin, if nothing was applied since; otherwise
    the offsets are lost, and nothing is guessed.
    """
    log = tmp_path / "orders__v1" / "_delta_log"
    store = delta(tmp_path)
    with store.writer(1, ID_N) as writer:
        writer.apply(batch(0, rows(0)))
    with store.writer(1, ID_N):
        pass
    shorten(tmp_path / "orders", log)
    assert store.versions()[0].position == position(0)
    with store.writer(1, ID_N) as writer:
        assert writer.position == position(0)
        writer.apply(batch(1, rows(1)))
    shorten(tmp_path / "orders", log)
    with pytest.raises(StoreRefused, match="the offsets of batch 1") as caught:
        store.versions()
    assert "rebuild" in caught.value.hint


def shorten(path: Path, log: Path) -> None:
    """A foreign commit, a checkpoint of it, and no commits before it."""
    their = DeltaTable(str(path))
    their.alter.set_table_properties({"delta.appendOnly": "false"})
    their = DeltaTable(str(path))
    their.create_checkpoint()
    for commit in log.glob("*.json"):
        if int(commit.stem) < their.version():
            commit.unlink()


def test_partitions_by_columns(tmp_path):
    store = delta(tmp_path, ("id",), partition_by="n")
    with store.writer(1, ID_N) as writer:
        writer.apply(batch(0, table(ID_N, [{"id": 1, "n": 1}, {"id": 2, "n": 2}])))
        writer.apply(batch(1, table(ID_N, [{"id": 1, "n": 3}, {"id": 3, "n": None}])))
    assert rows_of(store) == comparable(
        [{"id": 1, "n": 3}, {"id": 2, "n": 2}, {"id": 3, "n": None}]
    )
    files = DeltaTable(str(tmp_path / "orders")).file_uris()
    assert {os.path.basename(os.path.dirname(file)) for file in files} == {
        "n=2", "n=3", "n=__HIVE_DEFAULT_PARTITION__",
    }  # fmt: skip


def test_what_is_not_needed_is_not_read(tmp_path):
    """A file without any of a batch's keys stays as it is."""
    store = delta(tmp_path)
    with store.writer(1, ID_N) as writer:
        writer.apply(batch(0, rows(0, range(100))))
        writer.apply(batch(1, rows(1, range(1000, 1100))))
        before = set(DeltaTable(str(tmp_path / "orders")).file_uris())
        writer.apply(batch(2, rows(2, range(1050, 1060))))
    after = set(DeltaTable(str(tmp_path / "orders")).file_uris())
    assert len(before & after) == 1


@pytest.mark.parametrize(
    "options",
    [{"partition_by": "nothing"}, {"compact_every": "0"}, {"retention": "5m"}, {"retention": "x"}],
)
def test_settings_that_are_wrong(tmp_path, options):
    with pytest.raises(ConfigError):
        delta(tmp_path, **options).writer(1, ID_N)
    assert not list(tmp_path.iterdir())


def test_a_directory_that_may_not_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    store = delta(tmp_path / "file" / "lake")
    with pytest.raises(StoreRefused, match="file"):
        store.check()


@pytest.mark.java
@pytest.mark.skipif(bool(missing_tools("java", "mvn")), reason="needs java and mvn on the PATH")
def test_in_an_object_store(tmp_path):
    with s3_server(tmp_path) as s3:
        environment = s3.environment
        settings = SinkSettings(
            "lake",
            kind="delta",
            url=Secret("s3://headwater/lake"),
            options={
                "endpoint": s3.endpoint,
                "allow_http": "true",
                "region": "us-east-1",
                "access_key_id": environment["AWS_ACCESS_KEY_ID"],
                "secret_access_key": environment["AWS_SECRET_ACCESS_KEY"],
            },
        )
        with closing(store_of(settings, Target("shop", "orders", ("id",)), Log(""))) as store:
            store.check()
            zombie = store.writer(1, ID_N)
            zombie.apply(batch(0, rows(0)))
            with store.writer(1, ID_N) as writer:
                with pytest.raises(Fenced):
                    zombie.apply(batch(1, rows(7)))
                writer.apply(batch(1, rows(1, range(3))))
                writer.apply(batch(1, rows(1, range(3))))
            store.writer(2, ID_N).close()
            assert [(version.number, version.is_live) for version in store.versions()] == [
                (1, True), (2, False),
            ]  # fmt: skip
            assert contents(store)[0] == position(1)
            assert len([row for row in rows_of(store) if row["n"] == 1]) == 3
            with pytest.raises(StoreRefused, match="no links"):
                store.promote(2)


def failing_at(number, monkeypatch, directory):
    """The disk, at the n-th sync below the directory from now on. A broker of other tests may run
    in this process and sync files of its own.
    """
    sync, calls = os.fsync, []

    def fsync(descriptor):
        if Path(f"/proc/self/fd/{descriptor}").resolve().is_relative_to(directory):
            calls.append(descriptor)
            if len(calls) == number:
                raise OSError(errno.EIO, "Input/output error")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return calls


def test_a_batch_that_does_not_reach_the_disk_is_not_taken_for_written(tmp_path, monkeypatch):
    """The file of rows, the commit, and the names of both; whichever it is."""
    for number in range(1, 6):
        with delta(tmp_path / str(number)).writer(1, ID_N) as writer, monkeypatch.context() as disk:
            writer.apply(batch(0, rows(0)))
            calls = failing_at(number, disk, tmp_path)
            if number == 5:  # there is no such one
                writer.apply(batch(1, rows(1)))
                assert len(calls) == 4
                return
            with pytest.raises(StateLost, match="may not be on the disk"):
                writer.apply(batch(1, rows(1)))


def test_files_whose_names_are_escaped_in_the_log_are_synced(tmp_path, monkeypatch):
    schema = pa.schema([("id", pa.int64()), ("backend", pa.string())])
    store = delta(tmp_path, partition_by="backend")
    with store.writer(1, schema) as writer:
        calls = failing_at(0, monkeypatch, tmp_path)
        writer.apply(batch(0, table(schema, [{"id": 1, "backend": "São Paulo / 50 %"}])))
    assert len(calls) == 4  # rows, commit, two directories
