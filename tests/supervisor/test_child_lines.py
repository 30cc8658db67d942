"""What children write: cut into lines, understood, and written one after the other."""

import json
import os
import threading

import pytest

from headwater.supervisor.lines import MAX_LINE_BYTES, Splitter
from headwater.supervisor.log_mux import MAX_WAITING_BYTES, Merged


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_lines_are_whole_however_they_arrive(size):
    data = "first\nzweite: ü€\r\n\nlast".encode()
    splitter = Splitter()
    lines = []
    for start in range(0, len(data), size):
        lines += splitter.lines(data[start : start + size])
    lines += splitter.last()
    assert [line.text for line in lines] == ["first", "zweite: ü€", "", "last"]
    assert list(splitter.last()) == []


def test_a_line_without_end_is_held_in_pieces():
    splitter = Splitter()
    pieces = []
    for _ in range(100):
        pieces += splitter.lines(b"x" * 5000)
        assert len(splitter._rest) <= MAX_LINE_BYTES
    pieces += splitter.last()
    assert "".join(piece.text for piece in pieces) == "x" * 500_000
    assert all(len(piece.text) <= MAX_LINE_BYTES for piece in pieces)


def line_of(value):
    (line,) = Splitter().lines(
        (value if isinstance(value, str) else json.dumps(value)).encode() + b"\n"
    )
    return line


def test_what_a_line_means():
    log = line_of(
        {"at": 5.5, "level": "warning", "logger": "x", "message": "slow", "traceback": "T"}
    )
    assert (log.text, log.level, log.at) == ("slow\nT", "warning", 5.5)
    error = line_of({"error": "no", "detail": "because", "hint": "do"})
    assert (error.text, error.error["hint"]) == ("no: because", "do")
    assert line_of({"listen": "127.0.0.1:1", "pid": 7}).announced == {
        "listen": "127.0.0.1:1",
        "pid": 7,
    }


@pytest.mark.parametrize(
    "text", ["{", "{}", '{"a": 1}', "[1]", '"x"', "{'pid': 1}", "plain", '{"error"', "\x00\xff"]
)
def test_what_user_code_prints_is_taken_as_it_stands(text):
    line = line_of(text)
    assert (line.text, line.level, line.announced, line.error) == (text, "", None, None)


def read_all(fd):
    data = b""
    while piece := os.read(fd, 1 << 16):
        data += piece
    os.close(fd)
    return data


def test_a_slow_reader_stops_no_child_and_sees_how_much_was_left_out():
    reader, writer = os.pipe()
    merged = Merged(writer, is_terminal=False, on_gone=pytest.fail)
    count = 4 * MAX_WAITING_BYTES // 1000
    for number in range(count):
        merged.write(f"{number} ".ljust(999, "."))
    assert merged._waiting_bytes <= MAX_WAITING_BYTES
    found = []
    thread = threading.Thread(target=lambda: found.append(read_all(reader)))
    thread.start()
    merged.close(timeout_s=60)
    os.close(writer)
    thread.join()
    lines = found[0].decode().splitlines()
    left_out = sum(int(line.split()[1]) for line in lines if line.startswith("…"))
    whole = [int(line.split()[0]) for line in lines if not line.startswith("…")]
    assert whole == sorted(whole)
    assert left_out > 0
    assert len(whole) + left_out == count


def test_a_reader_that_has_closed_is_noticed_once():
    reader, writer = os.pipe()
    os.close(reader)
    gone = threading.Event()
    merged = Merged(writer, is_terminal=False, on_gone=gone.set)
    merged.write("anybody?")
    assert gone.wait(60)
    merged.write("nobody")
    assert merged._waiting_bytes == 0
    merged.close()
    os.close(writer)


def test_the_changing_line_stays_below_the_others():
    reader, writer = os.pipe()
    merged = Merged(writer, is_terminal=True, on_gone=pytest.fail)
    merged.status("starting")
    assert os.read(reader, 100) == b"starting"
    merged.write("a line")
    assert os.read(reader, 100) == b"\r\x1b[Ka line\nstarting"
    merged.close()
    assert os.read(reader, 100) == b"\r\x1b[K"
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(
    "printed",
    [
        {"message": 5, "level": "info"},
        {"message": "m", "level": None},
        {"message": "m", "level": "info", "traceback": ["T"]},
        {"error": 5},
        {"error": {"code": 5}, "detail": "x"},
        {"error": "no", "detail": {"why": 1}},
        {"pid": "x"},
        '{"a":' * 3000,
        "{" + "[" * 10_000,
    ],
)
def test_what_user_code_prints_is_text(printed):
    splitter = Splitter()
    text = printed if isinstance(printed, str) else json.dumps(printed)
    first, second = splitter.lines(text.encode() + b"\nafter\n")
    assert (first.text, first.level, first.error, first.announced) == (text, "", None, None)
    assert second.text == "after"
