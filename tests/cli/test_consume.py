"""`headwater consume`: positions, formats, following, groups, pipes."""

import json
import signal
import subprocess
import time

import pytest
from confluent_kafka import TopicPartition

from .conftest import COMMAND, read_line, running_broker, stop, unique, wait_until


@pytest.fixture(scope="module")
def unchanged(setup):
    """Ten records that no test adds to."""
    return setup.ten()


@pytest.mark.parametrize(
    ("position", "values"),
    [
        ("start", range(10)),
        ("end", ()),
        ("+7", range(7, 10)),
        ("-3", range(7, 10)),
        ("4", range(4, 10)),
        ("-3:-1", (7, 8)),
        ("2:+3", (2, 3, 4)),
        ("start:2", (0, 1)),
        ("5:5", ()),
        ("@1700000004000", range(4, 10)),
        ("@2023-11-14T22:13:24Z", range(4, 10)),
        ("@2023-11-14T22:13:24.500Z:@2023-11-14T22:13:27Z", (5, 6)),
        ("@-1h", ()),
        ("100", ()),
    ],
)
def test_positions(cli, unchanged, position, values):
    assert cli("consume", unchanged, "-o", position, "-e") == "".join(
        f"{value}\n" for value in values
    )


def test_a_position_that_is_none(cli, unchanged):
    assert cli.error("consume", unchanged, "-o", "yesterday", code=2).startswith(
        "error: not a position: yesterday\n"
    )


def test_a_range_with_an_end_ends_by_itself(cli, unchanged):
    assert cli("consume", unchanged, "-o", "start:end").count("\n") == 10


def test_at_most_n_records(cli, unchanged):
    assert cli("consume", unchanged, "-o", "start", "-n", 2) == "0\n1\n"
    assert cli("consume", unchanged, "-o", "start", "-n", 0) == ""


def test_a_format(cli, unchanged):
    shown = cli("consume", unchanged, "-o", "-1", "-e", "-f", r"%t|%p|%o|%k|%v|%h|%T|%d\n")
    assert shown == f"{unchanged}|0|9||9||1700000009000|2023-11-14T22:13:29.000Z\n"
    assert "unknown in a format" in cli.error("consume", unchanged, "-f", "%q", code=2)


def test_json_is_one_object_per_line(cli, unchanged):
    lines = cli("consume", unchanged, "-o", "start", "-e", "--json").splitlines()
    assert [json.loads(line)["offset"] for line in lines] == list(range(10))


def test_bytes_that_are_not_text(cli, topic):
    cli("produce", topic, stdin=b"\xff\x00\n")
    raw = cli.result("consume", topic, "-o", "start", "-e").stdout
    assert raw == b"\xff\x00\n"
    assert cli("consume", topic, "-o", "start", "-e", "--binary", "hex") == "ff00\n"


def test_only_some_partitions(cli, topic):
    cli("topic", "alter", topic, "-p", 3)
    for partition in range(3):
        cli("produce", topic, "-p", partition, stdin=f"{partition}\n")
    assert sorted(cli("consume", topic, "-p", "0,2", "-o", "start", "-e").split()) == ["0", "2"]
    assert "no partition 7" in cli.error("consume", topic, "-p", "7")
    assert "no list of partitions" in cli.error("consume", topic, "-p", "a", code=2)


def test_several_topics_and_patterns(cli):
    prefix = unique("pattern")
    for name in ("a", "b", "c"):
        cli("produce", f"{prefix}.{name}", stdin=f"{name}\n")
    both = cli("consume", f"{prefix}.a", f"{prefix}.b", "-o", "start", "-e", "-f", r"%t=%v\n")
    assert sorted(both.split()) == [f"{prefix}.a=a", f"{prefix}.b=b"]
    matched = cli("consume", f"^{prefix}[.][bc]$", "-o", "start", "-e")
    assert sorted(matched.split()) == ["b", "c"]
    assert "no topic matches" in cli.error("consume", f"^{prefix}nothing$", "-e")
    assert "is no regular expression" in cli.error("consume", "^(", "-e", code=2)


def test_a_topic_that_does_not_exist_is_an_error_and_is_not_created(cli):
    name = unique("nowhere")
    assert f"there is no topic {name}" in cli.error("consume", name, "-e")
    assert name not in [row["topic"] for row in cli.json("topic", "list")]


def test_it_follows_like_tail(cli, ten):
    process = cli.start("consume", ten, "-o", "-1")
    assert read_line(process) == "9\n"
    cli("produce", ten, stdin="new\n")
    assert read_line(process) == "new\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert process.stderr.read() == b""


def test_an_offset_that_is_still_ahead_is_waited_for(cli, ten):
    process = cli.start("consume", ten, "-o", "11:12")
    cli("produce", ten, stdin="10\n11\n12\n")
    assert read_line(process) == "11\n"
    assert process.wait(60) == 0


def test_a_tail_meets_new_partitions(cli, topic):
    process = cli.start("consume", topic, "-o", "start")
    cli("topic", "alter", topic, "-p", 2)
    cli("produce", topic, "-p", 1, stdin="from the new one\n")
    assert read_line(process) == "from the new one\n"
    assert stop(process) == 0


def test_a_tail_survives_a_restart_of_the_broker(offline, tmp_path):
    with running_broker(tmp_path) as (_, ready):
        address = ready["listen"]
        offline("produce", "t", "-b", address, stdin="before\n")
        process = offline.start("consume", "t", "-o", "start", "-b", address)
        assert read_line(process) == "before\n"
    assert read_line(process.stderr) == f"no broker answers at {address}; retrying\n"
    with running_broker(tmp_path, "--listen", address):
        offline("produce", "t", "-b", address, stdin="after\n")
        assert read_line(process) == "after\n"
        assert stop(process) == 0


