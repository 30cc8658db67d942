"""Kafka 4.3's own command-line tools against the broker."""

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer
from support.clients.kafka_tools import run_tool

from bench.peers import kafka
from bench.peers.kafka import TOOLS
from bench.peers.provision import missing_tools

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(bool(missing_tools("java", "mvn")), reason="needs java and mvn on the PATH"),
]

GROUPS = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
SHARE_GROUPS = f"{TOOLS}.consumer.group.ShareGroupCommand"
CONSOLE_SHARE_CONSUMER = f"{TOOLS}.consumer.ConsoleShareConsumer"
CONSOLE_CONSUMER = f"{TOOLS}.consumer.ConsoleConsumer"
CONFIGS = "kafka.admin.ConfigCommand"


class Said(NamedTuple):
    out: str
    everything: str


Tool = Callable[..., Said]


@pytest.fixture
def tool(broker_address: str) -> Tool:
    """Runs a tool against the broker; unless a failure is expected, it must succeed."""

    def run(name: str, *args: str, stdin: str = "", fails: bool = False) -> Said:
        done = run_tool(name, "--bootstrap-server", broker_address, *args, stdin=stdin)
        everything = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, everything
        return Said(done.stdout, everything)

    return run


@pytest.fixture
def topic(request: pytest.FixtureRequest, tool: Tool) -> str:
    """A topic of three partitions, named after the test."""
    name = request.node.name.removeprefix("test_")
    tool("TopicCommand", "--create", "--topic", name, "--partitions", "3")
    return name


def fill(tool: Tool, topic: str, lines: list[str]) -> None:
    """Writes lines "key:value"."""
    keyed = ["--reader-property", "parse.key=true", "--reader-property", "key.separator=:"]
    tool("ConsoleProducer", "--topic", topic, *keyed, stdin="\n".join(lines) + "\n")


def test_topics(tool: Tool) -> None:
    named = ["--topic", "tools-topics"]
    settings = ["--config", "retention.ms=1000000", "--config", "segment.bytes=2000000"]
    said = tool("TopicCommand", "--create", *named, "--partitions", "2", *settings)
    assert "Created topic tools-topics." in said.out
    exists = tool("TopicCommand", "--create", *named, fails=True)
    assert "TopicExistsException" in exists.everything

    assert "tools-topics" in tool("TopicCommand", "--list").out.splitlines()

    described = tool("TopicCommand", "--describe", *named).out
    assert re.search(r"TopicId: [\w-]{22}\s+PartitionCount: 2\s+ReplicationFactor: 1", described)
    assert "retention.ms=1000000" in described
    assert "segment.bytes=2000000" in described
    assert (
        len(re.findall(r"Partition: \d+\s+Leader: (\d+)\s+Replicas: \1\s+Isr: \1", described)) == 2
    )

    tool("TopicCommand", "--alter", *named, "--partitions", "5")
    assert "PartitionCount: 5" in tool("TopicCommand", "--describe", *named).out
    assert tool("TopicCommand", "--alter", *named, "--partitions", "4", fails=True)

    tool("TopicCommand", "--delete", *named)
    assert "tools-topics" not in tool("TopicCommand", "--list").out.splitlines()
    assert "does not exist" in tool("TopicCommand", "--describe", *named, fails=True).everything


def test_console_with_keys_and_headers(tool: Tool, topic: str) -> None:
    properties = ["parse.headers=true", "parse.key=true", "null.marker=NULL"]
    reader = [arg for prop in properties for arg in ("--reader-property", prop)]
    lines = "a:1,b:2\tkey one\tvalue one\nc:3\tkey two\tNULL\n"
    tool("ConsoleProducer", "--topic", topic, *reader, stdin=lines)

    shown = ["print.headers=true", "print.key=true", "print.partition=true", "print.offset=true"]
    formatter = [arg for prop in shown for arg in ("--formatter-property", prop)]
    bounded = ["--from-beginning", "--max-messages", "2", "--timeout-ms", "20000"]
    said = tool(CONSOLE_CONSUMER, "--topic", topic, *bounded, *formatter)
    rows = [line.split("\t") for line in said.out.splitlines()]
    assert {tuple(row[2:]) for row in rows} == {
        ("a:1,b:2", "key one", "value one"),
        ("c:3", "key two", "null"),
    }


