"""Files that grow, are rotated and truncated, while a follower runs and while none does."""

import os
import random
import shutil
import threading
import time
from pathlib import Path

import pytest
from tiers import seeds

from headwater.direct.files import following
from headwater.direct.files.following import FollowedFile
from headwater.direct.files.position import FilePosition, decode, encode

TIMEOUT_S = 60.0


class Follower:
    """A follower that can be replaced by another one at the last position, as after a kill."""

    def __init__(self, path: Path, *, max_line_bytes: int = 1000, final_after_s: float = 0.05):
        self.path = path
        self.position: FilePosition | None = None
        self.reports: list[str] = []
        self.read: list[bytes] = []
        self.too_long: list[tuple[bytes, int]] = []
        self._options = {"max_line_bytes": max_line_bytes, "final_after_s": final_after_s}
        self.start()

    def start(self) -> None:
        self._file = FollowedFile(
            self.path, self.position, report=self.reports.append, **self._options
        )

    def restart(self) -> None:
        self._file.close()
        if self.position is not None:
            self.position = decode(encode(self.position, str(self.path), 0))
        self.start()

    def step(self) -> bool:
        found = self._file.read()
        if found is None:
            return False
        self.read += [line.data for line in found.lines if not line.is_too_long]
        self.too_long += [(line.data, line.size_bytes) for line in found.lines if line.is_too_long]
        self.position = found.end
        return True

    def settle(self) -> None:
        """Reads until nothing comes."""
        while self.step():
            pass

    def await_lines(self, lines: list[bytes]) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while self.read != lines:
            assert self.read == lines[: len(self.read)], self.read
            assert time.monotonic() < deadline_s, (self.read, self.reports)
            if not self.step():
                time.sleep(0.005)

    def close(self) -> None:
        self._file.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "app.log"


@pytest.fixture
def follower(path):
    follower = Follower(path)
    yield follower
    follower.close()


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_lines_as_they_come(path, follower):
    assert not follower.step()  # there is no file yet
    append(path, b"a\nb")
    follower.settle()
    assert follower.read == [b"a"]
    append(path, b"c\n\n\xff\xfe\r\n")
    follower.settle()
    assert follower.read == [b"a", b"bc", b"", b"\xff\xfe\r"]
    assert follower.position.offset == path.stat().st_size


def test_lines_longer_than_a_chunk_and_longer_than_allowed(path, monkeypatch):
    monkeypatch.setattr(following, "CHUNK_BYTES", 64)
    append(path, b"a" * 200 + b"\n" + b"b" * 63 + b"\n" + b"c" * 5000 + b"\nd\n" + b"e" * 500)
    follower = Follower(path, max_line_bytes=300)
    follower.settle()
    append(path, b"\nf\n")
    follower.settle()
    assert follower.read == [b"a" * 200, b"b" * 63, b"d", b"f"]
    assert follower.too_long == [(b"c" * 4096, 5000), (b"e" * 500, 500)]
    follower.close()


def test_renamed_and_created(path, follower):
    append(path, b"1\n2\n")
    follower.settle()
    old = path.open("ab", buffering=0)
    old.write(b"3\n")
    path.rename(path.with_name("app.log.1"))
    append(path, b"5\n")
    old.write(b"4\n")  # before it opens the new one
    follower.await_lines([b"1", b"2", b"3", b"4", b"5"])
    old.close()
    assert not follower.reports


def test_the_last_line_of_a_rotated_file_needs_no_newline(path, follower):
    append(path, b"1\npart")
    follower.settle()
    path.rename(path.with_name("app.log.1"))
    append(path, b"2\n")
    follower.await_lines([b"1", b"part", b"2"])


def test_what_is_written_to_a_rotated_file_too_late_is_reported(path, follower):
    append(path, b"1\n")
    follower.settle()
    with path.open("ab", buffering=0) as old:
        path.rename(path.with_name("app.log.1"))
        append(path, b"2\n")
        follower.await_lines([b"1", b"2"])
        old.write(b"late\n")
    follower.settle()
    assert len(follower.reports) == 1
    assert "5 bytes were written to a rotated file" in follower.reports[0]


@pytest.mark.parametrize(
    "names",
    [
        ("app.log.1", "app.log.2"),
        ("app.log-20260102", "app.log-20260101"),
        ("app-2026-01-02.log", "app-2026-01-01.log"),
    ],
)
def test_rotated_twice_while_no_follower_runs(path, follower, names):
    append(path, b"1\n")
    follower.settle()
    append(path, b"2\n")
    newer, older = (path.with_name(name) for name in names)
    path.rename(older)
    append(path, b"3\n")
    path.rename(newer)
    append(path, b"4\n")
    follower.restart()
    follower.await_lines([b"1", b"2", b"3", b"4"])
    assert not follower.reports


