"""Progress of commands: a bar on a terminal, lines elsewhere, nothing where nobody asked."""

import io
import sys

import pytest

from headwater.terminal import progress
from headwater.terminal.progress import ProgressBar


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    for name in ("_BAR_AFTER_S", "_BAR_EVERY_S", "_LINE_EVERY_S"):
        monkeypatch.setattr(progress, name, 0.0)
    monkeypatch.delenv("HEADWATER_PROGRESS", raising=False)


def test_lines_elsewhere_have_records_rate_and_share(capsys):
    bar = ProgressBar("to orders", total=200)
    bar.update(10, 50)
    bar.update(30, 150)
    bar.close()
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("to orders: 10 records, ")
    assert first.endswith("/s (25%)")
    assert second.endswith("/s (75%)")


def test_a_line_now_and_then_only(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_LINE_EVERY_S", 1e9)
    bar = ProgressBar("to orders", total=200)
    for number in range(100):
        bar.update(number, number)
    assert capsys.readouterr().err == ""
    quiet = ProgressBar("to orders", quiet=True)
    quiet.update(1)
    assert capsys.readouterr().err == ""


def test_a_bar_on_a_terminal_which_leaves_nothing_behind(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    bar = ProgressBar("to orders", total=200)
    bar.update(10, 50)
    bar.update(20, 100)
    bar.close()
    shown = terminal.getvalue()
    assert "50%" in shown
    assert "20 records" in shown