def test_console_in_a_group_reads_each_record_once(tool: Tool, topic: str) -> None:
    fill(tool, topic, [f"{i}:value {i}" for i in range(30)])
    once = ["--topic", topic, "--group", topic, "--from-beginning", "--timeout-ms", "5000"]
    first = tool(CONSOLE_CONSUMER, *once, "--max-messages", "30").out.splitlines()
    assert sorted(first) == sorted(f"value {i}" for i in range(30))
    fill(tool, topic, ["later:the later one"])
    again = tool(CONSOLE_CONSUMER, *once, "--max-messages", "1").out.splitlines()
    assert again == ["the later one"]


def test_consumer_groups(tool: Tool, topic: str) -> None:
    fill(tool, topic, [f"{i}:value {i}" for i in range(60)])
    group = ["--group", topic]
    tool(CONSOLE_CONSUMER, "--topic", topic, *group, "--from-beginning", "--max-messages", "60")

    assert topic in tool(GROUPS, "--list").out.split()
    described = tool(GROUPS, "--describe", *group).out
    assert sum(_lags(described, topic)) == 0
    assert len(_lags(described, topic)) == 3
    assert re.search(rf"{topic}.*Empty", tool(GROUPS, "--describe", *group, "--state").out)

    to_start = ["--reset-offsets", *group, "--topic", topic, "--to-earliest"]
    tool(GROUPS, *to_start, "--dry-run")
    assert sum(_lags(tool(GROUPS, "--describe", *group).out, topic)) == 0
    tool(GROUPS, *to_start, "--execute")
    assert sum(_lags(tool(GROUPS, "--describe", *group).out, topic)) == 60
    by_time = ["--to-datetime", "2037-01-01T00:00:00.000"]
    tool(GROUPS, "--reset-offsets", *group, "--topic", topic, *by_time, "--execute")
    assert sum(_lags(tool(GROUPS, "--describe", *group).out, topic)) == 0
    tool(
        GROUPS, "--reset-offsets", *group, "--topic", f"{topic}:0", "--to-offset", "1", "--execute"
    )
    assert sum(_lags(tool(GROUPS, "--describe", *group).out, topic)) > 0

    tool(GROUPS, "--delete-offsets", *group, "--topic", topic)
    tool(GROUPS, "--delete", *group)
    assert topic not in tool(GROUPS, "--list").out.split()


def _lags(described: str, topic: str) -> list[int]:
    """The column LAG of `--describe`."""
    header, *rows = [line.split() for line in described.splitlines() if line.strip()][-4:]
    assert all(row[header.index("TOPIC")] == topic for row in rows)
    return [int(row[header.index("LAG")]) for row in rows]


def test_configs(tool: Tool, topic: str) -> None:
    of_topic = ["--entity-type", "topics", "--entity-name", topic]
    tool(
        CONFIGS,
        "--alter",
        *of_topic,
        "--add-config",
        "retention.ms=4242,cleanup.policy=[compact,delete]",
    )
    described = tool(CONFIGS, "--describe", *of_topic).out
    assert "retention.ms=4242" in described
    assert "cleanup.policy=compact,delete" in described
    tool(CONFIGS, "--alter", *of_topic, "--delete-config", "retention.ms")
    assert "retention.ms=4242" not in tool(CONFIGS, "--describe", *of_topic).out
    everything = tool(CONFIGS, "--describe", "--all", *of_topic).out
    assert "retention.ms=604800000" in everything
    assert "max.message.bytes=" in everything
    refused = tool(CONFIGS, "--alter", *of_topic, "--add-config", "retention.ms=soon", fails=True)
    assert "InvalidConfigurationException" in refused.everything


def test_get_offsets(tool: Tool, topic: str) -> None:
    before_ms = int(time.time() * 1000)
    fill(tool, topic, [f"{i}:value {i}" for i in range(60)])
    latest = _offsets(tool, topic, "latest")
    assert sum(latest.values()) == 60
    assert set(_offsets(tool, topic, "earliest").values()) == {0}
    assert set(_offsets(tool, topic, str(before_ms)).values()) == {0}
    newest = _offsets(tool, topic, "max-timestamp")
    assert all(0 <= newest[partition] < latest[partition] for partition in latest)