@pytest.mark.parametrize("option", [[], ["--json"], ["-f", "%v\\n"]])
def test_a_reader_that_goes_away_ends_it_quietly(cli, unchanged, option):
    process = cli.start("consume", unchanged, "-o", "start", *option)
    read_line(process)
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr.read() == b""


def test_head_in_a_shell(cli, unchanged):
    command = f"{' '.join(COMMAND)} consume {unchanged} -o start | head -1"
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        env=cli.environment,
        cwd=cli.cwd,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, b"0\n", b"")


def test_a_slow_reader_gets_everything(cli, topic):
    lines = "".join(f"{number:0100}\n" for number in range(5000)).encode()
    cli("produce", topic, stdin=lines)
    process = cli.start("consume", topic, "-o", "start", "-e")
    time.sleep(0.5)  # the pipe is full by now, or will be: both must do
    assert process.stdout.read() == lines
    assert process.wait(60) == 0


def test_as_a_member_of_a_group(cli, ten, group):
    first = cli("consume", ten, "-g", group, "-o", "start", "-n", 4)
    assert first == "0\n1\n2\n3\n"
    assert cli("consume", ten, "-g", group, "-e").split() == list("456789")
    assert cli("consume", ten, "-g", group, "-e") == ""
    (described,) = cli.json("group", "describe", group)
    assert described["lag"] == 0


def test_a_member_commits_when_it_is_interrupted(cli, ten, group):
    process = cli.start("consume", ten, "-g", group, "-o", "start")
    for number in range(10):
        assert read_line(process) == f"{number}\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    (described,) = cli.json("group", "describe", group)
    assert described["partitions"][0]["committed"] == 10


def test_what_a_group_decides_cannot_be_given(cli, unchanged, group):
    assert "a group decides" in cli.error("consume", unchanged, "-g", group, "-p", "0", code=2)
    assert "is empty" in cli.error("consume", unchanged, "-g", "", code=2)
    assert "a group begins" in cli.error("consume", unchanged, "-g", group, "-o", "5", code=2)


def test_what_a_disk_has_changed_is_not_shown(offline, tmp_path):
    with running_broker(tmp_path) as (_, ready):
        offline("produce", "t", "-b", ready["listen"], stdin="good value\n")
    (log,) = (tmp_path / "t-0").glob("*.log")
    log.write_bytes(log.read_bytes().replace(b"good", b"evil"))
    with running_broker(tmp_path) as (_, ready):
        where = ("-o", "start", "-e", "-b", ready["listen"])
        result = offline.result("consume", "t", *where, code=1)
    assert result.stdout == b""
    assert b"error: cannot read t:0\n" in result.stderr
    assert b"hint: it is damaged on disk" in result.stderr


def test_a_damaged_segment_is_said(offline, tmp_path):
    with running_broker(tmp_path) as (_, ready):
        offline("topic", "create", "t", "-c", "segment.bytes=2000", "-b", ready["listen"])
        for _ in range(3):
            offline("produce", "t", "-b", ready["listen"], stdin="x" * 1500 + "\n")
    sealed = tmp_path / "t-0" / f"{1:020}.log"
    sealed.write_bytes(bytes(64) + sealed.read_bytes()[64:])
    with running_broker(tmp_path) as (_, ready):
        result = offline.result("consume", "t", "-o", "start", "-e", "-b", ready["listen"], code=1)
        assert result.stdout.count(b"\n") == 1
        assert "cannot read t:0" in result.stderr.decode()
        assert "at offset 1" in result.stderr.decode()
        assert offline("consume", "t", "-o", "2", "-e", "-b", ready["listen"]).count("\n") == 1


def test_isolation(cli, unchanged):
    for isolation in ("read_committed", "read_uncommitted"):
        read = cli("consume", unchanged, "-o", "start", "-e", "--isolation", isolation)
        assert read.count("\n") == 10


def test_an_offset_that_is_no_longer_retained_is_reported(cli, setup, ten):
    for future in setup.admin.delete_records([TopicPartition(ten, 0, 6)]).values():
        future.result(60)
    wait_until(lambda: cli.json("topic", "describe", ten)[0]["partitions"][0]["start_offset"] == 6)
    result = cli.result("consume", ten, "-o", "2", "-e")
    assert result.stdout == b"6\n7\n8\n9\n"
    assert result.stderr.decode() == f"{ten}:0: offset 2 is no longer retained; begins at 6\n"


def test_values_with_the_id_of_a_schema_are_decoded_on_request(cli, setup, bootstrap):
    from headwater.schemas.registry.registry import Registry
    from headwater.schemas.schema import Schema
    from headwater.settings import ClientSettings

    registry = Registry(bootstrap, ClientSettings())
    registry.open()
    schema_id = registry.register(unique("subject"), Schema('"string"')).id
    registry.close()
    topic = setup.topic()
    value = b"\x00" + schema_id.to_bytes(4, "big") + b"\x04hi"
    setup.produce(topic, value, b"plain", b"\x00\x00\x0f\x00\x00?")
    found = cli("consume", topic, "-o", "start", "-e", "--decode", "--json")
    values = [json.loads(line)["value"] for line in found.splitlines()]
    assert values == ['"hi"', "plain", "\x00\x00\x0f\x00\x00?"]
    assert cli("consume", topic, "-o", "start:1", "-e").encode() == value + b"\n"
