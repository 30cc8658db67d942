"""`headwater demo`: whole, with real Spark. The parts of it have their tests in tests/demo."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from tiers import in_full, long

from headwater.demo import project
from headwater.demo.shop import products

from .conftest import COMMAND, environment, read_line, wait_until

START_S = 500.0  # on a machine that does much else
pytestmark = pytest.mark.timeout(1500)


@pytest.fixture
def directory():
    """One that `nobody` can reach, as pytest's own cannot be. Nothing of it runs at the end."""
    path = Path(tempfile.mkdtemp(prefix="headwater-demo-test-"))
    path.chmod(0o711)
    yield path
    left = processes(path)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(path, ignore_errors=True)
    assert not left


def processes(directory):
    """Those that have to do with the directory: by their arguments, environment or place."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            place = os.readlink(entry / "cwd").encode()
        except OSError:
            continue
        if str(directory).encode() in text + place:
            found.append(int(entry.name))
    return found


class Demo:
    """A demo in a pipe, whose lines are read as they come."""

    def __init__(self, directory, *options, program=COMMAND, cwd=None):
        self.directory = directory
        self.process = subprocess.Popen(
            [*program, "demo", "--data-dir", str(directory), *options],
            stdout=subprocess.PIPE,
            bufsize=0,
            env=environment(),
            cwd=cwd,
        )
        self.said = ""

    def until(self, pattern):
        while not re.search(pattern, self.said, re.MULTILINE):
            line = read_line(self.process, START_S)
            assert line, f"it has ended: {self.said}"
            self.said += line

    def children(self):
        status = json.loads((self.directory / ".headwater" / "up.json").read_text())
        return {child["kind"]: child["pid"] for child in status["children"]}

    def ended(self):
        """Its exit code."""
        rest, _ = self.process.communicate(timeout=START_S)
        self.said += rest.decode()
        return self.process.returncode


@pytest.fixture
def small(directory):
    """A shop with one pipeline: Spark has less to do until it is ready."""
    project.make(directory)
    path = directory / project.CONFIG
    text = path.read_text()
    first = text.index("[pipeline.")
    path.write_text(text[:first] + '[pipeline.products]\nfile = "pipelines/products.py"\n')
    return directory


class Pasted:
    """Lines that were printed, in a shell that does not know the program."""

    def __init__(self, lines):
        self._process = subprocess.Popen(
            ["bash", "-e", "-c", "\n".join(lines)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(PATH="/usr/local/bin:/usr/bin:/bin"),
            cwd="/",
        )

    def said(self):
        said, _ = self._process.communicate(timeout=START_S)
        assert self._process.returncode == 0, said.decode()
        return said.decode()


def test_what_it_prints_to_try_can_be_pasted_and_it_ends_verified(directory):
    """Started by a relative path, as `make run` does; one of the lines kills the capture.

    The demo is stopped meanwhile, and what it has started runs on: its seconds of load would not
    be enough for the lines on a busy machine.
    """
    bin_ = Path(sys.executable).parent
    program = [f"./{bin_.name}/headwater"]
    demo = Demo(directory, "--seconds", "15", "--rate", "5", program=program, cwd=bin_.parent)
    demo.until(r"^   kill -9 \d+   # capture shop")
    demo.process.send_signal(signal.SIGSTOP)
    lines = re.findall("^   (.+)$", demo.said, re.MULTILINE)
    verify = lines.index("headwater verify orders")
    verified = Pasted([*lines[:2], lines[verify]])  # takes its time: beside the others
    capture = demo.children()["capture"]
    said = Pasted([*lines[:verify], *lines[verify + 1 :]]).said()
    assert "UPDATE 1" in said
    assert re.search(r"^ +1 \|", said, re.MULTILINE)  # the customer, in the warehouse
    wait_until(lambda: demo.children()["capture"] not in (None, capture))
    assert "orders" in verified.said()  # before the demo goes on, which ends the broker
    demo.process.send_signal(signal.SIGCONT)
    assert demo.ended() == 0, demo.said
    assert "verified: every store is what the log says" in demo.said
    rows = {
        name: int(count.replace(",", ""))
        for name, count in re.findall(r"^  (\S+) +([\d,]+) rows  equal$", demo.said, re.MULTILINE)
    }
    assert set(rows) == {
        "orders/cache/orders", "revenue/warehouse/revenue", "clicks/warehouse/search_clicks",
        "products/search/products", "timeline/cache/timeline", "warehouse/warehouse/customers",
        "warehouse/warehouse/orders", "warehouse/warehouse/items",
    }  # fmt: skip
    assert min(rows.values()) > 0
    assert rows["orders/cache/orders"] == rows["warehouse/warehouse/orders"]
    assert rows["products/search/products"] == len(products())
    assert re.search(r"[\d,]+ changes in \d+ s of load; .* p50 \S+ m?s, p99 \S+ m?s", demo.said)


@pytest.mark.parametrize("step", ["PostgreSQL", *in_full("capture")])
def test_ctrl_c_while_it_starts_leaves_nothing_running(small, step):
    demo = Demo(small)
    demo.until(rf"s  {step}")
    assert processes(small)
    demo.process.send_signal(signal.SIGINT)
    assert demo.ended() == 0
    assert "ended before it was ready" in demo.said
    assert not processes(small)


@long
def test_ctrl_c_on_a_terminal_leaves_nothing_running_and_the_cursor_back(small):
    ours, theirs = pty.openpty()
    settings = environment(TERM="xterm", COLUMNS="120", LINES="50")
    process = subprocess.Popen(
        [*COMMAND, "demo", "--data-dir", str(small)], stdout=theirs, env=settings
    )
    os.close(theirs)
    shown = _read_until(ours, "in step", process)
    process.send_signal(signal.SIGTERM)
    shown += _read_until(ours, "everything has stopped", process)
    os.close(ours)
    assert process.wait(START_S) == 0
    assert "headwater verify" in shown
    assert "products → search/products" in shown
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")
    assert not processes(small)


def _read_until(terminal, text, process):
    shown = ""
    until_s = time.monotonic() + START_S
    while text not in shown:
        assert time.monotonic() < until_s
        try:
            shown += os.read(terminal, 100_000).decode(errors="replace")
        except OSError:
            raise AssertionError(f"it has ended: {process.wait()}\n{shown}") from None
    return shown


@long
def test_killed_itself_it_takes_everything_along(small):
    demo = Demo(small)
    demo.until("^ready after ")
    demo.process.kill()
    demo.process.communicate()
    wait_until(lambda: not processes(small))


@long
@pytest.mark.parametrize("victim", ["pipelines", "broker", "postgres", "up", "all"])
def test_whatever_is_killed_it_ends_verified(directory, victim):
    demo = Demo(directory, "--seconds", "40")
    demo.until("^ready after ")
    demo.until(r"[1-9][\d,]* so far")  # changes, of the load
    status = json.loads((directory / ".headwater" / "up.json").read_text())
    pids = demo.children() | {"up": status["pid"]}
    pids["postgres"] = int((directory / "postgres/data/postmaster.pid").read_text().split()[0])
    for name in pids if victim == "all" else [victim]:
        if name != "up" or victim == "up":
            os.kill(pids[name], signal.SIGKILL)
    assert demo.ended() == 0, demo.said
    assert "verified: every store is what the log says" in demo.said


def test_mistakes_are_reported(offline):
    (offline.cwd / "file").write_text("")
    error = offline.error("demo", "--seconds", 1, "--data-dir", "file", code=2)
    assert error.startswith("error: the demo cannot use its directory\n")
    (offline.cwd / "other").mkdir()
    (offline.cwd / "other" / "headwater.toml").write_text("")
    error = offline.error("demo", "--data-dir", "other", code=2)
    assert "other/headwater.toml is of another project" in error


@pytest.mark.parametrize("option", ["--rate", "--seconds"])
@pytest.mark.parametrize("number", ["0", "-1", "x"])
def test_a_rate_or_time_that_is_none(offline, option, number):
    assert "is no whole number from 1" in offline.error("demo", option, number, code=2)