def _offsets(tool: Tool, topic: str, at: str) -> dict[int, int]:
    rows = tool("GetOffsetShell", "--topic", topic, "--time", at).out.split()
    return {int(p): int(offset) for _topic, p, offset in (row.split(":") for row in rows)}


def test_delete_records(tool: Tool, topic: str, tmp_path: Path) -> None:
    fill(tool, topic, [f"{i}:value {i}" for i in range(60)])
    latest = _offsets(tool, topic, "latest")
    wanted = [
        {"topic": topic, "partition": 0, "offset": 2},
        {"topic": topic, "partition": 1, "offset": -1},
    ]
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps({"partitions": wanted, "version": 1}))
    said = tool("DeleteRecordsCommand", "--offset-json-file", str(file))
    assert f"partition: {topic}-0\tlow_watermark: 2" in said.out
    assert _offsets(tool, topic, "earliest") == {0: 2, 1: latest[1], 2: 0}


def test_log_dirs(tool: Tool, topic: str) -> None:
    fill(tool, topic, [f"{i}:value {i}" for i in range(60)])
    said = tool("LogDirsCommand", "--describe", "--topic-list", topic)
    (described,) = [json.loads(line) for line in said.out.splitlines() if line.startswith("{")]
    (directory,) = described["brokers"][0]["logDirs"]
    assert directory["error"] is None
    sizes = {p["partition"]: p["size"] for p in directory["partitions"]}
    assert set(sizes) == {f"{topic}-{n}" for n in range(3)}
    assert sum(sizes.values()) > 60 * len("value 0")


def test_broker_api_versions(tool: Tool) -> None:
    said = tool("BrokerApiVersionsCommand").out
    for api in (
        "Produce(0)",
        "Fetch(1)",
        "ConsumerGroupHeartbeat(68)",
        "DescribeTopicPartitions(75)",
    ):
        line = next(line for line in said.splitlines() if api in line)
        assert "usable:" in line


def test_cluster_id(tool: Tool, broker_address: str) -> None:
    done = run_tool("ClusterTool", "cluster-id", "--bootstrap-server", broker_address)
    assert re.search(r"Cluster ID: \S+", done.stdout), done.stdout + done.stderr


def test_performance_tools(tool: Tool, broker_address: str, topic: str) -> None:
    """Producer with its defaults (idempotent, acks=all), and a consumer that reads all of it."""
    records = ["--num-records", "200000", "--record-size", "100", "--throughput", "-1"]
    produced = run_tool(
        "ProducerPerformance", "--topic", topic, *records, "--bootstrap-server", broker_address
    )
    assert produced.stdout.splitlines()[-1].startswith("200000 records sent"), produced
    consumed = tool(
        "ConsumerPerformance", "--topic", topic, "--num-records", "200000", "--timeout", "20000"
    )
    assert consumed.out.splitlines()[-1].split(", ")[4] == "200000", consumed


def test_verifiable_producer_and_consumer(broker_address: str, topic: str) -> None:
    where = ["--bootstrap-server", broker_address, "--topic", topic]
    # In a JVM of its own: it says the most when that ends.
    said = kafka.run_tool("VerifiableProducer", *where, "--max-messages", "1000", "--acks", "-1")
    events = [json.loads(line) for line in said.stdout.splitlines()]
    acknowledged = {
        (e["partition"], e["offset"]) for e in events if e["name"] == "producer_send_success"
    }
    assert len(acknowledged) == 1000
    assert events[-1]["name"] == "tool_data"
    assert events[-1]["acked"] == 1000

    # It ends on a signal, and has printed by then what it has consumed and committed.
    args = [*where, "--group-id", topic, "--reset-policy", "earliest", "--verbose"]
    command = ["java", *kafka.TOOL_JVM, "-cp", kafka.classpath(), f"{TOOLS}.VerifiableConsumer"]
    with subprocess.Popen([*command, *args], stdout=subprocess.PIPE, text=True) as consumer:
        assert consumer.stdout is not None
        consumed, committed = set[tuple[int, int]](), dict[int, int]()
        for line in consumer.stdout:
            event = json.loads(line)
            if event["name"] == "record_data":
                consumed.add((event["partition"], event["offset"]))
            if event["name"] == "offsets_committed":
                assert event["success"], event
                committed.update({o["partition"]: o["offset"] for o in event["offsets"]})
            if sum(committed.values()) == 1000:
                break
        consumer.send_signal(signal.SIGTERM)
        consumer.communicate(timeout=60)
    assert consumed == acknowledged


