"""The broker dies at every single change of its files: it is killed, or the power is cut.

The client is a list of steps. One that was not answered is repeated when the broker is back, as a
client would; in the end everything was done once, whatever the moment.
"""

import asyncio
import shutil
from random import Random

import pytest
from steady_client import AGAIN
from txn_harness import Cluster, Producer

from headwater.broker.transactions import State
from headwater.protocol.error_codes import ErrorCode

POSITION = {("source", 0): 7}


class Transactions:
    """Two topics and a group's offsets; one transaction is aborted between two that are not."""

    def __init__(self, path, *, modern: bool) -> None:
        self.cluster = Cluster(path)
        self.producer = producer = Producer(self.cluster, "payments", modern=modern)
        self.steps = [
            lambda: producer.send("t", b"a", b"b"),
            lambda: producer.send("u", b"c"),
            lambda: producer.send_offsets("group", POSITION),
            producer.commit,
            lambda: producer.send("t", b"aborted"),
            lambda: producer.send_offsets("group", {("source", 0): 99}),
            producer.abort,
            lambda: producer.send("u", b"d"),
            lambda: producer.send("t", b"e"),
            producer.commit,
        ]

    def prepare(self) -> None:
        self.cluster.topic("t")
        self.cluster.topic("u")
        self.cluster.topic("source")
        assert self.producer.init() == 0
        for topic in ("t", "u"):  # their files, and what a client's first request makes
            assert self.producer.send(topic, b"first") == 0
        assert self.producer.send_offsets("group", {("source", 0): 1}) == 0
        assert self.producer.commit() == 0

    def check(self) -> None:
        for topic, values in (("t", [b"first", b"a", b"b", b"e"]), ("u", [b"first", b"c", b"d"])):
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
    for after in range(1000):
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
            code = step()
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
