"""What archiving costs producers, and how fast archived records are read.

The archive is a directory on the same disk: an object store on the same machine would measure
itself. Uploads run at the broker's own limit (`archive_max_bytes_per_s`) all the time, because
producers are faster; every byte is also read back and compared.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.clients import rdkafka
from bench.clients.rdkafka import LoadFailedError
from bench.rounds import Measured, StartBroker, data_directory

SIZE_BYTES = 1024
SEGMENT_BYTES = 32 << 20
ARCHIVE_TIMEOUT_S = 300
SETTING = "HEADWATER_BROKER__ARCHIVE"


def archiving(start: StartBroker, count: int) -> Measured:
    """One partition, 1 KiB records, without an archive and then with one."""
    without = _produce(start, count)
    with data_directory() as directory, _archive_in(directory / "archive") as archive:
        with start(directory) as broker:
            _create(broker.address, {"remote.storage.enable": "true"})
            idle_s = broker.cpu_s
            produced = rdkafka.produce_rate(broker.address, count, SIZE_BYTES)
            archived_meanwhile = _log_bytes(archive)
            _wait_until_archived(directory, archive)
            used_s = broker.cpu_s - idle_s
        _let_go(directory)
        with start(directory) as broker:
            consumed = rdkafka.consume_rate(broker.address, count)
    return {
        "produce 1 KiB without archiving, records/s": without,
        "produce 1 KiB while archiving, records/s": produced,
        "while archiving, as a part of without": produced / without,
        "archived while producing, MB": archived_meanwhile / 1e6,
        f"broker CPU to produce and archive {count:,} × 1 KiB, s": used_s,
        "consume 1 KiB from the archive, records/s": consumed,
    }


def _produce(start: StartBroker, count: int) -> float:
    with data_directory() as directory, start(directory) as broker:
        _create(broker.address, {})
        return rdkafka.produce_rate(broker.address, count, SIZE_BYTES)


@contextmanager
def _archive_in(path: Path) -> Iterator[Path]:
    """Brokers that are started in the block have it as their archive."""
    os.environ[SETTING] = f"file://{path}"
    try:
        yield path
    finally:
        del os.environ[SETTING]


def _create(address: str, configs: dict[str, str]) -> None:
    configs = {"segment.bytes": str(SEGMENT_BYTES), **configs}
    topic = NewTopic(rdkafka.TOPIC, 1, 1, config=configs)
    admin = AdminClient({"bootstrap.servers": address, **rdkafka.QUIET})
    for created in admin.create_topics([topic]).values():
        created.result(60)


def _partition(directory: Path) -> Path:
    return directory / "log" / f"{rdkafka.TOPIC}-0"


def _log_bytes(archive: Path) -> int:
    return sum(path.with_suffix(".log").stat().st_size for path in archive.rglob("*.archived"))


def _sealed(directory: Path) -> list[Path]:
    return sorted(_partition(directory).glob("*.log"))[:-1]


def _wait_until_archived(directory: Path, archive: Path) -> None:
    deadline_s = time.monotonic() + ARCHIVE_TIMEOUT_S
    while any(not path.with_suffix(".archived").exists() for path in _sealed(directory)):
        if time.monotonic() > deadline_s:
            raise LoadFailedError(f"not all was archived in {ARCHIVE_TIMEOUT_S} s: {archive}")
        time.sleep(0.1)


def _let_go(directory: Path) -> None:
    """Removes the local files of what is archived, as local retention would in its own time."""
    for log in _sealed(directory):
        for suffix in (".log", ".index", ".timeindex"):
            log.with_suffix(suffix).unlink(missing_ok=True)
