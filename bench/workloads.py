"""The workloads: each starts a broker on fresh data, loads it and returns its figures."""

import time
from pathlib import Path

from bench.clients import rdkafka
from bench.peers.process import BrokerProcess
from bench.rounds import Measured, StartBroker, data_directory

MIB = 1024 * 1024
SETTLE_S = 1.0
LATENCY_RATE_PER_S = 5000
LATENCY_SIZE_BYTES = 100


def throughput(start: StartBroker, size_bytes: int, count: int) -> Measured:
    """Start, idle memory, then `count` records in and out again, one partition, acks=1."""
    with data_directory() as directory, start(directory) as broker:
        time.sleep(SETTLE_S)
        idle_bytes = broker.rss_bytes
        rdkafka.create_topics(broker.address, rdkafka.TOPIC)
        idle_s = broker.cpu_s
        produced = rdkafka.produce_rate(broker.address, count, size_bytes)
        produced_s = broker.cpu_s
        consumed = rdkafka.consume_rate(broker.address, count)
        consumed_s = broker.cpu_s
        return {
            "start, s": broker.start_s,
            "memory idle, MiB": idle_bytes / MIB,
            f"produce {size_bytes} B, records/s": produced,
            f"consume {size_bytes} B, records/s": consumed,
            f"broker CPU to produce {count:,} × {size_bytes} B, s": produced_s - idle_s,
            f"broker CPU to consume {count:,} × {size_bytes} B, s": consumed_s - produced_s,
            f"memory peak at {size_bytes} B, MiB": broker.peak_rss_bytes / MIB,
        }


def latency(start: StartBroker, linger_ms: int, seconds: int) -> Measured:
    """From produce to consume at a steady rate that none of them finds hard."""
    with data_directory() as directory, start(directory) as broker:
        rdkafka.create_topics(broker.address, rdkafka.TOPIC)
        percentiles = rdkafka.latency(
            broker.address, LATENCY_RATE_PER_S, seconds, LATENCY_SIZE_BYTES, linger_ms
        )
        return {
            f"latency p50, linger {linger_ms} ms, µs": percentiles["p50_us"],
            f"latency p99, linger {linger_ms} ms, µs": percentiles["p99_us"],
        }


def retained(start: StartBroker, sizes_gb: tuple[int, int], count: int) -> Measured:
    """The same load on a log that holds little and on one that holds much; and how both start."""
    size_bytes = 1024
    measured: Measured = {}
    with data_directory() as directory:
        held = 0
        for size_gb in sizes_gb:
            with start(directory) as broker:
                if not held:
                    rdkafka.create_topics(broker.address, rdkafka.TOPIC)
                missing = size_gb * 10**9 // size_bytes - held
                rdkafka.produce_rate(broker.address, missing, size_bytes)
                measured[f"produce 1 KiB with {size_gb} GB retained, records/s"] = (
                    rdkafka.produce_rate(broker.address, count, size_bytes)
                )
                measured[f"consume 1 KiB with {size_gb} GB retained, records/s"] = (
                    rdkafka.consume_rate(broker.address, count, f"-{count}")
                )
                held += missing + count
            measured[f"start with {size_gb} GB after a clean stop, s"] = _restart(start, directory)
            with start(directory) as broker:
                rdkafka.produce_rate(broker.address, count // 10, size_bytes)
                held += count // 10
                broker.kill()
            measured[f"start with {size_gb} GB after kill -9, s"] = _restart(start, directory)
    return measured


def scale(start: StartBroker, topic_count: int, connection_count: int) -> Measured:
    """Topics of 1,000 partitions, one record in each, and idle connections."""
    partitions = 1000
    topics = [f"bench-{number}" for number in range(topic_count)]
    held = f"{topic_count * partitions:,} partitions"
    with data_directory() as directory:
        with start(directory) as broker:
            for topic in topics:
                rdkafka.create_topics(broker.address, topic, partitions=partitions)
            rdkafka.write_to_each(broker.address, topics, partitions)
            measured = {f"memory with {held}, MiB": broker.rss_bytes / MIB}
            with rdkafka.connections_held(broker.address, connection_count):
                measured[f"memory with {held} and {connection_count:,} connections, MiB"] = (
                    broker.rss_bytes / MIB
                )
        measured[f"start with {held} after a clean stop, s"] = _restart(start, directory)
        with start(directory) as broker:
            rdkafka.write_to_each(broker.address, topics, partitions)
            broker.kill()
        with start(directory) as broker:
            measured[f"start with {held} after kill -9, s"] = broker.start_s
            measured[f"memory after that start with {held}, MiB"] = _settled(broker) / MIB
    return measured


def _restart(start: StartBroker, directory: Path) -> float:
    with start(directory) as broker:
        return broker.start_s


def _settled(broker: BrokerProcess) -> int:
    time.sleep(SETTLE_S)
    return broker.rss_bytes
