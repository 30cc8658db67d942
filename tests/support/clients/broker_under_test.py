"""The broker that the client tests talk to: ours, or real Kafka to check the tests themselves.

`HEADWATER_TEST_BOOTSTRAP=kafka` starts Apache Kafka instead of our broker; any other value is the
address of a broker that runs already.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.peers.kafka import TOOL_JVM, kafka

STOP_TIMEOUT_S = 60


@dataclass(frozen=True)
class Broker:
    address: str
    log_dir: Path | None  # the partitions' directories are below it; None: on another machine


@contextmanager
def running_broker(data_dir: Path) -> Iterator[Broker]:
    """A broker on that directory, stopped cleanly when the block ends."""
    elsewhere = os.environ.get("HEADWATER_TEST_BOOTSTRAP")
    if elsewhere == "kafka":
        with kafka(data_dir, jvm=TOOL_JVM) as peer:
            yield Broker(peer.address, data_dir)
    elif elsewhere:
        yield Broker(elsewhere, None)
    else:
        yield from _ours(data_dir)


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
