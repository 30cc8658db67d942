"""`headwater produce -f FILE [--follow]`: files, pipes, mistakes; each line once through kills."""

import json
import os
import random
import shutil
import signal
import threading
import time

import pytest
from support.direct.topic_reading import Reading
from tiers import kills

from .conftest import TIMEOUT_S, read_line


@pytest.fixture
def written(bootstrap, topic):
    """The committed records of the topic."""
    reading = Reading(bootstrap, topic)
    yield reading
    reading.close()


def await_values(written, expected):
    expected = [value.encode() if isinstance(value, str) else value for value in expected]
    assert written.await_count(len(expected)).values == expected


def start_following(cli, topic, *args):
    process = cli.start("produce", topic, "--follow", "--rotation-wait", "200ms", *args)
    said = read_line(process.stderr)
    if said.startswith("waiting for"):  # it is being rotated
        said = read_line(process.stderr)
    assert "Ctrl-C ends" in said
    return process


def stop(process):
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_S) == 0
    return process.stderr.read().decode()


def test_a_file_to_its_end(cli, topic, written, tmp_path):
    (tmp_path / "lines").write_bytes(b"a\n\xff\nlast")
    result = cli.result("produce", topic, "-f", "lines")
    assert result.stderr.decode() == f"3 records written to {topic}\n"
    await_values(written, ["a", b"\xff", "last"])


def test_a_line_of_stdin_that_is_too_long(cli, topic, written):
    error = cli.error("produce", topic, "--max-line", "1kB", stdin="a\n" + "x" * 2000 + "\nb\n")
    assert "line 2 could not be written" in error
    assert "the line is longer than 1000 B" in error
    await_values(written, ["a"])


def test_followed_through_rotation_and_restart(cli, topic, written, tmp_path):
    path = tmp_path / "app.log"
    path.write_text("1\n2\nunfin")
    process = start_following(cli, topic, "-f", path)
    await_values(written, ["1", "2"])
    with path.open("a") as file:
        file.write("ished\n")
    await_values(written, ["1", "2", "unfinished"])
    assert stop(process).endswith(f"3 records written to {topic}\n")
    with path.open("a") as file:
        file.write("3\n")
    path.rename(tmp_path / "app.log.1")
    path.write_text("4\n")
    process = start_following(cli, topic, "-f", path)
    await_values(written, ["1", "2", "unfinished", "3", "4"])
    shutil.copy(path, tmp_path / "app.log.2")
    os.truncate(path, 0)
    path.write_text("5 after truncation\n")
    await_values(written, ["1", "2", "unfinished", "3", "4", "5 after truncation"])
    stop(process)


def test_options_of_records_hold_for_a_followed_file(cli, topic, written, tmp_path):
    path = tmp_path / "lines"
    path.write_text("a:1\na:\n")
    process = start_following(
        cli, topic, "-f", path, "-k", ":", "--tombstone", "-H", "from=here", "-z", "gzip"
    )
    records = written.await_count(2).records
    stop(process)
    assert [(record.key(), record.value()) for record in records] == [(b"a", b"1"), (b"a", None)]
    assert records[0].headers() == [("from", b"here")]


def test_a_bad_line_ends_it_or_becomes_a_dead_letter(cli, topic, written, tmp_path):
    path = tmp_path / "lines"
    path.write_text("a:1\nbad\n" + "x" * 300 + ":\nb:2\n")
    options = ("-f", path, "-k", ":", "--max-line", "200")
    error = cli.error("produce", topic, "--follow", *options)
    assert f"error: the line at byte 4 of {path} could not be written to {topic}\n" in error
    assert "no key separator ':' in it\n  1 record written; the next run begins with" in error
    await_values(written, ["1"])
    process = start_following(cli, topic, *options, "--dead-letters")
    await_values(written, ["1", "2"])
    assert "1 record written" in (said := stop(process))
    assert "2 dead letters" in said
    lines = cli("consume", f"{topic}.dlq", "-o", "start", "-e", "--json").splitlines()
    dead = [json.loads(line) for line in lines]
    assert [letter["value"] for letter in dead] == ["bad", "x" * 300 + ":"]
    headers = dict(dead[1]["headers"])
    assert headers["headwater.dlq.offset"] == "8"
    assert headers["headwater.dlq.bytes"] == "301"


