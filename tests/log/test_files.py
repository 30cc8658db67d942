"""Descriptors that are shared and bounded; the file system that fails and forgets."""

import contextlib
import errno
import os
import threading
from random import Random

import pytest

from headwater.log.disk.files import Files, OpenFiles
from headwater.log.disk.workers import Workers
from headwater.testing.files import FaultyFiles


def test_a_descriptor_in_use_is_never_closed(tmp_path):
    """Also not the newest one, when all others are in use too."""
    files = OpenFiles(Files(), 1)
    with files.use(f"{tmp_path}/a", create=True) as a, files.use(f"{tmp_path}/b", create=True) as b:
        os.write(a, b"a")
        os.write(b, b"b")
        files.forget(f"{tmp_path}/a")
        os.write(a, b"a")
    assert (tmp_path / "a").read_bytes() == b"aa"
    assert (tmp_path / "b").read_bytes() == b"b"
    files.close()
    with pytest.raises(OSError):
        os.fstat(a)


def test_as_many_jobs_as_threads_run_side_by_side():
    workers = Workers("test", 4)
    together = threading.Barrier(4)
    met: list[bool] = []

    def job() -> None:
        together.wait(60)
        met.append(True)

    for _ in range(5):
        for _ in range(4):
            workers.submit(job)
    workers.close()
    assert len(met) == 20


class TestFaultyFiles:
    def write(self, files: FaultyFiles, path: str, data: bytes, *, sync: bool) -> None:
        fd = files.open(path, create=True)
        files.pwrite(fd, data, 0)
        if sync:
            files.fdatasync(fd)
        files.close(fd)

    def test_a_power_cut_keeps_what_was_synced(self, tmp_path):
        survived = set()
        for seed in range(60):
            files, path = FaultyFiles(), f"{tmp_path}/{seed}"
            files.makedirs(path)
            files.sync_directory(str(tmp_path))
            self.write(files, f"{path}/a", b"s" * 2000, sync=True)
            files.sync_directory(path)
            fd = files.open(f"{path}/a")
            files.pwrite(fd, b"u" * 2000, 1000)
            files.close(fd)
            files.power_cut(Random(seed))
            data = Files().read(f"{path}/a")
            assert data[:1000] == b"s" * 1000
            for start in (1024, 1536, 2048):  # a sector is there or not
                assert not set(b"su") <= set(data[start : start + 512])
            survived.add(data)
        assert len(survived) > 10  # nothing, all, and much between
        assert b"s" * 2000 in survived
        assert b"s" * 1000 + b"u" * 2000 in survived

    def test_names_need_their_directory_synced(self, tmp_path):
        outcomes = set()
        for seed in range(60):
            files, path = FaultyFiles(), f"{tmp_path}/{seed}"
            files.makedirs(path)
            files.sync_directory(str(tmp_path))
            self.write(files, f"{path}/old", b"old", sync=True)
            files.sync_directory(path)
            self.write(files, f"{path}/new", b"new", sync=True)
            files.rename(f"{path}/old", f"{path}/moved")
            files.power_cut(Random(seed))
            outcomes.add(tuple(sorted(os.listdir(path))))
        assert outcomes == {("old",), ("new", "old"), ("moved",), ("moved", "new")}

    def test_replacing_a_file_is_atomic(self, tmp_path):
        found = set()
        for seed in range(40):
            files, path = FaultyFiles(), f"{tmp_path}/f"
            files.write_atomically(path, b"before")
            files.die(after=seed % 6)
            with contextlib.suppress(OSError):
                files.write_atomically(path, b"after!")
            files.power_cut(Random(seed))
            found.add(Files().read(path))
        assert found == {b"before", b"after!"}

    def test_a_failed_sync_is_forgotten_by_the_next(self, tmp_path):
        lost = 0
        for seed in range(20):
            files, path = FaultyFiles(seed), f"{tmp_path}/{seed}"
            fd = files.open(path, create=True)
            files.sync_directory(str(tmp_path))
            files.pwrite(fd, b"x" * 5000, 0)
            files.fail_syncs()
            with pytest.raises(OSError) as error:
                files.fdatasync(fd)
            assert error.value.errno == errno.EIO
            files.fdatasync(fd)  # "success"
            assert files.pread(fd, 5000, 0) == b"x" * 5000  # and the page cache looks well
            files.close(fd)
            files.power_cut(Random(seed))
            lost += Files().read(path) != b"x" * 5000
        assert lost > 10

    def test_room(self, tmp_path):
        files = FaultyFiles()
        files.room_bytes = 10
        fd = files.open(f"{tmp_path}/a", create=True)
        with pytest.raises(OSError) as error:
            files.pwrite(fd, b"x" * 15, 0)
        assert error.value.errno == errno.ENOSPC
        assert files.size_bytes(f"{tmp_path}/a") == 10
        files.pwrite(fd, b"y" * 10, 0)  # no growth
        files.truncate(fd, 4)
        assert files.free_bytes(str(tmp_path)) == 6
        files.unlink(f"{tmp_path}/a")
        assert files.room_bytes == 10
        files.close(fd)

    def test_faults_count(self, tmp_path):
        files = FaultyFiles()
        fd = files.open(f"{tmp_path}/a", create=True)
        files.fail_writes(2, after=1, partial_bytes=3)
        files.pwrite(fd, b"0000", 0)
        for _ in range(2):
            with pytest.raises(OSError):
                files.pwrite(fd, b"1111", 0)
        assert files.pread(fd, 9, 0) == b"1110"
        files.fail_reads()
        with pytest.raises(OSError):
            files.read(f"{tmp_path}/a")
        assert files.read(f"{tmp_path}/a") == b"1110"
        files.close(fd)

    def test_the_dead_write_nothing(self, tmp_path):
        files = FaultyFiles()
        fd = files.open(f"{tmp_path}/a", create=True)
        files.die(after=1)
        files.pwrite(fd, b"last", 0)
        for change in (
            lambda: files.pwrite(fd, b"late", 0),
            lambda: files.truncate(fd, 0),
            lambda: files.fdatasync(fd),
            lambda: files.unlink(f"{tmp_path}/a"),
            lambda: files.rename(f"{tmp_path}/a", f"{tmp_path}/b"),
            lambda: files.open(f"{tmp_path}/c", create=True),
            lambda: files.makedirs(f"{tmp_path}/d"),
        ):
            with pytest.raises(OSError):
                change()
        files.close(fd)
        assert os.listdir(tmp_path) == ["a"]
        assert (tmp_path / "a").read_bytes() == b"last"
