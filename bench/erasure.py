"""Erasure: some hundred records out of a large log, and what producers notice of it.

    python -m bench.erasure [GIB] [RECORDS]

Fills a topic with GIB (1) of records of 1 KB, erases RECORDS (300) that are spread over all of it,
and measures the rate of a producer before and meanwhile. Only Headwater has erasure, so it is no
suite of `python -m bench`.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.clients import rdkafka
from bench.peers.ports import free_port
from bench.peers.process import BrokerProcess, running
from bench.rounds import data_directory
from headwater.client.erasing import ErasedRecords, erase_records
from headwater.settings import ClientSettings

TABLE = "people"
SIZE_BYTES = 1000
SEGMENT_BYTES = 128 << 20
PRODUCED = 200_000


def main(size_gib: float = 1.0, records: int = 300) -> None:
    count = int(size_gib * (1 << 30) / SIZE_BYTES)
    with data_directory() as directory, _broker(directory) as broker:
        rdkafka.create_topics(broker.address, rdkafka.TOPIC)
        _fill(broker.address, count)
        rates = [rdkafka.produce_rate(broker.address, PRODUCED, SIZE_BYTES) for _ in range(3)]
        print(f"produce before an erasure, records/s: {sorted(rates)[1]:,.0f}")
        offsets = sorted(Random(1).sample(range(count), records))
        ended = threading.Event()
        meanwhile: list[float] = []

        def produce() -> None:
            while not ended.is_set():
                meanwhile.append(rdkafka.produce_rate(broker.address, PRODUCED, SIZE_BYTES))

        producer = threading.Thread(target=produce)
        producer.start()
        began_s = time.monotonic()
        erased = _erase(broker.address, offsets)
        seconds = time.monotonic() - began_s
        ended.set()
        producer.join()
        print(
            f"produce during an erasure, records/s: {sorted(meanwhile)[len(meanwhile) // 2]:,.0f}"
        )
        print(f"{erased.erased} of {count:,} records, {size_gib:g} GiB: {seconds:.1f} s")
        began_s = time.monotonic()
        erased = _erase(broker.address, [offset + 1 for offset in offsets[:-1]])
        print(f"{erased.erased} more, without a producer: {time.monotonic() - began_s:.1f} s")


@contextmanager
def _broker(directory: Path) -> Iterator[BrokerProcess]:
    """With the default `compaction_bytes_per_s`, which bounds erasures too."""
    port = free_port()
    program = str(Path(sys.executable).with_name("headwater"))
    where = ["--listen", f"127.0.0.1:{port}", "--data-dir", str(directory / "log")]
    command = [program, "broker", *where]
    with running("Headwater", command, port, directory / "headwater.out") as broker:
        yield broker


def _erase(address: str, offsets: list[int]) -> ErasedRecords:
    return erase_records(address, ClientSettings(), {(TABLE, 0): offsets})


def _fill(address: str, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": address, **rdkafka.QUIET})
    topic = NewTopic(TABLE, 1, 1, config={"segment.bytes": str(SEGMENT_BYTES)})
    admin.create_topics([topic])[TABLE].result(60)
    value = Random(1).randbytes(SIZE_BYTES)
    producer = Producer(
        {"bootstrap.servers": address, "acks": 1, "linger.ms": 20, "batch.size": 256 << 10,
         **rdkafka.QUIET}
    )  # fmt: skip
    for _ in range(count):
        while True:
            try:
                producer.produce(TABLE, value)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(300):
        raise rdkafka.LoadFailedError("the topic could not be filled")


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]), *map(int, sys.argv[2:3]))
