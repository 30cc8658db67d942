"""Kafka 4.3's own tools as users with few rights; `kafka-acls.sh` gives them theirs."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.clients.kafka_tools import run_tool
from support.clients.rights import GuardedBroker, guarded_broker

from bench.peers.kafka import TOOLS
from bench.peers.provision import missing_tools
from headwater.broker.security.acls import Operation, ResourceType

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(bool(missing_tools("java", "mvn")), reason="needs java and mvn on the PATH"),
]

CONSOLE_CONSUMER = f"{TOOLS}.consumer.ConsoleConsumer"
Tool = Callable[..., str]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    with guarded_broker(tmp_path_factory.mktemp("guarded")) as running:
        yield running


@pytest.fixture
def tool(guarded: GuardedBroker, tmp_path: Path) -> Tool:
    """Runs a tool as a user; all it said, whether it succeeded or not."""

    def run(name: str, user: str, *args: str, option: str = "--command-config",
            stdin: str = "", **properties: str) -> str:  # fmt: skip
        config = guarded.java_properties(tmp_path, user, **properties)
        where = ("--bootstrap-server", guarded.address, option, config)
        done = run_tool(name, *where, *args, stdin=stdin)
        return done.stdout + done.stderr

    return run


def acls(tool: Tool, *args: str, user: str = "admin") -> str:
    return tool("AclCommand", user, *args)


def produce(tool: Tool, user: str, topic: str, line: str) -> str:
    return tool("ConsoleProducer", user, "--topic", topic, stdin=line + "\n", max_block_ms="10000")


def consume(tool: Tool, user: str, topic: str, group: str) -> str:
    args = ("--topic", topic, "--group", group, "--from-beginning", "--max-messages", "1")
    return tool(CONSOLE_CONSUMER, user, *args, "--timeout-ms", "20000")


def test_kafka_acls_adds_lists_and_removes(tool: Tool, guarded: GuardedBroker) -> None:
    principal = f"User:{guarded.user()}"
    topic = ("--topic", "team-", "--resource-pattern-type", "prefixed")
    added = acls(tool, "--add", "--allow-principal", principal, "--operation", "Read", *topic)
    assert "Adding ACLs" in added
    listed = acls(tool, "--list", "--topic", "team-orders", "--resource-pattern-type", "match")
    assert f"principal={principal}, host=*, operation=READ, permissionType=ALLOW" in listed
    assert principal in acls(tool, "--list", "--principal", principal)
    acls(tool, "--remove", "--force", "--allow-principal", principal, "--operation", "Read", *topic)
    assert principal not in acls(tool, "--list")


def test_a_denied_client_gets_the_right_exception(tool: Tool, guarded: GuardedBroker) -> None:
    user, topic = guarded.user(), guarded.topic()
    assert "TopicAuthorizationException" in produce(tool, user, topic, "one")
    assert "TopicAuthorizationException" in consume(tool, user, topic, user)
    guarded.allow(user, Operation.READ, ResourceType.TOPIC, topic)
    assert "GroupAuthorizationException" in consume(tool, user, topic, user)
    assert "ClusterAuthorizationException" in acls(tool, "--list", user=user)


def test_a_producer_and_a_consumer_with_what_kafka_acls_grants_them(
    tool: Tool, guarded: GuardedBroker
) -> None:
    user, topic = guarded.user(), guarded.topic()
    allow = ("--add", "--allow-principal", f"User:{user}", "--topic", topic)
    acls(tool, *allow, "--producer")
    said = produce(tool, user, topic, "one")
    assert "Exception" not in said
    assert "TopicAuthorizationException" not in consume(tool, "admin", topic, f"{user}-check")
    acls(tool, *allow, "--consumer", "--group", user)
    said = consume(tool, user, topic, user)
    assert "one" in said.splitlines()
    assert "Exception" not in said


def test_a_transaction(tool: Tool, guarded: GuardedBroker) -> None:
    user, topic = guarded.user(), guarded.topic()
    load = ("--topic", topic, "--num-records", "10", "--record-size", "10", "--throughput", "-1",
            "--transactional-id", f"{user}-tx", "--transaction-duration-ms", "100")  # fmt: skip

    def perform() -> str:
        return tool("ProducerPerformance", user, *load)

    allow = ("--add", "--allow-principal", f"User:{user}", "--topic", topic, "--producer")
    acls(tool, *allow)
    assert "TransactionalIdAuthorizationException" in perform()
    acls(tool, *allow, "--transactional-id", f"{user}-tx")
    said = perform()
    assert "10 records sent" in said
    assert "Exception" not in said
