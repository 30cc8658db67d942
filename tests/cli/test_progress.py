"""ProgressBar: lines where there is no terminal, a bar where there is one, nothing when quiet."""

import io
import sys
from types import SimpleNamespace

import pytest

from headwater.terminal import progress as module
from headwater.terminal.progress import ProgressBar


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now_s = 100.0

    # Of that module alone: other threads of this process have timeouts of their own.
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: Clock.now_s))
    return Clock


def test_a_line_now_and_then(clock, capsys):
    progress = ProgressBar("to orders", total=1000)
    for records in range(1, 11):
        clock.now_s += 1
        progress.update(records * 100, records * 50)
    progress.close()
    assert capsys.readouterr().err.splitlines() == [
        "to orders: 500 records, 100/s (25%)",
        "to orders: 1,000 records, 100/s (50%)",
    ]


def test_nothing_when_quiet(clock, capsys):
    progress = ProgressBar("to orders", quiet=True)
    clock.now_s += 60
    progress.update(1000)
    progress.close()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("total", [None, 1000])
def test_a_bar_on_a_terminal_that_is_wiped_at_the_end(monkeypatch, total):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    progress = ProgressBar("to orders", total=total)
    progress._next_s = 0.0
    progress.update(1234, 500)
    progress.close()
    assert "1,234 records" in terminal.getvalue()
    assert ("50%" in terminal.getvalue()) == (total is not None)
    assert "\x1b[2K" in terminal.getvalue()
