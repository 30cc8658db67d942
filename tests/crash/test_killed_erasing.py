"""kill -9 while records are erased, in the log and in the archive, under producers that go on.

An erasure that was accepted is completed by the next process: nothing of its records is left in the
data directory or in the archive, byte by byte. All other records are as they were acknowledged.
"""

import random
import threading
import time
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from support.client.written import ANONYMOUS
from support.clients.broker_process import BrokerProcess
from support.log.erasure_harness import bytes_in
from support.wire import wait_until
from test_kill_loop import QUICK, Writer, _read_all
from tiers import kills

from headwater.client.erasing import erase_records

KILLS = kills(quick=2, full=60)
TOPIC = "people"
SECRETS = 10  # at a time; every second one is erased
PATIENCE_S = 60


class Forgetter(threading.Thread):
    """Writes secrets, and has half of them erased, until stopped."""

    def __init__(self, address: str) -> None:
        super().__init__(name="forgetter", daemon=True)
        self._address = address
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "message.timeout.ms": 0,
                **QUICK,
            }
        )
        self.erased: dict[int, bytes] = {}
        self.remaining: dict[int, bytes] = {}
        self.errors: list[BaseException] = []
        self.over = threading.Event()

    def run(self) -> None:
        try:
            while not self.over.is_set():
                self._forget()
        except BaseException as error:
            self.errors.append(error)

    def begin(self) -> None:
        """Starts, and returns when some are erased. See `Writer.begin`."""
        self.start()
        wait_until(lambda: self.erased or self.errors, what="some are erased", timeout_s=PATIENCE_S)

    def _forget(self) -> None:
        written: dict[int, bytes] = {}
        for _ in range(SECRETS):
            self._producer.produce(
                TOPIC,
                f"secret-{uuid4().hex}".encode(),
                on_delivery=lambda error, it: written.update({it.offset(): it.value()}),
            )
        while self._producer.flush(1):
            pass  # however long the broker is being killed
        assert len(written) == SECRETS
        chosen = sorted(written)[::2]
        result = erase_records(self._address, ANONYMOUS, {(TOPIC, 0): chosen})
        assert result.erased + result.already_gone == len(chosen)
        self.erased |= {offset: written[offset] for offset in chosen}
        self.remaining |= {at: value for at, value in written.items() if at not in self.erased}


@pytest.mark.slow
@pytest.mark.timeout(300 + 15 * KILLS)
def test_killed_while_erasing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(20261118)
    archive = tmp_path / "archive"
    monkeypatch.setenv("HEADWATER_BROKER__ARCHIVE", f"file://{archive}")
    broker = BrokerProcess(tmp_path / "data")
    broker.start()
    admin = AdminClient({"bootstrap.servers": broker.address, **QUICK})
    config = {
        "segment.bytes": "16384", "remote.storage.enable": "true", "retention.ms": "-1",
        "index.interval.bytes": "512",
    }  # fmt: skip
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)])[TOPIC].result(PATIENCE_S)
    writer = Writer(broker.address, "writer", TOPIC, **{"enable.idempotence": True})
    forgetter = Forgetter(broker.address)
    writer.begin()
    forgetter.begin()
    for _ in range(KILLS):
        time.sleep(chance.choice([0.2, 0.5, 1.0]) * (0.5 + chance.random()))
        broker.kill()
        broker.start()
    for thread in (writer, forgetter):
        thread.over.set()
        thread.join(3 * PATIENCE_S)
        assert not thread.is_alive()
    try:
        assert writer.errors == forgetter.errors == []
        stored = {
            offset: (key, value) for offset, key, value in _read_all(broker.address, TOPIC, 0)
        }
        assert all(stored[offset] == (None, None) for offset in forgetter.erased)
        assert {at: stored[at][1] for at in forgetter.remaining} == forgetter.remaining
        assert {place: stored[place[1]] for place in writer.acknowledged} == writer.acknowledged
        assert len(stored) == (
            len(forgetter.erased) + len(forgetter.remaining) + len(writer.acknowledged)
        )
        assert list(archive.rglob("*.archived")), "nothing was archived"
    finally:
        broker.stop()
    everything = bytes_in(tmp_path)
    assert not [offset for offset, value in forgetter.erased.items() if value in everything]
    assert all(value in everything for value in forgetter.remaining.values())
