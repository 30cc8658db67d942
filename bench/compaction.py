"""Compaction: one pass over a whole log, and what producers notice of it.

The topic is filled while it is not compacted and is then switched to compaction, so that the first
pass finds all of it dirty. How long a pass took, its broker's own log says: the time until it
begins (both brokers look every 15 s) is not part of it.
"""

import random
import re
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from bench.clients import rdkafka
from bench.clients.rdkafka import LoadFailedError
from bench.peers.process import BrokerProcess
from bench.rounds import Measured, StartBroker, data_directory

TABLE = "table"
SIZE_BYTES = 100
SEGMENT_BYTES = 64 << 20
BEGIN_TIMEOUT_S = 120
PASS_TIMEOUT_S = 600
# Ours: "compaction: table-0 is clean up to 950000: … 2.31 s". Kafka's LogCleaner, over two lines:
# "cleaned log table-0 (dirty section = [0, 950000])", "… processed in 2.3 seconds".
PASSES = (
    re.compile(rf"compaction: {TABLE}-0 is clean up to (\d+): .*?([\d.]+) s\b"),
    re.compile(
        rf"cleaned log {TABLE}-0 \(dirty section = \[\d+, (\d+)\]\)\s+[\d.,]+ MB of log processed"
        r" in ([\d.,]+) seconds"
    ),
)


def compaction(start: StartBroker, count: int, keys: int, produced: int) -> Measured:
    """`count` records of `keys` keys in one partition; `produced` more to another meanwhile."""
    with data_directory() as directory, start(directory) as broker:
        rdkafka.create_topics(broker.address, rdkafka.TOPIC)
        _fill(broker.address, count, keys)
        alone = rdkafka.produce_rate(broker.address, produced, SIZE_BYTES)
        _compact(broker.address)
        _until_begun(directory)
        meanwhile = rdkafka.produce_rate(broker.address, produced, SIZE_BYTES)
        cleaned, seconds = _until_done(broker)
        return {
            f"compaction of {count:,} × {SIZE_BYTES} B, {keys:,} keys, records/s": (
                cleaned / seconds
            ),
            f"produce {SIZE_BYTES} B before a compaction, records/s": alone,
            f"produce {SIZE_BYTES} B during a compaction, records/s": meanwhile,
        }


def _fill(address: str, count: int, keys: int) -> None:
    admin = AdminClient({"bootstrap.servers": address, **rdkafka.QUIET})
    topic = NewTopic(TABLE, 1, 1, config={"segment.bytes": str(SEGMENT_BYTES)})
    admin.create_topics([topic])[TABLE].result(60)
    numbers = random.Random(1)
    value = numbers.randbytes(SIZE_BYTES)
    producer = Producer(
        {
            "bootstrap.servers": address,
            "acks": 1,
            "linger.ms": 20,
            "batch.size": 256 << 10,
            "queue.buffering.max.messages": 500_000,
            **rdkafka.QUIET,
        }
    )
    for _ in range(count):
        key = b"%016d" % numbers.randrange(keys)
        while True:
            try:
                producer.produce(TABLE, value, key)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(300):
        raise LoadFailedError("the table could not be filled")


def _compact(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address, **rdkafka.QUIET})
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in (("cleanup.policy", "compact"), ("min.cleanable.dirty.ratio", "0.01"))
    ]
    resource = ConfigResource(ResourceType.TOPIC, TABLE, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(60)


def _until_begun(directory: Path) -> None:
    """Both write what they have cleaned into files of such a name first."""
    partition = next(directory.rglob(f"{TABLE}-0"))
    deadline = time.monotonic() + BEGIN_TIMEOUT_S
    while not any("cleaned" in path.name for path in partition.iterdir()):
        if time.monotonic() > deadline:
            raise LoadFailedError("no compaction has begun")
        time.sleep(0.01)


def _until_done(broker: BrokerProcess) -> tuple[int, float]:
    """(records of the first pass, seconds it took)"""
    deadline = time.monotonic() + PASS_TIMEOUT_S
    while time.monotonic() < deadline:
        said = broker.output.read_text(errors="replace")
        for form in PASSES:
            found = form.search(said)
            if found is not None:
                return int(found[1]), float(found[2].replace(",", ""))
        time.sleep(0.1)
    raise LoadFailedError(f"no compaction has ended: {broker.output.read_text()[-2000:]}")
