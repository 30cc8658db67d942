"""One broker for all client tests: ours, or real Kafka to check the tests themselves.

`HEADWATER_TEST_BOOTSTRAP=kafka` starts Apache Kafka instead of our broker; any other value is the
address of a broker that runs already.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for `bench.peers`

STOP_TIMEOUT_S = 20


@dataclass(frozen=True)
class Broker:
    address: str
    log_dir: Path | None  # the partitions' directories are below it; None: on another machine


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    data_dir = tmp_path_factory.mktemp("broker")
    elsewhere = os.environ.get("HEADWATER_TEST_BOOTSTRAP")
    if elsewhere == "kafka":
        from bench.peers.kafka import kafka

        with kafka(data_dir) as peer:
            yield Broker(peer.address, data_dir)
    elif elsewhere:
        yield Broker(elsewhere, None)
    else:
        yield from _ours(data_dir)


@pytest.fixture(scope="session")
def broker_address(broker: Broker) -> str:
    return broker.address


def _ours(data_dir: Path) -> Iterator[Broker]:
    headwater = Path(sys.executable).with_name("headwater")
    command = [headwater, "broker", "--json", "--listen", "127.0.0.1:0", "--data-dir", data_dir]
    with (
        (data_dir.parent / f"{data_dir.name}.log").open("wb") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log) as child,
    ):
        assert child.stdout is not None
        ready = child.stdout.readline()
        assert ready, f"the broker did not start: {Path(log.name).read_text()[-3000:]}"
        try:
            yield Broker(json.loads(ready)["listen"], data_dir)
        finally:
            child.terminate()
            try:
                child.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                raise
