"""Everybody in turn, several times over: what one sitting measures."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from bench.clients.rdkafka import LoadFailedError
from bench.peers import debezium, headwater, kafka, kfake
from bench.peers.process import BrokerProcess
from bench.peers.provision import WORK

# A directory, and what else that broker can be given (bench/tls.py: a certificate).
StartBroker = Callable[..., AbstractContextManager[BrokerProcess]]
BROKERS: dict[str, StartBroker] = {
    headwater.NAME: headwater.headwater,
    kafka.NAME: kafka.kafka,
    kfake.NAME: kfake.kfake,
    debezium.NAME: debezium.kafka_for_debezium,
}

Measured = dict[str, float]
# metric → broker → one figure for each round
Figures = dict[str, dict[str, list[float]]]


@contextmanager
def data_directory() -> Iterator[Path]:
    """A directory on the disk of this repository: a temporary one may be in memory.

    What earlier runs have left to be written goes to the disk first, so that nobody pays for it.
    """
    parent = WORK / "bench"
    parent.mkdir(parents=True, exist_ok=True)
    os.sync()
    directory = Path(tempfile.mkdtemp(dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def alternate(
    turns: Mapping[str, Callable[[], Measured]],
    rounds: int,
    figures: Figures,
    *,
    warm_ups: int = 0,
) -> None:
    """Measures everybody once in every round, in an order that moves on by one each time. Rounds
    to warm up come first, and are left out.
    """
    names = list(turns)
    for number in range(warm_ups + rounds):
        shift = number % len(names)
        is_kept = number >= warm_ups
        shown_round = f"round {number - warm_ups + 1}/{rounds}" if is_kept else "warm-up"
        for name in names[shift:] + names[:shift]:
            try:
                measured = turns[name]()
            except LoadFailedError as error:  # its cells stay empty
                print(f"  {shown_round} {name}: failed: {error}", flush=True)
                continue
            for metric, value in measured.items() if is_kept else ():
                figures.setdefault(metric, {}).setdefault(name, []).append(value)
            shown = ", ".join(f"{metric} {value:,.6g}" for metric, value in measured.items())
            print(f"  {shown_round} {name}: {shown}", flush=True)
