"""`hw.match` beside Flink SQL's MATCH_RECOGNIZE, from a topic to a topic, one after the other.

    .venv/bin/python -m bench.match_recognize [--keys 1000] [--records 1000000] [--only flink]

The pattern and the rows are those of bench/patterns.py: every key goes through three steps in turn
with other rows in between, a tenth of the orders is never paid. All rows are in the topic when the
system starts. Both write matches only, exactly once; each match is checked. Flink has no rows for
what ran out of time.
"""

import argparse
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import orjson

from bench import machine, report
from bench.clients.rdkafka import create_topics
from bench.latency.catch_up import Progress, bulk_producer, make_room
from bench.latency.clients import Results
from bench.latency.events import PARTITIONS, event_record
from bench.latency.systems import (
    FLINK_EVERY_SECOND,
    HEADWATER,
    Job,
    System,
    available_of,
    fresh,
    started,
)
from bench.patterns import PAID_STEP, SPAN_US, steps
from bench.peers.headwater import headwater
from bench.peers.process import BrokerProcess
from bench.rounds import Figures, Measured, alternate, data_directory

SYSTEMS = (HEADWATER, FLINK_EVERY_SECOND)
KEYS = (1_000, 100_000)
_DAY_MS = 86_400_000
_AT_ONCE = 10_000


def main() -> None:
    options = _options()
    available = available_of(SYSTEMS, options.only)
    figures: Figures = {}
    for keys in options.keys or KEYS:
        print(f"{keys:,} keys", flush=True)
        with data_directory() as directory, headwater(directory / "broker") as broker:
            topic = f"steps-{keys}"
            paid = fill(broker, topic, keys, options.records)
            turns = {
                system.name: partial(
                    run, system, broker, directory / f"{number}", topic, keys, options.records, paid
                )
                for number, system in enumerate(available)
            }
            alternate(turns, options.rounds, figures)
    sitting = {
        "mode": f"{options.records:,} records, {options.rounds} round(s)",
        "machine": machine.describe(),
        "ratios": False,
        "figures": figures,
    }
    print(report.table(sitting))


def fill(broker: BrokerProcess, topic: str, keys: int, records: int) -> set[int]:
    """The events that complete a match, by their number."""
    create_topics(broker.address, topic, partitions=PARTITIONS)
    producer = bulk_producer(broker)
    last_ms = int(time.time() * 1000) - _DAY_MS  # no time is in the future
    first_ms = last_ms - records * SPAN_US // 1000 // keys
    paid = set()
    for number, key, step in _events(keys, records):
        at_ms = first_ms + number * SPAN_US // 1000 // keys
        record_key, value, partition = event_record(number, key, at_ms, step)
        producer.produce(topic, value, record_key, partition)
        if step == PAID_STEP:
            paid.add(number)
        if number % _AT_ONCE == 0:
            make_room(producer)
    for partition in range(PARTITIONS):  # the watermark passes all others
        record_key, value, _ = event_record(records, -1 - partition, last_ms + _DAY_MS // 2, 1)
        producer.produce(topic, value, record_key, partition)
    producer.flush()
    return paid


def _events(keys: int, records: int) -> Iterator[tuple[int, int, int]]:
    """Number, key and step."""
    for first in range(0, records, _AT_ONCE):
        number = np.arange(first, min(first + _AT_ONCE, records), dtype=np.int64)
        key, step = steps(number, keys)
        yield from zip(number.tolist(), key.tolist(), step.tolist(), strict=True)


def run(
    system: System,
    broker: BrokerProcess,
    directory: Path,
    topic: str,
    keys: int,
    records: int,
    paid: set[int],
) -> Measured:
    directory = fresh(directory)
    job = Job(
        "match", broker.address, topic, topic, f"matches-{keys}-{directory.name}",
        window_s=0, tier=None, backlog=True, directory=directory,
    )  # fmt: skip
    if not system.creates_topic:
        create_topics(job.bootstrap, job.results, partitions=PARTITIONS)
    matches = _Matches(keys, set(paid))
    progress = Progress(len(paid), matches.count)
    with started(system, job) as running:
        results = Results(job.bootstrap, job.results, check=running.check)
        progress.all(results, running)
        cpu_s = running.tree.cpu_s()
        memory_bytes = running.tree.pss_bytes()
    name = f"{keys // 1000:,}k keys"
    return {
        **progress.figures(name, records, running.started_s, cpu_s),
        f"{name}, matches that are none, or twice": matches.wrong,
        f"{name}, memory (PSS), MiB": memory_bytes / 2**20,
    }


class _Matches:
    """Which have not come yet."""

    def __init__(self, keys: int, missing: set[int]) -> None:
        self._behind = PAID_STEP * keys  # the events of a step before the same step of its key
        self._missing = missing
        self.wrong = 0

    def count(self, values: list[bytes]) -> int:
        before = len(self._missing)
        for value in values:
            row = orjson.loads(value)
            is_right = row["paid"] in self._missing and row["paid"] - row["ordered"] == self._behind
            self._missing.discard(row["paid"])
            self.wrong += not is_right
        return before - len(self._missing)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.match_recognize",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", choices=[system.group for system in SYSTEMS], help="one system")
    parser.add_argument("--keys", type=int, action="append", help=f"several times; default: {KEYS}")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
