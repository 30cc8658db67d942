"""`headwater topic …`."""

import json
import os
import pty
import subprocess

import pytest

from .conftest import COMMAND, unique


def test_create_describe_delete(cli):
    name = unique("topic")
    assert cli("topic", "create", name, "-p", 3, "-c", "retention.ms=7d") == f"created {name}\n"
    (described,) = cli.json("topic", "describe", name)
    assert [partition["partition"] for partition in described["partitions"]] == [0, 1, 2]
    assert [
        (partition["start_offset"], partition["end_offset"])
        for partition in described["partitions"]
    ] == [(0, 0)] * 3
    (retention,) = [config for config in described["configs"] if config["name"] == "retention.ms"]
    assert retention == {"name": "retention.ms", "value": "604800000", "source": "dynamic_topic"}
    assert cli("topic", "delete", name, "--yes") == f"deleted {name}\n"
    assert f"there is no topic {name}" in cli.error("topic", "describe", name)


def test_create_several(cli):
    names = [unique("topic"), unique("topic")]
    created = cli.json("topic", "create", *names)
    assert sorted(topic["topic"] for topic in created) == sorted(names)


def test_create_what_exists(cli, topic):
    error = cli.error("topic", "create", topic)
    assert error.startswith(f"error: cannot create topic {topic}\n")
    assert error.endswith("hint: --if-not-exists makes that no error\n")
    assert cli.json("topic", "create", topic, "--if-not-exists") == [
        {"topic": topic, "created": False}
    ]


def test_what_was_created_beside_what_exists_is_said(cli, topic):
    names = [unique("topic"), unique("topic"), unique("topic")]
    result = cli.result("topic", "create", names[0], topic, names[1], code=1)
    assert sorted(result.stdout.decode().split()) == sorted(["created", "created", *names[:2]])
    assert result.stderr.decode().startswith(f"error: cannot create topic {topic}\n")
    result = cli.result("topic", "create", topic, names[2], "--json", code=1)
    assert json.loads(result.stdout) == [{"topic": names[2], "created": True}]
    assert cli.result("topic", "create", topic, "--json", code=1).stdout == b""


@pytest.mark.parametrize("number", ["0", "-3", "1000000000", "many", "9" * 5000])
def test_a_number_of_partitions_that_is_none(offline, number):
    for command in ("create", "alter"):
        error = offline.error("topic", command, "t", "-p", number, code=2)
        assert f"'{number}' is no whole number from 1 to 100000\n" in error


def test_wrong_configs(cli):
    error = cli.error("topic", "create", unique("topic"), "-c", "no.such=1")
    assert "INVALID_CONFIG" in error
    assert "hint: `headwater topic describe TOPIC --all`" in error
    assert "expected a duration" in cli.error(
        "topic", "create", unique("topic"), "-c", "retention.ms=long", code=2
    )
    assert "KEY=VALUE" in cli.error("topic", "create", unique("topic"), "-c", "retention", code=2)


def test_list_counts_records_and_hides_internal_topics(cli, topic):
    cli("produce", topic, stdin="a\nb\nc\n")
    rows = {row["topic"]: row for row in cli.json("topic", "list")}
    assert rows[topic]["partitions"] == 1
    assert rows[topic]["records"] == 3
    assert rows[topic]["size_bytes"] > 0
    assert not [name for name in rows if name.startswith("__")]
    shown = cli("topic", "list").splitlines()
    assert shown[0].split() == ["TOPIC", "PARTITIONS", "REPLICAS", "RECORDS", "SIZE"]
    assert any(line.startswith(f"{topic} ") for line in shown)


def test_describe_for_people(cli, topic):
    cli("produce", topic, stdin="a\nb\n")
    cli("topic", "alter", topic, "-c", "retention.ms=1h")
    shown = cli("topic", "describe", topic).splitlines()
    assert shown[0].startswith(f"{topic}  1 partition, 2 records, ")
    assert shown[3].split()[:6] == ["0", "1", "1", "1", "0", "2"]
    assert any(line.split() == ["retention.ms", "3600000", "dynamic_topic"] for line in shown)


def test_what_is_compacted_has_holes_so_offsets_are_counted(cli, topic):
    cli("topic", "alter", topic, "-c", "cleanup.policy=compact,delete")
    cli("produce", topic, "-k", ":", stdin="a:1\na:2\n")
    assert cli("topic", "describe", topic).startswith(f"{topic}  1 partition, 2 offsets, ")
    refused = cli.error("produce", topic, stdin="no key\n")
    assert "hint: does the topic compact? Then every record needs a key" in refused


def test_describe_all_shows_defaults(cli, topic):
    (described,) = cli.json("topic", "describe", topic, "--all")
    names = [config["name"] for config in described["configs"]]
    assert {"cleanup.policy", "max.message.bytes", "segment.bytes"} <= set(names)


def test_describe_suggests_a_name(cli, topic):
    assert cli.error("topic", "describe", topic[:-1] + "x") == (
        f"error: there is no topic {topic[:-1]}x\nhint: did you mean {topic}?\n"
    ) or topic[:-1] in cli.error("topic", "describe", topic[:-1] + "x")


def test_alter_configs_and_partitions(cli, topic):
    cli("topic", "alter", topic, "-c", "retention.bytes=1MiB", "-c", "retention.ms=1d", "-p", 3)
    cli("topic", "alter", topic, "--unset", "retention.ms")
    (described,) = cli.json("topic", "describe", topic)
    configs = {config["name"]: config["value"] for config in described["configs"]}
    assert configs["retention.bytes"] == "1048576"
    assert "retention.ms" not in configs
    assert len(described["partitions"]) == 3


def test_alter_refusals(cli, topic):
    cli("topic", "alter", topic, "-p", 2)
    assert "cannot remove partitions from" in cli.error("topic", "alter", topic, "-p", 1)
    assert "nothing to alter" in cli.error("topic", "alter", topic, code=2)


def test_delete_needs_yes_without_a_terminal(cli, topic):
    assert "--yes" in cli.error("topic", "delete", topic, code=2)
    cli("topic", "describe", topic)


def test_delete_asks_at_a_terminal(cli, topic):
    cli("produce", topic, stdin="a\n")
    ours, theirs = pty.openpty()
    command = [*COMMAND, "topic", "delete", topic]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=cli.environment, cwd=cli.cwd
    )
    os.close(theirs)
    question = b""
    while not question.endswith(b"[y/N] "):
        question += os.read(ours, 1000)
    assert question.decode() == f"delete {topic} with 1 record? [y/N] "
    os.write(ours, b"n\n")
    assert process.wait(60) == 1
    os.close(ours)
    cli("topic", "describe", topic)
