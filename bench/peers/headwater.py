"""Our own broker, started as a user starts it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers.process import BrokerProcess, free_port, running

NAME = "Headwater"


@contextmanager
def headwater(data_dir: Path) -> Iterator[BrokerProcess]:
    data_dir.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [
        str(Path(sys.executable).with_name("headwater")),
        "broker",
        "--listen",
        f"127.0.0.1:{port}",
        "--data-dir",
        str(data_dir / "log"),
    ]
    with running(NAME, command, port, data_dir / "headwater.out") as broker:
        yield broker
