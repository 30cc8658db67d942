"""Records as text."""

import pytest
from support.cli.messages import FakeMessage

from headwater.cli.record_format import formatter, terminal_formatter, value_lines
from headwater.errors import UsageError
from headwater.protocol.erased_records import ERASED_HEADER

MESSAGE = FakeMessage(
    topic="orders",
    partition=3,
    offset=42,
    key=b"k",
    value=b"v\xff",
    headers=[("a", b"1"), ("b", None)],
    timestamp_ms=1_794_736_800_007,
)


@pytest.mark.parametrize(
    ("template", "written"),
    [
        (r"%t/%p@%o", b"orders/3@42"),
        (r"%k=%v\n", b"k=v\xff\n"),
        (r"%h", b"a=1,b="),
        (r"%T %d", b"1794736800007 2026-11-15T10:00:00.007Z"),
        (r"100%% \t\r\0\\ \x41", b"100% \t\r\0\\ A"),
        ("plain ä", "plain ä".encode()),
        ("", b""),
    ],
)
def test_formats(template, written):
    assert formatter(template)(MESSAGE) == written


@pytest.mark.parametrize("template", ["%q", "%", "\\", "\\q", "\\x4"])
def test_what_is_no_format(template):
    with pytest.raises(UsageError, match="unknown in a format"):
        formatter(template)


@pytest.mark.parametrize(
    ("binary", "shown"), [("hex", b"76ff"), ("base64", b"dv8="), ("raw", b"v\xff")]
)
def test_what_is_not_utf8_can_be_shown_otherwise(binary, shown):
    assert formatter("%v", binary)(MESSAGE) == shown
    assert formatter("%k", binary)(MESSAGE) == b"k"


def test_a_null_is_nothing():
    nothing = FakeMessage(key=None, value=None)
    assert formatter("%k|%v")(nothing) == b"|"
    assert value_lines([nothing, FakeMessage(value=b"x")]) == b"\nx\n"


def test_a_terminal_shows_where_and_what():
    line = terminal_formatter("hex", with_topic=True, colour=False)(MESSAGE)
    assert line.startswith(b"orders:3@42 ")
    assert line.endswith(b"  k  76ff  {a=1,b=}\n")
    assert b"\x1b" not in line
    assert b"\x1b[" in terminal_formatter("hex", with_topic=False, colour=True)(MESSAGE)


def test_a_terminal_distinguishes_null_from_empty():
    render = terminal_formatter("hex", with_topic=False, colour=False)
    assert b"(null)" in render(FakeMessage(value=None))
    assert b"(null)" not in render(FakeMessage(value=b""))


def test_a_terminal_says_that_a_record_was_erased():
    render = terminal_formatter("hex", with_topic=False, colour=False)
    headers = [(ERASED_HEADER, None)]
    assert render(FakeMessage(key=None, value=None, headers=headers)).endswith(b"  (erased)\n")
    assert b"(erased)" not in render(FakeMessage(key=None, value=b"v", headers=headers))


def test_escapes_in_records_do_not_reach_a_terminal():
    hostile = FakeMessage(
        key=b"\x1b[2J", value="\x9b31m\r\ttext\n".encode(), headers=[("\x1b]0;x\x07", b"\x07")]
    )
    line = terminal_formatter(None, with_topic=False, colour=False)(hostile)
    assert rb"\x1b[2J" in line
    assert rb"\x9b31m\r" + b"\ttext\n" in line
    assert not set(line) & {0x1B, 0x07, 0x0D}
    assert formatter("%k %v", terminal=True)(hostile) == rb"\x1b[2J \x9b31m\r" + b"\ttext\n"
    assert formatter(r"\x1b[1m%k", terminal=True)(hostile) == b"\x1b[1m" + rb"\x1b[2J"
    # Who asks for raw, or reads by a pipe, gets what was written.
    assert formatter("%k", "raw", terminal=True)(hostile) == b"\x1b[2J"
    assert formatter("%k")(hostile) == b"\x1b[2J"
