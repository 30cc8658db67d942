"""kill -9 while segments are archived, and the local copy of whatever counts as archived is lost.

What was acknowledged is read nevertheless: a descriptor beside the log is a promise that the
archive has the segment, whatever the process was doing when it died.
"""

import random
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from support.clients.broker_process import BrokerProcess
from test_kill_loop import QUICK, Writer, _read_all
from tiers import kills

KILLS = kills(quick=4, full=100)
TOPIC = "archived"


@pytest.mark.slow
@pytest.mark.timeout(300 + 10 * KILLS)
def test_killed_while_archiving(tmp_path, monkeypatch):
    chance = random.Random(20261115)
    archive = tmp_path / "archive"
    monkeypatch.setenv("HEADWATER_BROKER__ARCHIVE", f"file://{archive}")
    broker = BrokerProcess(tmp_path / "data")
    broker.start()
    admin = AdminClient({"bootstrap.servers": broker.address, **QUICK})
    config = {"segment.bytes": "2048", "remote.storage.enable": "true", "retention.ms": "-1"}
    for future in admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)]).values():
        future.result(60)
    writers = [
        Writer(broker.address, "first", TOPIC, **{"enable.idempotence": True}),
        Writer(broker.address, "second", TOPIC, **{"enable.idempotence": True}),
    ]
    for writer in writers:
        writer.begin()
    lost = 0
    for _ in range(KILLS):
        _wait_for_archived(tmp_path / "data" / f"{TOPIC}-0", 2)
        time.sleep(chance.choice([0.1, 0.3, 0.6, 1.0]) * (0.5 + chance.random()))
        broker.kill()
        lost += _lose_what_is_archived(tmp_path / "data" / f"{TOPIC}-0")
        broker.start()
    for writer in writers:
        writer.over.set()
        writer.join(120)
        assert not writer.is_alive()
    try:
        assert lost > KILLS
        stored = {
            (0, offset): (key, value) for offset, key, value in _read_all(broker.address, TOPIC, 0)
        }
        for writer in writers:
            assert writer.errors == []
            assert len(writer.acknowledged) == sum(writer.sent.values())
            for place, record in writer.acknowledged.items():
                assert stored.get(place) == record
        assert len(stored) == sum(len(writer.acknowledged) for writer in writers)  # none twice
    finally:
        broker.stop()


def _archived(directory: Path) -> list[Path]:
    """Archived segments that have local files, too."""
    logs = sorted(directory.glob("*.log"))[:-1]
    return [log for log in logs if log.with_suffix(".archived").exists()]


def _wait_for_archived(directory: Path, segments: int) -> None:
    deadline_s = time.monotonic() + 120
    while len(_archived(directory)) < segments:
        assert time.monotonic() < deadline_s, "nothing is archived"
        time.sleep(0.02)


def _lose_what_is_archived(directory: Path) -> int:
    """Removes the local files of archived segments; how many."""
    archived = _archived(directory)
    for log in archived:
        for suffix in (".log", ".index", ".timeindex"):
            log.with_suffix(suffix).unlink(missing_ok=True)
    return len(archived)
