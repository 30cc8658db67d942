"""`python -m bench.fetching [ROWS]`: how fast a partition is read into Arrow, beside librdkafka.

One partition of our broker, values of 100 bytes, batches as librdkafka makes them. In turn, the
best of some rounds: our Fetcher with key, value, offset and timestamp; librdkafka's consumer from
Python, which gives a message object for each record, without looking into any of them.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.peers.headwater import headwater
from headwater.client.reading.fetching import LATEST, Fetcher
from headwater.client.topics import NewTopic, ensure_topics
from headwater.settings import ClientSettings

ROUNDS = 3
NOBODY = ClientSettings()
CODECS = ("none", "lz4", "zstd", "snappy", "gzip")
TRANSACTIONAL = "transactional"
PER_TRANSACTION = 20_000


def main(rows: int) -> None:
    with tempfile.TemporaryDirectory() as directory, headwater(Path(directory)) as broker:
        for name in (*CODECS, TRANSACTIONAL):
            _fill(broker.address, name, rows)
        print(f"{rows:,} rows of 100 bytes; rows/s, and rows per second of the reader's CPU time")
        for name in (*CODECS, TRANSACTIONAL):
            for reader in (_fetch, _consume):
                wall, cpu = zip(
                    *(_timed(reader, broker.address, name, rows) for _ in range(ROUNDS)),
                    strict=True,
                )
                figures = f"{rows / min(wall):14,.0f} {rows / min(cpu):14,.0f}"
                print(f"{name:14} {reader.__name__[1:]:8} {figures}", flush=True)


def _fill(address: str, name: str, rows: int) -> None:
    ensure_topics(address, NOBODY, [NewTopic(name)])
    settings = {
        "bootstrap.servers": address,
        "compression.type": name if name in CODECS else "none",
        "linger.ms": 50,
        "queue.buffering.max.messages": 1_000_000,
    }
    if name == TRANSACTIONAL:
        settings["transactional.id"] = name
    producer = Producer(settings)
    if name == TRANSACTIONAL:
        producer.init_transactions()
    for number in range(rows):
        if name == TRANSACTIONAL and number % PER_TRANSACTION == 0:
            if number:
                producer.commit_transaction()
            producer.begin_transaction()
        mixed = number * 0x9E3779B97F4A7C15
        value = b'{"id":%012d,"customer":%06d,"total":%08d,"status":"open","name":"%020x"}' % (
            number,
            number * 7919 % 1_000_000,
            number * 31 % 99_999_999,
            mixed & (1 << 60) - 1,
        )
        assert len(value) == 100, len(value)
        while True:
            try:
                producer.produce(name, value, b"%d" % number)
                break
            except BufferError:
                producer.poll(0.01)
    if name == TRANSACTIONAL:
        producer.commit_transaction()
    producer.flush()


def _timed(
    reader: Callable[[str, str, int], None], address: str, name: str, rows: int
) -> tuple[float, float]:
    started_s, cpu_s = time.perf_counter(), time.process_time()
    reader(address, name, rows)
    return time.perf_counter() - started_s, time.process_time() - cpu_s


def _fetch(address: str, name: str, rows: int) -> None:
    with Fetcher(address, NOBODY) as fetcher:
        end = fetcher.offsets([(name, 0)], LATEST)[name, 0]
        found = sum(batch.num_rows for batch in fetcher.read(name, 0, 0, end))
    assert found == rows, found


def _consume(address: str, name: str, rows: int) -> None:
    reader = Consumer(
        {"bootstrap.servers": address, "group.id": "g", "isolation.level": "read_committed"}
    )
    reader.assign([TopicPartition(name, 0, 0)])
    found = 0
    while found < rows:
        found += len(reader.consume(10_000, 1))
    reader.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
