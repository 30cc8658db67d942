"""kfake, the Go broker of franz-go, writing and fsyncing its log."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers.ports import free_port
from bench.peers.process import BrokerProcess, running
from bench.peers.provision import kfake_binary

NAME = "kfake (fsync)"


@contextmanager
def kfake(data_dir: Path) -> Iterator[BrokerProcess]:
    data_dir.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [str(kfake_binary()), "-port", str(port), "-data-dir", str(data_dir / "log")]
    with running(NAME, command, port, data_dir / "kfake.out") as broker:
        yield broker
