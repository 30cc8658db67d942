"""What is killed, and how: brokers and captures as processes, at random moments."""

import contextlib
import random
import subprocess
import sys
import threading
from pathlib import Path

from confluent_kafka import Producer
from tiers import kills

from bench.peers.ports import free_port
from bench.peers.process import BrokerProcess
from headwater.capture.positions import SIGNALS_TOPIC, TOPIC, SnapshotState, decode
from headwater.capture.signals import encode
from headwater.client.reading.compacted import read_committed_latest
from headwater.errors import BrokerUnreachable
from headwater.settings import ClientSettings
from support.wire import wait_until

KILLS = kills(quick=10, full=200)
READY_S = 60


class HeadwaterBroker:
    """Ours, as a process."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.bootstrap = f"127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headwater.cli.main", "broker", "--listen", self.bootstrap,
             "--data-dir", str(self.data_dir)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()


class KafkaBroker:
    """Apache Kafka, which is killed in the same way."""

    def __init__(self, process: BrokerProcess) -> None:
        self._process = process
        self.bootstrap = process.address

    def start(self) -> None:
        with self._process.output.open("ab") as output:
            self._process.child = subprocess.Popen(
                self._process.child.args, stdout=output, stderr=output
            )

    def kill(self) -> None:
        self._process.kill()


class CaptureProcess:
    def __init__(
        self,
        source: str,
        bootstrap: str,
        log: Path,
        chunk_rows: int = 20_000,
        tables: str = "public.*",
    ) -> None:
        script = str(Path(__file__).with_name("capture_process.py"))
        arguments = ["shop", source, bootstrap, str(chunk_rows), tables]
        self._command = [sys.executable, script, *arguments]
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self) -> None:
        assert self._process is not None
        code = self._process.poll()
        assert code is None, f"it ended by itself ({code}): {self.log.read_text()[-3000:]}"
        self._process.kill()
        self._process.wait()


def kill_at_random(victims, count: int, rng: random.Random, between=lambda: None) -> None:
    """`victims`: (weight, what can be killed and started). Some live long, some hardly begin."""
    weights, targets = zip(*victims, strict=True)
    for _ in range(count):
        (target,) = rng.choices(targets, weights)
        pause_s = rng.choice([rng.uniform(0, 0.3), rng.uniform(0.3, 1.0), rng.uniform(1.0, 2.0)])
        threading.Event().wait(pause_s)
        target.kill()
        threading.Event().wait(rng.uniform(0, 0.1))
        target.start()
        between()


def copies(bootstrap: str) -> dict[str, SnapshotState]:
    with contextlib.suppress(BrokerUnreachable):
        records = read_committed_latest(bootstrap, ClientSettings(), TOPIC, patience_s=5)
        states = decode("shop", records).tables
        return {table_id: state.snapshot for table_id, state in states.items() if state.snapshot}
    return {}


def wait_for_copies(bootstrap: str, tables: int = 2) -> None:
    """The first copies are done: from then on the sum of balances is what it must be."""
    wait_until(lambda: sum(copy.is_done for copy in copies(bootstrap).values()) == tables, READY_S)


def ask_for_copies(bootstrap: str, table_id: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    producer.produce(SIGNALS_TOPIC, encode("x", [table_id]), "shop")
    producer.flush(0.5)