def test_share_group(tool: Tool, topic: str) -> None:
    fill(tool, topic, [f"k{number}:v{number}" for number in range(6)])
    earliest = ["--add-config", "share.auto.offset.reset=earliest,share.delivery.count.limit=3"]
    tool(CONFIGS, "--alter", "--entity-type", "groups", "--entity-name", topic, *earliest)
    shown = tool(CONFIGS, "--describe", "--entity-type", "groups", "--entity-name", topic).out
    assert "share.delivery.count.limit=3" in shown
    read = ["--topic", topic, "--group", topic, "--max-messages", "6", "--timeout-ms", "30000"]
    got = tool(CONSOLE_SHARE_CONSUMER, *read).out.split()
    assert sorted(got) == [f"v{number}" for number in range(6)]
    assert topic in tool(SHARE_GROUPS, "--list").out.split()
    group = ["--group", topic]
    described = tool(SHARE_GROUPS, "--describe", *group).out
    starts = re.findall(rf"^{topic}\s+{topic}\s+\d+\s+(\d+)\s+(\d+)", described, re.MULTILINE)
    assert sum(int(start) for start, _ in starts) == 6
    assert all(lag == "0" for _, lag in starts)
    assert re.search(rf"{topic}.*Empty", tool(SHARE_GROUPS, "--describe", *group, "--state").out)
    back = ["--reset-offsets", *group, "--topic", topic, "--to-earliest", "--execute"]
    tool(SHARE_GROUPS, *back)
    assert sorted(tool(CONSOLE_SHARE_CONSUMER, *read).out.split()) == sorted(got)
    tool(SHARE_GROUPS, "--delete", *group)
    assert topic not in tool(SHARE_GROUPS, "--list").out.split()


def test_transactions(tool: Tool, topic: str, broker_address: str) -> None:
    """Lists and describes them, finds one that hangs, and aborts it."""
    command = "TransactionsCommand"
    producer = Producer({"bootstrap.servers": broker_address, "transactional.id": topic})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"forgotten", partition=1)
    producer.flush(60)

    listed = _row(tool(command, "list").out, topic)
    assert listed["TransactionState"] == "Ongoing"
    by_name = tool(command, "list", "--transactional-id-pattern", f"{topic}.*").out
    assert _row(by_name, topic) == listed
    assert topic not in tool(command, "list", "--duration-filter", "3600000").out

    described = _row(tool(command, "describe", "--transactional-id", topic).out, topic)
    assert described["TransactionState"] == "Ongoing"
    assert described["TopicPartitions"] == f"{topic}-1"
    assert described["ProducerId"] == listed["ProducerId"]

    partition_options = ["--topic", topic, "--partition", "1"]
    open_at = tool(command, "describe-producers", *partition_options).out
    assert _row(open_at, listed["ProducerId"])["CurrentTransactionStartOffset"] == "0"
    tool(command, "abort", *partition_options, "--start-offset", "0")
    open_at = tool(command, "describe-producers", *partition_options).out
    assert _row(open_at, listed["ProducerId"])["CurrentTransactionStartOffset"] == "None"
    assert tool(command, "abort", *partition_options, "--start-offset", "0", fails=True)

    producer.abort_transaction(20)
    assert _row(tool(command, "list").out, topic)["TransactionState"] == "CompleteAbort"
    assert tool(command, "describe", "--transactional-id", "nobody", fails=True)


def _row(table: str, beginning: str) -> dict[str, str]:
    """The row that begins with that value, by column."""
    header, *rows = [line.split() for line in table.splitlines() if line.strip()]
    (row,) = [row for row in rows if beginning in row]
    return dict(zip(header, row, strict=False))
