"""The broker dies at every single change of its files: it is killed, or the power is cut.

The client is a list of steps. One that was not answered is repeated when the broker is back, as a
client would; in the end everything was done once, whatever the moment.
"""

import asyncio
import contextlib
import shutil
from random import Random

import pytest
from support.broker.queue_harness import ACCEPT, REJECT, RELEASE, QueueBroker, acquired
from support.broker.txn_harness import Producer, TransactionCluster
from support.crash.steady_client import AGAIN
from support.wire import Wire
from tiers import steps

from headwater.broker.transactions import State
from headwater.protocol.error_codes import ErrorCode
from headwater.testing import FaultyFiles

POSITION = {("source", 0): 7}
FILLER = bytes(900)  # the next batch begins a segment


class MortalCluster(TransactionCluster):
    """Who is dead does not answer, also if it got that far."""

    def ask(self, request, version):
        answer = super().ask(request, version)
        if self.files.is_dead:
            raise ConnectionResetError
        return answer


class Transactions:
    """Two topics and a group's offsets; one transaction is aborted between two that are not."""

    def __init__(self, path, *, modern: bool) -> None:
        self.cluster = MortalCluster(path)
        self.producer = producer = Producer(self.cluster, "payments", has_kip_890=modern)
        self.steps = [
            lambda: producer.send("t", b"a", FILLER),
            lambda: producer.send("u", b"c"),
            lambda: producer.send_offsets("group", POSITION),
            producer.commit,
            self.checkpoint,
            lambda: producer.send("t", b"aborted"),
            lambda: producer.send_offsets("group", {("source", 0): 99}),
            producer.abort,
            lambda: producer.send("u", b"d"),
            lambda: producer.send("t", b"e"),
            producer.commit,
        ]

    def checkpoint(self) -> int:
        try:
            self.cluster.runner.run(self.cluster.store.checkpoints.write())
        except OSError:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return 0

    def prepare(self) -> None:
        create = self.cluster.broker.create_topic
        for topic in ("t", "u", "source"):
            self.cluster.runner.run(create(topic, 1, {"segment.bytes": "1024"}))
        assert self.producer.init() == 0
        for topic in ("t", "u"):  # their files, and what a client's first request makes
            assert self.producer.send(topic, b"first") == 0
        assert self.producer.send_offsets("group", {("source", 0): 1}) == 0
        assert self.producer.commit() == 0

    def check(self) -> None:
        for topic, values in (("t", [b"first", b"a", FILLER, b"e"]), ("u", [b"first", b"c", b"d"])):
            # The last markers may be written by the next process: the decision was durable.
            partition = self.cluster.store.partitions[topic, 0]
            self.cluster.until(lambda p=partition: p.last_stable_offset == p.high_watermark)
            assert self.cluster.committed(topic) == values
        self.cluster.until_state("payments", State.COMPLETE_COMMIT)
        assert self.cluster.offsets("group", *POSITION) == POSITION


@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True], ids=["killed", "power-cut"])
@pytest.mark.parametrize("modern", [True, False], ids=["modern", "earlier"])
def test_a_death_at_every_step_of_transactions(tmp_path, modern, power):
    for after in steps(1000, first=int(power), every=7 if modern else 13):
        path = tmp_path / str(after)
        scene = Transactions(path, modern=modern)
        scene.prepare()
        scene.cluster.files.die(after=after)
        died = _go_through(scene, Random(after) if power else None)
        scene.cluster.files.revive()
        scene.check()
        scene.cluster.restart(crash=True)
        scene.check()
        scene.cluster.stop()
        scene.cluster.runner.close()
        shutil.rmtree(path)
        if not died:
            assert after > 30
            return
    pytest.fail("it never got through")


def _go_through(scene: Transactions, power: Random | None) -> bool:
    """Every step until it is answered; the next process comes when this one is dead.

    Whether one died.
    """
    cluster, died = scene.cluster, False
    for step in scene.steps:
        while True:
            try:
                code = step()
            except ConnectionResetError:
                code = ErrorCode.NETWORK_EXCEPTION
            is_dead = cluster.files.is_dead
            if is_dead:
                cluster.crash()
                cluster.files.revive() if power is None else cluster.files.power_cut(power)
                cluster.start()
                died = True
            if code == 0:
                break
            assert is_dead or code in AGAIN, ErrorCode(code)
            cluster.runner.run(asyncio.sleep(0.001))
    return died


# ── queues ────────────────────────────────────────────────────────────────────────────────────

JOBS = 8
REJECTED = {2, 3, 6}
RELEASED = {1, 4}  # when they are delivered first


class Queue:
    """Jobs that are accepted, rejected or first released, and their dead letters."""

    def __init__(self, path) -> None:
        self.files = FaultyFiles()
        self.broker = QueueBroker(path, self.files)
        self.jobs = self.broker.topic()
        for number in range(JOBS):
            self.broker.produce(b"%d" % number)
        assert self.broker.consumer(self.jobs).take(max_records=1) == [0]  # has begun
        self.broker.restart(crash=True)
        self.consumer = None
        self.settled: set[int] = set()
        self.seen: set[int] = set()
        self.died = False

    def go_through(self, power: Random | None) -> None:
        """Until nothing is delivered and each rejected job has its letter."""
        while not self.is_over():
            with contextlib.suppress(OSError):
                self.take_some()
            if self.files.is_dead:
                self.died = True
                self.broker.disconnect()
                self.broker.broker.crash()
                self.files.revive() if power is None else self.files.power_cut(power)
                self.broker.broker.start()
                self.broker.wire = Wire(self.broker.broker.bootstrap)
                self.consumer = None

    def take_some(self) -> None:
        if self.consumer is None:
            self.consumer = self.broker.consumer(self.jobs)
        answer = self.consumer.fetch(max_records=4)
        if answer.error_code:
            self.consumer = None
            return
        offsets = acquired(answer)
        assert not self.settled & set(offsets), "delivered after it was settled"
        kinds = {offset: self._kind(offset) for offset in offsets}
        self.seen |= set(offsets)
        if kinds and self.consumer.acknowledge(*((o, o, kind) for o, kind in kinds.items())) == 0:
            self.settled |= {offset for offset, kind in kinds.items() if kind != RELEASE}

    def _kind(self, offset: int) -> int:
        if offset in RELEASED - self.seen:
            return RELEASE
        return REJECT if offset in REJECTED else ACCEPT

    def is_over(self) -> bool:
        if self.files.is_dead:
            return False
        described = self.broker.broker.running.broker.queues.describe("workers")
        return [partition.start_offset for partition in described] == [JOBS]

    def check(self) -> None:
        assert self.seen == set(range(JOBS))
        letters = [int(letter.value) for letter in self.broker.letters()]
        assert sorted(letters) == sorted(REJECTED)
        assert self.broker.consumer(self.jobs).take() == []


@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True], ids=["killed", "power-cut"])
def test_a_death_at_every_step_of_a_queue(tmp_path, power):
    for after in steps(1000, first=int(power)):
        scene = Queue(tmp_path / str(after))
        scene.files.die(after=after)
        scene.go_through(Random(after) if power else None)
        scene.files.revive()
        scene.check()
        scene.broker.restart(crash=True)
        scene.check()
        scene.broker.close()
        shutil.rmtree(tmp_path / str(after))
        if not scene.died:
            assert after > 20
            return
    pytest.fail("it never got through")
