"""Our own broker, started as a user starts it."""

import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.peers.ports import free_port
from bench.peers.process import BrokerProcess, running
from bench.peers.provision import WORK

if TYPE_CHECKING:
    from bench.tls import Certificate

NAME = "Headwater"


@contextmanager
def headwater(data_dir: Path, tls: "Certificate | None" = None) -> Iterator[BrokerProcess]:
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
    context = None
    if tls is not None:
        command += ["--tls-cert", str(tls.cert), "--tls-key", str(tls.key)]
        context = ssl.create_default_context(cafile=tls.cert)
    # Kafka's cleaner is not bounded by default either. What ours compiles is kept from one data
    # directory to the next: only the first round pays for it.
    settings = {
        "HEADWATER_BROKER__COMPACTION_BYTES_PER_S": "4GB",
        "NUMBA_CACHE_DIR": str(WORK / "numba-cache"),
    }
    with running(NAME, command, port, data_dir / "headwater.out", context, settings) as broker:
        yield broker
