"""`headwater produce`: every form of input, failures, Ctrl-C."""

import json
import signal

from .conftest import read_line, wait_until


def records(cli, topic):
    lines = cli("consume", topic, "-o", "start", "-e", "--json").splitlines()
    return [json.loads(line) for line in lines]


def keys_and_values(cli, topic):
    return [(record["key"], record["value"]) for record in records(cli, topic)]


def end_offset(cli, topic):
    (described,) = cli.json("topic", "describe", topic)
    return described["partitions"][0]["end_offset"]


def test_by_line(cli, topic):
    result = cli.result("produce", topic, stdin="a\n\nlast without newline")
    assert result.stdout == b""
    assert result.stderr.decode() == f"3 records written to {topic}\n"
    assert keys_and_values(cli, topic) == [
        (None, "a"),
        (None, ""),
        (None, "last without newline"),
    ]


def test_nothing_at_all(cli, topic):
    assert cli.result("produce", topic).stderr.decode() == f"0 records written to {topic}\n"


def test_quiet_says_nothing(cli, topic):
    assert cli.result("produce", topic, "-q", stdin="a\n").stderr == b""


def test_by_key(cli, topic):
    cli("produce", topic, "-k", ":", stdin="a:1\nb:x:y\n:z\n")
    cli("produce", topic, "-k", "\\t", stdin="t\t2\n")
    assert keys_and_values(cli, topic) == [("a", "1"), ("b", "x:y"), ("", "z"), ("t", "2")]


def test_a_line_without_key_fails_and_what_came_before_it_is_written(cli, topic):
    error = cli.error("produce", topic, "-k", ":", stdin="a:1\nb\nc:3\n")
    assert error == (
        f"error: line 2 could not be written to {topic}\n"
        "  no key separator ':' in it\n"
        "  1 acknowledged, 1 failed, the rest of the input was not read\n"
        "hint: without -k a line is a value\n"
    )
    assert keys_and_values(cli, topic) == [("a", "1")]


def test_tombstones(cli, topic):
    cli("produce", topic, "-k", ":", "--tombstone", stdin="a:1\na:\n")
    assert keys_and_values(cli, topic) == [("a", "1"), ("a", None)]


def test_headers_of_every_record(cli, topic):
    cli("produce", topic, "-H", "source=shop", "-H", "v=1=2", stdin="a\n")
    assert records(cli, topic)[0]["headers"] == [["source", "shop"], ["v", "1=2"]]


def test_json(cli, topic):
    line = {
        "key": {"base64": "/w=="},
        "value": "v",
        "headers": {"a": "b"},
        "partition": 0,
        "timestamp": 1_700_000_000_000,
    }
    echoed = cli("produce", topic, "--json", "--echo", stdin=json.dumps(line) + "\n")
    assert json.loads(echoed) == {"line": 1, "partition": 0, "offset": 0}
    (record,) = records(cli, topic)
    assert record == line | {"topic": topic, "offset": 0, "headers": [["a", "b"]]}


def test_a_json_line_that_is_none_is_named(cli, topic):
    error = json.loads(cli.error("produce", topic, "--json", stdin='{"value":"a"}\n{"valu":"b"}\n'))
    assert error["error"] == f"line 2 could not be written to {topic}"
    assert error["detail"].startswith("unknown field 'valu'\n1 acknowledged")
    assert error["hint"] == "did you mean 'value'?"


def test_a_copy_through_a_pipe_is_the_same(cli, topic):
    lines = (
        '{"key":"a","value":{"base64":"/w=="},"headers":[["h",null],["h","2"]],"timestamp":5}\n'
        '{"key":null,"value":null,"headers":[],"timestamp":6}\n'
    )
    cli("produce", topic, "--json", stdin=lines)
    copy = f"{topic}-copy"
    cli("topic", "create", copy)
    cli("produce", copy, "--json", stdin=cli("consume", topic, "-o", "start", "-e", "--json"))
    assert [record | {"topic": topic} for record in records(cli, copy)] == records(cli, topic)


