"""Our producer and an Apache Kafka of its own: killed, and set back to older transactions."""

import random
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.client.cutting_proxy import cutting
from support.client.written import committed_exactly, new_topic, producer, write_somehow
from tiers import long

from bench.peers.kafka import TOOL_JVM, kafka, run_tool
from bench.peers.process import BrokerProcess, answers_metadata
from bench.peers.provision import missing_tools

KILLS = 1
START_TIMEOUT_S = 60

pytestmark = [
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing_tools("java", "mvn")), reason="needs java and mvn on the PATH"),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with kafka(tmp_path_factory.mktemp("killed"), jvm=TOOL_JVM) as running:
        try:
            yield running
        finally:  # the process that runs now is not the one of `kafka`
            running.kill()


def kill_and_start(broker: BrokerProcess) -> None:
    """Again at the same address, on the same data."""
    broker.kill()
    with Path(broker.output).open("ab") as sink:
        broker.child = subprocess.Popen(broker.child.args, stdout=sink, stderr=sink)
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not answers_metadata(int(broker.address.rpartition(":")[2])):
        assert time.monotonic() < deadline_s, "Kafka does not start again"
        time.sleep(0.05)


# A Kafka 4.3 that is killed between PrepareCommit and its markers may complete the transaction
# without them when it starts again, which then hangs.
@long
def test_killed_in_the_midst_of_transactions(broker: BrokerProcess) -> None:
    topic = new_topic(broker.address, 3)
    expected: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    rng = random.Random(6)

    def keep_killing() -> None:
        for _ in range(KILLS):
            time.sleep(0.3 + random.random())
            kill_and_start(broker)

    killer = threading.Thread(target=keep_killing)
    with producer(broker.address, patience_s=60) as writer:
        killer.start()
        number = 0
        while killer.is_alive():
            write_somehow(writer, topic, rng, number, expected)
            number += 1
    killer.join()
    committed_exactly(broker.address, topic, expected)


@long
def test_transactions_from_before_kip_890_on_kafka(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (
        "--bootstrap-server",
        broker.address,
        "downgrade",
        "--feature",
        "transaction.version=0",
    )
    run_tool("FeatureCommand", *arguments).check_returncode()
    topic = new_topic(broker.address, 3)
    expected: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    rng = random.Random(7)
    with cutting(monkeypatch, 7, odds=0.04) as proxy, producer(broker.address) as writer:
        assert not writer._has_own_epoch
        for number in range(30):
            write_somehow(writer, topic, rng, number, expected)
    assert proxy.cuts > 5
    committed_exactly(broker.address, topic, expected)