def test_a_pipe_is_followed_from_one_writer_to_the_next(cli, topic, written, tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    process = cli.start("produce", topic, "-f", path, "--follow")
    for number in (1, 2):
        with path.open("w") as pipe:
            pipe.write(f"{number}\n")
        written.await_count(number)
    await_values(written, ["1", "2"])
    assert stop(process).endswith(f"2 records written to {topic}\n")


def test_a_file_that_comes_later(cli, topic, written, tmp_path):
    process = cli.start("produce", topic, "-f", tmp_path / "later", "--follow")
    assert read_line(process.stderr) == f"waiting for {tmp_path / 'later'}\n"
    (tmp_path / "later").write_text("here\n")
    await_values(written, ["here"])
    stop(process)


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("-f", "none"), 1, "none cannot be read\n  no such file or directory"),
        (("-f", "/"), 1, "/ cannot be read\n  it is a directory"),
        (("--name", "x"), 2, "--name and --dead-letters need --follow"),
        (("-f", "file", "--follow", "--echo"), 2, "--echo and --follow of a file exclude"),
        (("-f", "file", "--follow", "--acks", "1"), 2, "--acks and --follow of a file exclude"),
        (("-f", "file", "--follow", "-X", "a=b"), 2, "-X and --follow of a file exclude"),
        (("--max-line", "0"), 2, "'0' is not a size above 0"),
    ],
)
def test_mistakes(cli, tmp_path, args, code, said):
    (tmp_path / "file").touch()
    assert said in cli.error("produce", "some-topic", *args, code=code)


def test_a_second_follower_of_the_same_name_ends_the_first(cli, topic, written, tmp_path):
    path = tmp_path / "lines"
    path.write_text("1\n")
    first = start_following(cli, topic, "-f", path)
    await_values(written, ["1"])
    second = start_following(cli, topic, "-f", path)
    with path.open("a") as file:
        file.write("2\n")
    assert first.wait(TIMEOUT_S) == 1
    await_values(written, ["1", "2"])
    stop(second)


def test_each_line_once_through_kills_and_rotations(cli, topic, written, tmp_path):
    """Lines are written and files are rotated all the time, by one writer."""
    path, lines_of_file, is_done = tmp_path / "app.log", ["first"], threading.Event()
    chance = random.Random(7)
    # Without a position it would begin with the file that has the path, whatever was before.
    path.write_text("first\n")
    process = start_following(cli, topic, "-f", path, "--name", topic)
    await_values(written, lines_of_file)
    stop(process)

    def write():
        while not is_done.is_set():
            lines = [f"{len(lines_of_file) + n}-{'x' * chance.randrange(100)}" for n in range(50)]
            with path.open("a") as file:
                file.write("".join(f"{line}\n" for line in lines))
            lines_of_file.extend(lines)
            if chance.random() < 0.005:
                for number in range(200, 0, -1):
                    if (old := tmp_path / f"app.log.{number}").exists():
                        old.rename(tmp_path / f"app.log.{number + 1}")
                if chance.random() < 0.5:
                    path.rename(tmp_path / "app.log.1")
                else:
                    shutil.copy(path, tmp_path / "app.log.1")
                    os.truncate(path, 0)
            time.sleep(0.01)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(kills(quick=2, full=25)):
            process = start_following(cli, topic, "-f", path, "--name", topic)
            time.sleep(chance.random() * 1.5)  # the moment of the kill is the point
            process.kill()
            process.wait()
            assert process.stderr.read() == b""
    finally:
        is_done.set()
        writer.join()
    process = start_following(cli, topic, "-f", path, "--name", topic)
    await_values(written, lines_of_file)
    assert "warning" not in stop(process)