def test_partition_and_compression(cli, topic):
    cli("topic", "alter", topic, "-p", 3)
    for compression in ("gzip", "snappy", "lz4", "zstd"):
        echoed = cli("produce", topic, "-p", 2, "-z", compression, "--echo", stdin="x" * 1000)
        assert echoed.startswith("partition 2 offset ")
    read = cli("consume", topic, "-p", 2, "-o", "start", "-e")
    assert read == ("x" * 1000 + "\n") * 4


def test_acks(cli, topic):
    for acks in ("0", "1", "all"):
        cli("produce", topic, "--acks", acks, stdin=f"{acks}\n")
    wait_until(lambda: end_offset(cli, topic) == 3)


def test_a_partition_that_does_not_exist(cli, topic):
    error = cli.error("produce", topic, "-p", 9, stdin="a\n")
    assert f"line 1 could not be written to {topic}" in error
    assert "0 acknowledged, 1 failed" in error
    assert "hint: `headwater topic describe TOPIC` lists the partitions" in error
    for number in (-5, "x"):
        error = cli.error("produce", topic, "-p", number, stdin="a\n", code=2)
        assert "is no whole number from 0" in error


def test_a_record_the_broker_refuses(cli, topic):
    cli("topic", "alter", topic, "-c", "max.message.bytes=1000")
    small = cli.result("produce", topic, "-X", "batch.num.messages=1", stdin="a\n" * 3)
    assert b"3 records written" in small.stderr
    big = "a\n" + "x" * 5000 + "\n"
    error = cli.error("produce", topic, "-X", "batch.num.messages=1", stdin=big)
    assert f"line 2 could not be written to {topic}" in error
    assert "MSG_SIZE_TOO_LARGE" in error
    assert "max.message.bytes" in error
    assert "1 acknowledged, 1 failed" in error
    assert end_offset(cli, topic) == 4


def test_a_line_longer_than_a_chunk(cli, topic):
    line = "".join(f"{number:08}" for number in range(90_000))  # 720,000 bytes
    cli("produce", topic, stdin=f"{line}\nnext\n{line}")
    assert cli("consume", topic, "-o", "start", "-e") == f"{line}\nnext\n{line}\n"


def test_a_line_that_no_broker_takes(cli, topic):
    error = cli.error("produce", topic, stdin=b"a\n" + b"x" * (101 << 20))
    assert f"line 2 could not be written to {topic}\n  the line is longer than 100 MiB" in error
    assert "1 acknowledged" in error


def test_many_lines_in_order(cli, topic):
    lines = "".join(f"{number}\n" for number in range(50_000))
    cli("produce", topic, stdin=lines)
    assert cli("consume", topic, "-o", "start", "-e") == lines


def test_records_go_out_while_the_input_is_open(cli, topic):
    process = cli.start("produce", topic, "--echo")
    process.stdin.write(b"a\n")
    assert read_line(process) == "partition 0 offset 0\n"
    process.stdin.write(b"b\n")
    assert read_line(process) == "partition 0 offset 1\n"
    process.stdin.close()
    assert process.wait(60) == 0


def test_ctrl_c_flushes_what_was_read(cli, topic):
    process = cli.start("produce", topic, "--echo")
    process.stdin.write(b"a\nb\nunfinished")
    assert read_line(process) == "partition 0 offset 0\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert process.stderr.read().decode() == f"2 records written to {topic}\n"
    assert keys_and_values(cli, topic) == [(None, "a"), (None, "b")]


def test_a_large_file_shows_how_much_of_it_is_written(
    bootstrap, topic, tmp_path, capsys, monkeypatch
):
    from headwater.cli.main import run
    from headwater.terminal import progress

    file = tmp_path / "lines"
    file.write_bytes(b"x" * 99 + b"\n" + b"y" * 999_900)
    monkeypatch.setattr(progress, "_LINE_EVERY_S", 0.0)
    assert run(["produce", topic, "-f", str(file), "-b", bootstrap]) == 0
    shown = capsys.readouterr().err
    assert f"to {topic}: " in shown
    assert "(26%)" in shown, "of its bytes, after the first chunk"
    assert f"2 records written to {topic}" in shown
