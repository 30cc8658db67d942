"""The events in topics, and an end: what comes last makes time pass all windows."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import orjson
import pyarrow as pa
from confluent_kafka import Producer

DDL = {
    "person": "id bigint, name string, city string, state string, date_time timestamp",
    "auction": "id bigint, item string, seller bigint, category bigint, reserve bigint,"
    " date_time timestamp, expires timestamp",
    "bid": "auction bigint, bidder bigint, price bigint, date_time timestamp",
}
KEYS = {"person": "id", "auction": "id", "bid": "auction"}
PARTITIONS = {"person": 1, "auction": 1, "bid": 2}
_LATER = timedelta(hours=1)
END = -1  # the id of what comes last: no answer has it


def fill_topics(address: str, tables: dict[str, pa.Table]) -> int:
    """Each into the topic of its name; how many events there are, the last ones included."""
    producer = Producer(
        {
            "bootstrap.servers": address,
            "linger.ms": 50,
            "batch.size": 500_000,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    count = 0
    for topic, table in tables.items():
        partitions, key = PARTITIONS[topic], KEYS[topic]
        for row in _with_end(table, partitions):
            number = row[key] % partitions if row[key] != END else row.pop("partition")
            producer.produce(topic, orjson.dumps(row), orjson.dumps({key: row[key]}), number)
            count += 1
            if count % 10_000 == 0:
                producer.poll(0)
                while len(producer) > 500_000:
                    producer.poll(0.05)
    assert producer.flush(120) == 0
    return count


def _with_end(table: pa.Table, partitions: int) -> Iterator[dict[str, Any]]:
    last: dict[str, Any] = {}
    for batch in table.to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            yield row
            last = row
    numbers = {name: END for name, value in last.items() if isinstance(value, int)}
    times = {name: value + _LATER for name, value in last.items() if isinstance(value, datetime)}
    for partition in range(partitions):
        yield {**last, **numbers, **times, "partition": partition}
