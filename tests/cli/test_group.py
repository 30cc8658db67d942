"""`headwater group …`."""

import signal

import pytest

from .conftest import read_line, stop, unique


@pytest.fixture
def topic(ten):
    return ten


@pytest.fixture
def behind(setup, topic, group):
    """A group that has read 4 of 10 records."""
    setup.commit(group, topic, 4)
    return group


def committed(cli, group):
    (described,) = cli.json("group", "describe", group)
    return [partition["committed"] for partition in described["partitions"]]


def test_list_shows_state_and_lag(cli, behind):
    (row,) = [row for row in cli.json("group", "list") if row["group"] == behind]
    assert row == {
        "group": behind,
        "state": "empty",
        "type": "classic",
        "members": 0,
        "topics": 1,
        "lag": 6,
    }
    shown = cli("group", "list").splitlines()
    assert shown[0].split() == ["GROUP", "STATE", "TYPE", "MEMBERS", "TOPICS", "LAG"]
    assert [behind, "empty", "classic", "0", "1", "6"] in [line.split() for line in shown]


def test_describe(cli, topic, behind):
    (described,) = cli.json("group", "describe", behind)
    assert described["lag"] == 6
    assert described["topics"] == [{"topic": topic, "lag": 6}]
    assert described["partitions"] == [
        {
            "topic": topic,
            "partition": 0,
            "committed": 4,
            "end_offset": 10,
            "lag": 6,
            "member": None,
        }
    ]
    shown = cli("group", "describe", behind).splitlines()
    assert shown[0] == f"{behind}  empty, classic, 0 members, lag 6"
    assert shown[3].split() == [topic, "0", "4", "10", "6", "-"]


def test_describe_what_does_not_exist(cli):
    assert cli.error("group", "describe", unique("nobody")).startswith("error: ")


@pytest.mark.parametrize(
    ("position", "offset"),
    [
        ("start", 0),
        ("end", 10),
        ("7", 7),
        ("99", 10),
        ("+3", 7),
        ("-3", 1),
        ("-99", 0),
        ("@1700000002500", 3),
        ("@-1m", 10),
    ],
)
def test_seek(cli, topic, behind, position, offset):
    moved = cli.json("group", "seek", behind, "--to", position)
    assert moved["partitions"] == [{"topic": topic, "partition": 0, "before": 4, "after": offset}]
    assert committed(cli, behind) == [offset]


def test_seek_dry_run_changes_nothing(cli, topic, behind):
    result = cli.result("group", "seek", behind, "--to", "start", "--dry-run")
    lines = result.stdout.decode().splitlines()
    assert lines[1].split() == [topic, "0", "4", "0"]
    assert result.stderr == b"nothing was changed (--dry-run)\n"
    assert committed(cli, behind) == [4]


def test_seek_of_one_partition_and_of_a_new_group(cli, topic, group):
    cli("topic", "alter", topic, "-p", 2)
    cli("produce", topic, "-p", 1, stdin="c\n")
    cli("group", "seek", group, "--to", "end", "--topic", topic)
    assert committed(cli, group) == [10, 1]
    cli("group", "seek", group, "--to", "start", "--topic", f"{topic}:0")
    assert committed(cli, group) == [0, 1]
    assert "no partition" in cli.error("group", "seek", group, "--to", "0", "-t", f"{topic}:9")


def test_seek_mistakes(cli, topic, behind):
    assert "not a position" in cli.error("group", "seek", behind, "--to", "x", code=2)
    assert "is a range" in cli.error("group", "seek", behind, "--to", "1:2", code=2)
    nobody = unique("nobody")
    assert "committed nothing" in cli.error("group", "seek", nobody, "--to", "start")
    assert "committed nothing in" in cli.error(
        "group", "seek", nobody, "--to", "+1", "--topic", topic
    )


def test_an_active_group_is_described_and_cannot_be_moved(cli, topic, behind):
    process = cli.start("consume", topic, "-g", behind)
    assert read_line(process) == "4\n"
    (described,) = cli.json("group", "describe", behind)
    (member,) = described["members"]
    assert member["partitions"] == 1
    assert described["partitions"][0]["member"] == member["member"]
    assert described["state"] == "stable"
    error = cli.error("group", "seek", behind, "--to", "start")
    assert error.startswith(f"error: group {behind} is active\n  it is stable with 1 member")
    assert "NON_EMPTY_GROUP" in cli.error("group", "delete", behind, "--yes")
    cli("group", "seek", behind, "--to", "start", "--dry-run")
    assert stop(process, signal.SIGINT) == 0
    cli("group", "seek", behind, "--to", "start")


def test_delete(cli, behind):
    assert "--yes" in cli.error("group", "delete", behind, code=2)
    assert cli("group", "delete", behind, "-y") == f"deleted {behind}\n"
    assert behind not in [row["group"] for row in cli.json("group", "list")]


def test_what_was_deleted_beside_what_does_not_exist_is_said(cli, behind):
    result = cli.result("group", "delete", unique("nobody"), behind, "-y", code=1)
    assert result.stdout.decode() == f"deleted {behind}\n"
    assert b"GROUP_ID_NOT_FOUND" in result.stderr