def test_copied_and_truncated_while_it_runs_and_while_it_does_not(path, follower):
    append(path, b"1\n")
    follower.settle()
    append(path, b"2\n")
    shutil.copy(path, path.with_name("app.log.1"))
    os.truncate(path, 0)
    append(path, b"3 is longer than what was there\n")
    follower.await_lines([b"1", b"2", b"3 is longer than what was there"])
    append(path, b"4\n")
    path.with_name("app.log.1").rename(path.with_name("app.log.2"))
    shutil.copy(path, path.with_name("app.log.1"))
    os.truncate(path, 0)
    append(path, b"5\n")
    follower.restart()
    follower.await_lines([b"1", b"2", b"3 is longer than what was there", b"4", b"5"])
    assert not follower.reports


def test_truncated_without_a_copy_is_reported(path, follower):
    append(path, b"1\nhalf a li")
    follower.settle()
    os.truncate(path, 0)
    append(path, b"2\n")
    follower.await_lines([b"1", b"2"])
    assert "truncated" in follower.reports[0]
    assert "at least 9 bytes were not read" in follower.reports[0]


def test_a_file_that_is_gone_at_the_start_is_reported(path, follower):
    append(path, b"1\n")
    follower.settle()
    append(path, b"2\n")
    path.unlink()
    append(path, b"3\n")
    follower.restart()
    follower.await_lines([b"1", b"3"])
    assert "no longer there" in follower.reports[0]


def test_saved_again_with_another_inode_it_is_still_the_same_file(path, follower):
    append(path, b"1\n")
    follower.settle()
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    copy.replace(path)
    append(path, b"2\n")
    follower.restart()
    follower.await_lines([b"1", b"2"])


def test_stored_positions_of_others_are_refused():
    for stored in (b"", b"{}", b"[]", b"null", b'{"device":1,"inode":"x","offset":0}', b"\xff"):
        with pytest.raises(ValueError):
            decode(stored)


@pytest.mark.parametrize("seed", seeds(60))
def test_any_order_of_writes_rotations_and_restarts(tmp_path, seed):
    """Copies are made while nobody writes, so nothing is lost: each line once, in order."""
    chance = random.Random(seed)
    path = tmp_path / "app.log"
    follower = Follower(path, final_after_s=0.0)
    append(path, b"first\n")
    written = [b"first"]
    follower.settle()
    for step in range(60):
        what = chance.choice(["write"] * 5 + ["read"] * 4 + ["restart", "rename", "copy"])
        if what == "write":
            lines = [b"%d-%d-%s" % (step, n, b"x" * chance.randrange(40)) for n in range(3)]
            append(path, b"".join(line + b"\n" for line in lines))
            written += lines
        elif what == "read":
            follower.step()
        elif what == "restart":
            follower.restart()
        elif path.stat().st_size:
            for number in range(9, 0, -1):
                if (old := tmp_path / f"app.log.{number}").exists():
                    old.rename(tmp_path / f"app.log.{number + 1}")
            if what == "rename":
                path.rename(tmp_path / "app.log.1")
                path.touch()
            else:
                shutil.copy(path, tmp_path / "app.log.1")
                os.truncate(path, 0)
        time.sleep(0.002)  # file systems stamp changes by the tick
    follower.await_lines(written)
    follower.close()
    assert not follower.reports


def test_a_file_that_becomes_final_during_a_read_is_read_once_more(path, monkeypatch):
    """The time passes between the look at the last line and the step to the next file."""
    follower = Follower(path, final_after_s=10.0)
    append(path, b"1\npart")
    follower.settle()
    path.rename(path.with_name("app.log.1"))
    append(path, b"2\n")
    answers = iter([False, True, True, True])
    monkeypatch.setattr(FollowedFile, "_is_final", lambda self: next(answers))
    for _ in range(4):
        follower.step()
    assert follower.read == [b"1", b"part", b"2"]
    follower.close()


def test_files_are_found_while_their_names_change(path, follower):
    """A rotation of many files takes its time, and none of them has its name for long."""
    append(path, b"first\n")
    follower.settle()
    is_done = threading.Event()
    rotations = 0

    def rotate():
        nonlocal rotations
        while not is_done.is_set():
            rotations += 1
            for number in range(rotations, 0, -1):
                if (old := path.with_name(f"app.log.{number}")).exists():
                    old.rename(path.with_name(f"app.log.{number + 1}"))
            path.rename(path.with_name("app.log.1"))
            append(path, b"%d\n" % rotations)
            time.sleep(0.01)

    rotating = threading.Thread(target=rotate)
    rotating.start()
    try:
        while rotations < 40 and rotating.is_alive():
            follower.restart()
            follower.step()
    finally:
        is_done.set()
        rotating.join()
    follower.await_lines([b"first", *(b"%d" % number for number in range(1, rotations + 1))])
    assert not follower.reports
