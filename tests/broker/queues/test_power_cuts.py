"""The disk fails at any point and the power is cut: every answer to a client still holds."""

import contextlib
from random import Random

import pytest
from support.broker.queue_harness import ACCEPT, GROUP, REJECT, RELEASE, QueueBroker, acquired
from support.wire import Wire, wait_until

from headwater.testing.files import FaultyFiles

RECORDS, ROUNDS = 60, 4


def work(consumer, rng: Random, accepted: set[int], unsure: set[int]) -> None:
    """Takes and settles records until the disk fails."""
    for _ in range(12):
        answer = consumer.fetch(max_records=7, share_acquire_mode=1)
        taken = acquired(answer) if answer.error_code == 0 else []
        assert not accepted & set(taken)
        for offset in taken:
            kind = rng.choice([ACCEPT, ACCEPT, RELEASE, REJECT])
            if kind in (ACCEPT, REJECT):
                unsure.add(offset)
            if consumer.acknowledge((offset, offset, kind)) != 0:
                return
            if kind == ACCEPT:
                accepted.add(offset)


@pytest.mark.parametrize("seed", range(6))
def test_power_cuts(tmp_path, seed):
    rng = Random(seed)
    files = FaultyFiles(seed)
    broker = QueueBroker(tmp_path / "log", files=files)
    accepted: set[int] = set()
    try:
        jobs = broker.topic(**{"share.delivery.count.limit": "25"})
        for number in range(RECORDS // 3):
            broker.produce(*[b"%d" % (3 * number + at) for at in range(3)])
        unsure: set[int] = set()
        for _ in range(ROUNDS):
            files.die(after=rng.randrange(5, 150))
            with contextlib.suppress(ConnectionResetError):
                work(broker.consumer(jobs), rng, accepted, unsure)
            broker.disconnect()
            broker.broker.crash()
            files.power_cut(rng)
            files.revive()
            broker.broker.start()
            broker.wire = Wire(broker.broker.bootstrap)
        consumer = broker.consumer(jobs)
        while taken := consumer.take(max_wait_ms=100):
            assert not accepted & set(taken)
            for offset in taken:
                assert consumer.acknowledge((offset, offset, ACCEPT)) == 0
            accepted |= set(taken)
        queues = broker.broker.running.broker.queues
        wait_until(lambda: queues.describe(GROUP)[0].start_offset == RECORDS)
        letters = [int(dict(letter.headers)["headwater.dlq.offset"]) for letter in broker.letters()]
        assert len(letters) == len(set(letters)), "a dead letter is there twice"
        assert not accepted & set(letters)
        # Every record is done with; if the client got no answer, the broker had got the request.
        assert set(range(RECORDS)) - accepted - set(letters) <= unsure
    finally:
        files.repair()
        broker.close()
