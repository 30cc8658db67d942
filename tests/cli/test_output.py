"""Text for people."""

import io
import json
import re

import pytest

from headwater.terminal import output


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (None, "?")],
)
def test_sizes(size_bytes, shown):
    assert output.size(size_bytes) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0015, "1.5 ms"), (42, "42 s"), (125, "2 min"), (7500, "2 h 5 min"), (90_000, "1 day 1 h")],
)
def test_durations(seconds, shown):
    assert output.duration(seconds) == shown


def test_tables_align_numbers_to_the_right():
    assert output.table(("name", ">lag"), [("a", 1), ("long name", 1000)]) == (
        "NAME        LAG\na             1\nlong name  1000"
    )


def test_a_shell_that_does_not_find_the_program_gets_its_path(monkeypatch, tmp_path):
    program = tmp_path / "headwater"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.argv", [str(program), "broker"])
    monkeypatch.setenv("PATH", "/usr/bin")
    assert output.path_to_type() == [f'export PATH={tmp_path}:"$PATH"']
    monkeypatch.setenv("PATH", f"/usr/bin:{tmp_path}")
    assert output.path_to_type() == []


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x1b[8mhidden\x9b31m\x7f\r\u202etxt"
RAW = ("\x1b", "\x07", "\x9b", "\x7f", "\r", "\u202e")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


STREAMS = pytest.mark.parametrize("stream", [io.StringIO, Terminal])


def replaced_stdout(monkeypatch, stream: io.StringIO) -> io.StringIO:
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return stream


def without_styles(text: str) -> str:
    return re.sub("\x1b\\[[0-9;]*m", "", text)


@STREAMS
def test_what_others_chose_gives_a_terminal_nothing_to_act_upon(monkeypatch, stream):
    stdout = replaced_stdout(monkeypatch, stream())
    output.say(f"member {HOSTILE}")
    output.note(HOSTILE)
    output.say(output.styled(HOSTILE, "bold red"))
    output.say(output.table(("client", ">lag"), [(HOSTILE, 1)]))
    output.print_json({"client": HOSTILE})
    shown = without_styles(stdout.getvalue())
    assert not any(raw in shown for raw in RAW)
    assert shown.count(r"\x1b]0;owned\x07\x1b[2J\x1b[8mhidden\x9b31m\x7f\r") == 4


@STREAMS
def test_json_says_the_same(monkeypatch, stream):
    stdout = replaced_stdout(monkeypatch, stream())
    output.print_json({"client": HOSTILE})
    assert json.loads(stdout.getvalue()) == {"client": HOSTILE}


def test_styles_of_our_own_stay(monkeypatch):
    stdout = replaced_stdout(monkeypatch, Terminal())
    output.say(output.styled("ready", "bold green") + " now")
    assert stdout.getvalue() == "\x1b[1;32mready\x1b[0m now\n"
