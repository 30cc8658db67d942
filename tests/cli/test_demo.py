"""`headwater demo`."""

import itertools
import os
import pty
import re
import signal
import subprocess

import pytest

from headwater.cli.orders import orders

from .conftest import COMMAND, read_line, wait_until


def alive(pid):
    """Whether it runs; one that has ended but is not yet waited for does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_orders_are_the_same_in_every_run():
    first, second = (list(itertools.islice(orders(), 100)) for _ in range(2))
    assert first == second
    assert [order["order_id"] for order in first] == list(range(1001, 1101))
    for order in first:
        assert order["total_cents"] == sum(
            item["quantity"] * item["price_cents"] for item in order["items"]
        )


def test_it_ends_by_itself_with_a_summary(offline):
    summary = offline.json("demo", "--seconds", 1, "--rate", 100)
    assert 50 <= summary["records"] <= 110
    assert 0 < summary["p50_ms"] <= summary["p99_ms"]


def test_lines_for_a_pipe(offline):
    shown = offline("demo", "--seconds", 1, "--rate", 50)
    assert re.search(r"^ready at 127\.0\.0\.1:\d+ after \d\.\d\d s$", shown, re.MULTILINE)
    assert re.search(r"^  headwater consume orders -b \S+ -o start$", shown, re.MULTILINE)
    assert re.search(r"^ *\d@0  order 1001  ", shown, re.MULTILINE)
    assert re.search(r"^\d+ orders worth [\d,.]+ € in 1\.\d s", shown, re.MULTILINE)
    assert shown.endswith("data is removed (--data-dir DIR keeps it)\n")


def test_a_live_view_for_a_terminal(offline):
    ours, theirs = pty.openpty()
    command = [*COMMAND, "demo", "--seconds", "1", "--rate", "50"]
    settings = offline.environment | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    process = subprocess.Popen(command, stdout=theirs, env=settings, cwd=offline.cwd)
    os.close(theirs)
    shown = b""
    while b"data is removed" not in shown:
        shown += os.read(ours, 10_000)
    os.close(ours)
    assert process.wait(30) == 0
    text = shown.decode()
    assert "partition@offset" in text
    assert "by country:" in text
    assert "headwater topic describe orders -b 127.0.0.1:" in text
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")  # the cursor is back


def test_data_is_kept_where_it_is_asked_for_and_the_stream_goes_on(offline):
    kept = offline.cwd / "kept"
    shown = offline("demo", "--seconds", 2, "--data-dir", kept)
    assert f"the data is in {kept}" in shown
    assert any(kept.iterdir())
    again = offline.json("demo", "--seconds", 2, "--data-dir", kept)
    assert 0 < again["records"] < 60


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_nothing_running(offline, number):
    process = offline.start("demo")
    directory = re.search(r"data in (\S+) …", read_line(process))[1]
    while "order 1003" not in read_line(process):
        pass
    (broker,) = children(process.pid)
    process.send_signal(number)
    rest = process.stdout.read().decode()
    assert process.wait(30) == 0
    assert "the broker has stopped and its data is removed" in rest
    assert not alive(broker)
    assert not os.path.exists(directory)


def test_the_broker_does_not_outlive_a_killed_demo(offline):
    process = offline.start("demo", "--data-dir", offline.cwd / "data")
    while "order 1001" not in read_line(process):
        pass
    (broker,) = children(process.pid)
    process.kill()
    process.wait()
    wait_until(lambda: not alive(broker))


def test_a_broker_that_cannot_start_is_explained(offline):
    (offline.cwd / "file").write_text("")
    error = offline.error("demo", "--seconds", 1, "--data-dir", "file", code=3)
    assert error.startswith(
        "error: the broker did not start\n  the broker cannot use its data directory: "
    )
    assert "hint: --data-dir takes another one" in error
    error = offline.error("demo", "--seconds", 1, "--listen", "nowhere", code=2)
    assert "  the configuration is wrong: flag --listen: broker.listen = 'nowhere'" in error


@pytest.mark.parametrize("option", ["--rate", "--seconds"])
@pytest.mark.parametrize("number", ["0", "-1", "x"])
def test_a_rate_or_time_that_is_none(offline, option, number):
    assert "is no whole number from 1" in offline.error("demo", option, number, code=2)


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(child) for child in file.read().split()]
